//! What goes wrong with a call, before it is told to the loop.
//!
//! Owns the words of a failure and their bounds: they are cut once, last, when no key is in them any more. It must never
//! decide what follows from one.

use model::Block;
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};

use super::secret::Secret;

/// The most bytes kept of a provider's words.
const WORDS_BYTES_MAX: usize = 2 << 10;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Which kind of failure.
    pub(super) kind: FailureKind,
    /// What the provider said of it, or what was found, in full.
    pub(super) words: String,
    /// What the provider asked to wait, in milliseconds.
    pub(super) retry_after_ms: Option<u64>,
}

impl Fault {
    /// A failure in words.
    pub(super) fn new(kind: FailureKind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into(), retry_after_ms: None }
    }

    /// The server sent what its protocol does not have.
    pub(super) fn broken(words: impl std::fmt::Display) -> Self {
        Self::new(FailureKind::ServerError, format!("the server sent {words}"))
    }

    /// The same without the key: half of one would not be found after a cut.
    pub(super) fn without(self, key: Option<&Secret>) -> Self {
        match key {
            Some(key) => Self { words: key.redact(self.words), ..self },
            None => self,
        }
    }

    /// The failure as the loop is told, its words cut if they are long: what had arrived stands in the transcript if the run ends with it,
    /// and more of the words with it.
    pub(super) fn into_failure(self, partial: AssistantMessage) -> Failure {
        let words = match beginning(&self.words) {
            all if all.len() == self.words.len() => self.words,
            some => format!("{some}…"),
        };
        let had_text =
            partial.content.iter().any(|block| matches!(block, Block::Text(text) if !text.trim().is_empty()));
        let failure = Failure::new(self.kind, &words);
        Failure {
            retry_after_ms: self.retry_after_ms.or(failure.retry_after_ms),
            had_text,
            usage: partial.usage,
            partial: Some(Box::new(AssistantMessage {
                stop_reason: StopReason::Error,
                error_message: Some(words),
                ..partial
            })),
            ..failure
        }
    }
}

/// As much of a provider's words as is kept, and as is judged.
pub(super) fn beginning(words: &str) -> &str {
    let end = (0..=WORDS_BYTES_MAX.min(words.len())).rev().find(|&at| words.is_char_boundary(at));
    end.and_then(|end| words.get(..end)).unwrap_or_default()
}
