//! What a request is made of, before it is spelled.
//!
//! Owns the settings of a model that shape a request, and their defaults.

use std::sync::Arc;

use super::Request;
use super::conversation::Conversation;
use crate::config::{Model, ToolChoice};
use model::guard::retry::ThinkingLevel;

/// Tokens that an answer may have unless `max_output` says otherwise: every current model gives as many.
pub(super) const OUTPUT_TOKENS_DEFAULT: u64 = 8_192;

/// One request, its transcript as a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) model: &'a Model,
    pub(super) request: &'a Request,
    pub(super) conversation: &'a Conversation,
}

impl Ask<'_> {
    /// The vendor's name of the model.
    pub(super) fn name(&self) -> &str {
        vendor_name(self.model)
    }

    /// True for the vendor's own address, where everything it documents works.
    pub(super) fn is_vendors(&self) -> bool {
        self.model.base_url.is_none()
    }

    /// Tokens that the answer may have.
    pub(super) fn output_max(&self) -> u64 {
        output_max(self.model)
    }

    /// How much the model is asked to think.
    pub(super) fn thinking(&self) -> ThinkingLevel {
        self.request.thinking.parse().unwrap_or_default()
    }

    /// True if the answer must call a tool.
    pub(super) fn is_forced(&self) -> bool {
        self.model.tool_choice == ToolChoice::Required && !self.request.tools.is_empty()
    }

    /// The system prompt, if there is something in it.
    pub(super) fn system(&self) -> Option<&str> {
        self.request.system.as_ref().map(Arc::as_ref).filter(|system: &&str| !system.trim().is_empty())
    }
}

/// The vendor's name of a model.
pub(super) fn vendor_name(model: &Model) -> &str {
    model.model.as_deref().unwrap_or_default()
}

/// Tokens that an answer of a model may have.
pub(super) fn output_max(model: &Model) -> u64 {
    model.max_output.unwrap_or(OUTPUT_TOKENS_DEFAULT)
}
