//! What goes wrong with a call, before it is told to the loop.
//!
//! Owns the words of a failure and their bounds. It must never decide what follows from one.

use model::Block;
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};

/// The most bytes kept of a provider's words.
pub(super) const WORDS_BYTES_MAX: usize = 2 << 10;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Which kind of failure.
    pub(super) kind: FailureKind,
    /// What the provider said of it, or what was found, bounded.
    pub(super) words: String,
    /// What the provider asked to wait, in milliseconds.
    pub(super) retry_after_ms: Option<u64>,
}

impl Fault {
    /// A failure in words, which are cut if they are long.
    pub(super) fn new(kind: FailureKind, words: impl Into<String>) -> Self {
        let mut words: String = words.into();
        if words.len() > WORDS_BYTES_MAX {
            let end = (0..=WORDS_BYTES_MAX).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
            words.truncate(end);
            words.push('…');
        }
        Self { kind, words, retry_after_ms: None }
    }

    /// The server sent what its protocol does not have.
    pub(super) fn broken(words: impl std::fmt::Display) -> Self {
        Self::new(FailureKind::ServerError, format!("the server sent {words}"))
    }

    /// The failure as the loop is told: what had arrived stands in the transcript if the run ends with it,
    /// and the whole words with it.
    pub(super) fn into_failure(self, partial: AssistantMessage) -> Failure {
        let had_text =
            partial.content.iter().any(|block| matches!(block, Block::Text(text) if !text.trim().is_empty()));
        let failure = Failure::new(self.kind, &self.words);
        Failure {
            retry_after_ms: self.retry_after_ms.or(failure.retry_after_ms),
            had_text,
            usage: partial.usage,
            partial: Some(Box::new(AssistantMessage {
                stop_reason: StopReason::Error,
                error_message: Some(self.words),
                ..partial
            })),
            ..failure
        }
    }
}
