//! The intent of a model call, and its failure.
//!
//! Owns the kinds of failure. What follows from each is the retry guard's.

use serde::{Deserialize, Serialize};

use crate::ids::Label;
use crate::message::{AssistantMessage, Usage};

/// The intent of a model call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Hash of the request.
    pub hash: [u8; 32],
    /// Version of the converter that built it.
    pub converter_version: u16,
    /// What the transform hook left out, as ids of messages (`seq`, `n`); none if it was not asked or made
    /// new text.
    pub edits: Option<Vec<(u64, u32)>>,
    /// Position of the profile that pays for it, in the model's list.
    pub profile: u8,
    /// The most that the call may use; settled when the answer is known.
    pub reserve: Usage,
}

/// What else could be asked when a call failed, as the engine saw it at that moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// Profiles that the model has; none and one mean the same.
    pub profiles: u8,
    /// Position of the next profile in the run's order that does not cool down; none: no other can be used.
    pub next_profile: Option<u8>,
    /// The next model of the fallback list; none: there is no other.
    pub next_model: Option<Label>,
    /// The key of the profile in use can be fetched anew.
    pub can_refresh: bool,
    /// Tokens that fit into the model's context; 0: not known.
    pub context_window: u64,
}

/// Why a model call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind, which decides what follows.
    pub kind: FailureKind,
    /// The provider's words, cut.
    pub message: Label,
    /// What the provider asked to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Visible text arrived before it failed.
    pub had_text: bool,
    /// What is known of its use.
    pub usage: Usage,
    /// The answer so far, when it ended in an error of its own and is to stand in the transcript. It went
    /// through [`crate::answer::settle`].
    pub partial: Option<Box<AssistantMessage>>,
}

/// Kinds of failed model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// Too many requests.
    RateLimit,
    /// The provider is overloaded.
    Overloaded,
    /// The provider failed.
    ServerError,
    /// The call took too long.
    Timeout,
    /// Nothing arrived for too long.
    Idle,
    /// The connection broke.
    Connection,
    /// The key was refused.
    Auth,
    /// The key was refused for good.
    AuthPermanent,
    /// The account cannot pay.
    Billing,
    /// No such model.
    ModelNotFound,
    /// The request was not accepted as it is.
    Format,
    /// The request is larger than the model's context.
    ContextOverflow,
    /// An answer with nothing visible in it.
    Empty,
    /// An answer with reasoning only.
    ReasoningOnly,
    /// No answer at all.
    Missing,
    /// An error without details.
    Silent,
    /// The roles of the messages are in an order that is not accepted.
    RoleOrdering,
    /// An image is too large.
    ImageSize,
    /// The thinking level is not supported.
    ThinkingUnsupported,
    /// The provider's session has ended.
    SessionExpired,
    /// The certificate was not accepted.
    TlsCertificate,
    /// The script of a rehearsal has no such turn, or cannot be used.
    Script,
    /// Anything else.
    Unknown,
}

impl FailureKind {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 23] = [
        Self::RateLimit,
        Self::Overloaded,
        Self::ServerError,
        Self::Timeout,
        Self::Idle,
        Self::Connection,
        Self::Auth,
        Self::AuthPermanent,
        Self::Billing,
        Self::ModelNotFound,
        Self::Format,
        Self::ContextOverflow,
        Self::Empty,
        Self::ReasoningOnly,
        Self::Missing,
        Self::Silent,
        Self::RoleOrdering,
        Self::ImageSize,
        Self::ThinkingUnsupported,
        Self::SessionExpired,
        Self::TlsCertificate,
        Self::Script,
        Self::Unknown,
    ];

    /// The name used in rehearsals, logs and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Idle => "idle",
            Self::Connection => "connection",
            Self::Auth => "auth",
            Self::AuthPermanent => "auth_permanent",
            Self::Billing => "billing",
            Self::ModelNotFound => "model_not_found",
            Self::Format => "format",
            Self::ContextOverflow => "context_overflow",
            Self::Empty => "empty",
            Self::ReasoningOnly => "reasoning_only",
            Self::Missing => "missing",
            Self::Silent => "silent",
            Self::RoleOrdering => "role_ordering",
            Self::ImageSize => "image_size",
            Self::ThinkingUnsupported => "thinking_unsupported",
            Self::SessionExpired => "session_expired",
            Self::TlsCertificate => "tls_certificate",
            Self::Script => "script",
            Self::Unknown => "unknown",
        }
    }
}
