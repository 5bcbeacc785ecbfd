//! The model's context, kept while a run is driven and rebuilt from the journal when it is taken over.
//!
//! Owns which messages the next request holds. A resume reads the context, never the history before it.

use std::sync::Arc;

use model::phase::EntryRef;
use model::{Block, Message, RunId};

use crate::fold::Entry;
use crate::harness::default_conversion;
use crate::provider::Prepared;
use crate::tool::output::capped;

/// One message of the context.
#[derive(Clone, Debug)]
struct Slot {
    at: EntryRef,
    whole: Arc<Prepared>,
    /// As the model sees it by default; none: not at all.
    seen: Option<Arc<Prepared>>,
}

/// The context of one run.
#[derive(Debug, Default)]
pub(crate) struct Context {
    slots: Vec<Slot>,
}

impl Context {
    /// Starts again with messages that a record put in place of everything before.
    pub(crate) fn replace(&mut self, run: RunId, seq: u64, base: &[Message], first_kept: Option<EntryRef>) {
        let keeps_from = first_kept.and_then(|first| self.slots.iter().position(|slot| slot.at == first));
        let kept = keeps_from.map_or_else(Vec::new, |index| self.slots.split_off(index));
        self.slots.clear();
        for (n, message) in (0u32..).zip(base) {
            self.push_message(EntryRef { run, seq, n }, Arc::new(message.clone()));
        }
        self.slots.extend(kept);
    }

    /// Appends what entered the transcript.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.push_message(entry.at, entry.message);
    }

    fn push_message(&mut self, at: EntryRef, message: Arc<Message>) {
        let whole = Arc::new(prepare(Message::clone(&message)));
        let seen = match message.as_ref() {
            Message::Custom(_) => default_conversion(&message).map(|message| Arc::new(prepare(message))),
            Message::User(_) | Message::Assistant(_) | Message::ToolResult(_) => Some(Arc::clone(&whole)),
        };
        self.slots.push(Slot { at, whole, seen });
    }

    /// Every entry, in order.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        let entry = |slot: Slot| Entry { at: slot.at, message: Arc::new(slot.whole.message.clone()) };
        self.slots.into_iter().map(entry).collect()
    }

    /// Every message, as stored.
    pub(crate) fn whole(&self) -> Vec<Arc<Prepared>> {
        self.slots.iter().map(|slot| Arc::clone(&slot.whole)).collect()
    }

    /// Names of the tools that were called, oldest first, with repetitions.
    pub(crate) fn called(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().flat_map(|slot| {
            match &slot.whole.message {
                Message::Assistant(answer) => Some(answer.calls().map(|call| call.name.as_str())),
                Message::User(_) | Message::ToolResult(_) | Message::Custom(_) => None,
            }
            .into_iter()
            .flatten()
        })
    }

    /// The messages as the model sees them by default.
    pub(crate) fn seen(&self) -> Vec<Arc<Prepared>> {
        self.slots.iter().filter_map(|slot| slot.seen.clone()).collect()
    }

    /// Where a summary may end: the newest message from which on at most half of the messages stay, and that is not
    /// a tool result. None if there is nothing to summarise.
    pub(crate) fn cut_point(&self) -> Option<EntryRef> {
        let half = self.slots.len() / 2;
        let is_cut = |slot: &&Slot| !matches!(slot.whole.message, Message::ToolResult(_));
        self.slots.get(half.max(1)..)?.iter().find(is_cut).map(|slot| slot.at)
    }

    /// The messages before `first_kept`.
    pub(crate) fn before(&self, first_kept: EntryRef) -> Vec<Arc<Prepared>> {
        self.slots
            .iter()
            .take_while(|slot| slot.at != first_kept)
            .map(|slot| Arc::clone(&slot.whole))
            .collect()
    }

    /// A tool result of the context could be cut.
    pub(crate) fn has_large_results(&self) -> bool {
        self.slots.iter().any(|slot| match &slot.whole.message {
            Message::ToolResult(message) => message.result.content.iter().any(is_large),
            Message::User(_) | Message::Assistant(_) | Message::Custom(_) => false,
        })
    }

    /// True if the transcript ends in network content that no user message has followed.
    pub(crate) fn is_tainted(&self) -> bool {
        self.slots
            .iter()
            .rev()
            .find_map(|slot| match &slot.whole.message {
                Message::User(_) => Some(false),
                Message::Assistant(message) => message.is_tainted.then_some(true),
                Message::ToolResult(message) => message.result.is_network.then_some(true),
                Message::Custom(_) => None,
            })
            .unwrap_or(false)
    }
}

/// A text of a tool result that is cut when the context does not fit the model, in bytes.
const LARGE_TEXT_BYTES: usize = 16 << 10;
/// What is kept of such a result, in bytes: 2,000 characters and more of nearly every text.
const KEPT_BYTES: usize = 4 << 10;

/// The message with the middle of its text left out, if it is a large tool result. The transcript keeps the whole.
pub(crate) fn cut_result(prepared: &Arc<Prepared>) -> Arc<Prepared> {
    let Message::ToolResult(message) = &prepared.message else { return Arc::clone(prepared) };
    if !message.result.content.iter().any(is_large) {
        return Arc::clone(prepared);
    }
    let mut message = message.clone();
    message.result = capped(message.result, KEPT_BYTES);
    Arc::new(prepare(Message::ToolResult(message)))
}

fn is_large(block: &Block) -> bool {
    matches!(block, Block::Text(text) if text.len() > LARGE_TEXT_BYTES)
}

/// A message with the hash of its stored bytes.
pub(crate) fn prepare(message: Message) -> Prepared {
    let bytes = postcard::to_stdvec(&message).unwrap_or_default();
    Prepared { message, hash: *blake3::hash(&bytes).as_bytes() }
}

#[cfg(test)]
mod tests {
    use model::message::ToolResultMessage;
    use model::{Millis, ToolResult};

    use super::*;

    fn result(text: String) -> Arc<Prepared> {
        let (call_id, tool) = ("call-0-0".to_owned(), "read".to_owned());
        let message = ToolResultMessage { call_id, tool, result: ToolResult::text(text), at: Millis(0) };
        Arc::new(prepare(Message::ToolResult(Box::new(message))))
    }

    #[test]
    fn only_a_large_result_is_cut_and_both_its_ends_stay() {
        let small = result("é".repeat(LARGE_TEXT_BYTES / 2));
        assert_eq!(cut_result(&small), small);
        let large = result(format!("begin{}end", "é".repeat(LARGE_TEXT_BYTES)));
        let cut = cut_result(&large);
        let text = cut.message.joined_text();
        assert!(text.starts_with("begin") && text.ends_with("end") && text.len() <= KEPT_BYTES, "{text}");
        assert_ne!(cut.hash, large.hash);
        assert_eq!(cut_result(&cut), cut);
    }
}
