//! What the loop does to an answer before it counts.
//!
//! Owns the rules that make an answer fit the transcript: only an answer that asks for tools keeps its calls,
//! ids are unique, a turn has an identity, taint is marked. It also tells an answer from what only looks like
//! one. It must never change text.

use crate::ids::RunId;
use crate::input::{Failure, FailureKind};
use crate::message::{AssistantMessage, Block, StopReason};
use crate::state::RunState;

/// The answer as it enters the transcript of a run in `state`.
pub fn settle(state: &RunState, turn: u32, mut message: AssistantMessage) -> AssistantMessage {
    if message.stop_reason != StopReason::ToolUse {
        message.content.retain(|block| !is_call(block));
    }
    rename_duplicates(&mut message.content);
    let is_blank = |id: &Option<String>| id.as_deref().is_none_or(|id| id.trim().is_empty());
    if message.stop_reason == StopReason::ToolUse
        && is_blank(&message.response_id)
        && is_blank(&message.turn_id)
    {
        message.turn_id = Some(turn_id(state.core.run, turn));
    }
    message.is_tainted |= state.core.is_tainted;
    message
}

/// Only an answer that asks for tools has calls, and each has an id of its own: every call can get its
/// result.
pub fn is_settled(message: &AssistantMessage) -> bool {
    let mut ids: Vec<&str> = message.calls().map(|call| call.id.as_str()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    ids.len() == count && (count == 0 || message.stop_reason == StopReason::ToolUse)
}

/// The failure that a settled answer really is: it ended in an error, or brought neither a call nor anything that
/// can be seen. A stream that ends without any answer is the caller's to report as missing.
pub fn unusable(message: &AssistantMessage) -> Option<Failure> {
    let has_text = message.content.iter().any(is_visible);
    let kind = match message.stop_reason {
        StopReason::Aborted => return None,
        StopReason::Error => FailureKind::Unknown,
        StopReason::Stop | StopReason::Length | StopReason::ToolUse => {
            if has_text || message.calls().next().is_some() {
                return None;
            }
            let has_reasoning = message.content.iter().any(is_reasoning);
            if has_reasoning { FailureKind::ReasoningOnly } else { FailureKind::Empty }
        }
    };
    let words = message.error_message.as_deref().unwrap_or_default();
    let is_error = message.stop_reason == StopReason::Error;
    Some(Failure {
        had_text: has_text,
        usage: message.usage,
        partial: is_error.then(|| Box::new(message.clone())),
        ..Failure::new(kind, words)
    })
}

/// The identity of a turn without a response id: derived from the run and the turn's ordinal, in the form of
/// a UUID.
pub fn turn_id(run: RunId, turn: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.0).update(&turn.to_le_bytes());
    let hex = hasher.finalize().to_hex();
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!("{}-{}-8{}-8{}-{}", part(0..8), part(8..12), part(12..15), part(15..18), part(18..30))
}

fn is_visible(block: &Block) -> bool {
    match block {
        Block::Text(text) => !text.trim().is_empty(),
        Block::Image { .. } | Block::Other(_) => true,
        Block::Thinking { .. } | Block::ToolCall(_) => false,
    }
}

fn is_reasoning(block: &Block) -> bool {
    match block {
        Block::Thinking { text, .. } => !text.trim().is_empty(),
        Block::Text(_) | Block::Image { .. } | Block::Other(_) | Block::ToolCall(_) => false,
    }
}

fn is_call(block: &Block) -> bool {
    match block {
        Block::ToolCall(_) => true,
        Block::Text(_) | Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => false,
    }
}

/// A call whose id was used before in the same answer gets the first free `id~N`, from 2. An id that the
/// model itself gave to another call is not free.
fn rename_duplicates(content: &mut [Block]) {
    let mut taken: Vec<String> = content.iter().filter_map(call_id).collect();
    let mut seen: Vec<String> = Vec::new();
    for block in content {
        let Block::ToolCall(call) = block else { continue };
        if seen.contains(&call.id) {
            let free = (2u32..).map(|n| format!("{}~{n}", call.id)).find(|id| !taken.contains(id));
            call.id = free.unwrap_or_else(|| call.id.clone());
            call.is_duplicate = true;
            taken.push(call.id.clone());
        }
        seen.push(call.id.clone());
    }
}

fn call_id(block: &Block) -> Option<String> {
    match block {
        Block::ToolCall(call) => Some(call.id.clone()),
        Block::Text(_) | Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{JsonText, Label, Millis};
    use crate::input::Submission;
    use crate::message::{ToolCall, Usage};
    use crate::state::{Limits, Owner, Wants};

    fn state() -> RunState {
        let submission = Submission {
            run: RunId([7; 16]),
            owner: Owner::default(),
            session: String::new(),
            prompts: Vec::new(),
            base: Vec::new(),
            model: Label::from(""),
            thinking: Label::from(""),
            wants: Wants::default(),
            limits: Limits::default(),
            job: JsonText::empty(),
        };
        RunState::new(&submission, Millis(0))
    }

    fn answer(stop_reason: StopReason, ids: &[&str]) -> AssistantMessage {
        let call = |id: &&str| {
            Block::ToolCall(ToolCall {
                id: (*id).to_owned(),
                name: "read".to_owned(),
                arguments: JsonText::empty(),
                is_duplicate: false,
            })
        };
        let text = Block::Text("look".to_owned());
        AssistantMessage {
            content: std::iter::once(text).chain(ids.iter().map(call)).collect(),
            api: String::new(),
            provider: String::new(),
            model: String::new(),
            response_id: None,
            turn_id: None,
            usage: Usage::default(),
            stop_reason,
            error_message: None,
            is_tainted: false,
            at: Millis(0),
        }
    }

    fn settled_ids(ids: &[&str]) -> Vec<(String, bool)> {
        let settled = settle(&state(), 0, answer(StopReason::ToolUse, ids));
        settled.calls().map(|call| (call.id.clone(), call.is_duplicate)).collect()
    }

    #[test]
    fn only_an_answer_that_asks_for_tools_keeps_its_calls() {
        for stop_reason in [StopReason::Stop, StopReason::Length, StopReason::Error, StopReason::Aborted] {
            let settled = settle(&state(), 0, answer(stop_reason, &["a"]));
            assert_eq!(settled, answer(stop_reason, &[]));
        }
    }

    #[test]
    fn a_repeated_id_is_renamed_and_another_call_keeps_its_own() {
        let owned = |ids: &[(&str, bool)]| -> Vec<(String, bool)> {
            ids.iter().map(|(id, is_duplicate)| ((*id).to_owned(), *is_duplicate)).collect()
        };
        assert_eq!(settled_ids(&["a", "b"]), owned(&[("a", false), ("b", false)]));
        assert_eq!(settled_ids(&["a", "a", "a"]), owned(&[("a", false), ("a~2", true), ("a~3", true)]));
        assert_eq!(settled_ids(&["a", "a", "a~2"]), owned(&[("a", false), ("a~3", true), ("a~2", false)]));
    }

    #[test]
    fn every_answer_is_settled_once_it_went_through() {
        for (stop_reason, ids) in
            [(StopReason::Stop, vec!["a"]), (StopReason::ToolUse, vec!["a", "a", "a~2"])]
        {
            assert!(!is_settled(&answer(stop_reason, &ids)));
            assert!(is_settled(&settle(&state(), 0, answer(stop_reason, &ids))));
        }
    }

    #[test]
    fn a_turn_without_a_response_id_gets_an_identity_that_does_not_change() {
        let settled = |turn, message| settle(&state(), turn, message).turn_id;
        let first = settled(0, answer(StopReason::ToolUse, &["a"]));
        assert_eq!(first, settled(0, answer(StopReason::ToolUse, &["b"])));
        assert_ne!(first, settled(1, answer(StopReason::ToolUse, &["a"])));
        let named =
            AssistantMessage { response_id: Some("r".to_owned()), ..answer(StopReason::ToolUse, &["a"]) };
        assert_eq!(settled(0, named), None);
        let blank = AssistantMessage {
            response_id: Some(" ".to_owned()),
            turn_id: Some("t".to_owned()),
            ..answer(StopReason::ToolUse, &["a"])
        };
        assert_eq!(settled(0, blank), Some("t".to_owned()));
        assert_eq!(settled(0, answer(StopReason::Stop, &[])), None);
    }

    #[test]
    fn an_answer_that_nobody_can_read_is_a_failure() {
        let with =
            |stop_reason, content: Vec<Block>| AssistantMessage { content, ..answer(stop_reason, &[]) };
        let kind = |message: &AssistantMessage| unusable(message).map(|failure| failure.kind);
        let thinking = || Block::Thinking { text: "hm".to_owned(), signature: None };
        let blank = || Block::Text(" \n".to_owned());
        assert_eq!(kind(&answer(StopReason::Stop, &[])), None);
        assert_eq!(kind(&answer(StopReason::ToolUse, &["a"])), None);
        assert_eq!(kind(&with(StopReason::Stop, vec![])), Some(FailureKind::Empty));
        assert_eq!(kind(&with(StopReason::Length, vec![blank()])), Some(FailureKind::Empty));
        assert_eq!(kind(&with(StopReason::ToolUse, vec![])), Some(FailureKind::Empty));
        assert_eq!(
            kind(&with(StopReason::Stop, vec![thinking(), blank()])),
            Some(FailureKind::ReasoningOnly)
        );
        assert_eq!(kind(&with(StopReason::Aborted, vec![])), None);
        let broken =
            AssistantMessage { error_message: Some("it broke".to_owned()), ..answer(StopReason::Error, &[]) };
        let failure = Failure {
            had_text: true,
            partial: Some(Box::new(broken.clone())),
            ..Failure::new(FailureKind::Unknown, "it broke")
        };
        assert_eq!(unusable(&broken), Some(failure));
    }

    #[test]
    fn an_answer_is_tainted_as_its_turn_is() {
        let mut tainted = state();
        tainted.core.is_tainted = true;
        assert!(settle(&tainted, 0, answer(StopReason::Stop, &[])).is_tainted);
        assert!(!settle(&state(), 0, answer(StopReason::Stop, &[])).is_tainted);
    }
}
