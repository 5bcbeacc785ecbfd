//! What the loop does to an answer before it counts.
//!
//! Owns the rules that make an answer fit the transcript: only an answer that asks for tools keeps its calls, ids are
//! unique, a turn has an identity, taint is marked. It must never change text.

use crate::ids::RunId;
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

/// The identity of a turn without a response id: derived from the run and the turn's ordinal, in the form of a UUID.
pub fn turn_id(run: RunId, turn: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.0).update(&turn.to_le_bytes());
    let hex = hasher.finalize().to_hex();
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!("{}-{}-8{}-8{}-{}", part(0..8), part(8..12), part(12..15), part(15..18), part(18..30))
}

fn is_call(block: &Block) -> bool {
    match block {
        Block::ToolCall(_) => true,
        Block::Text(_) | Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => false,
    }
}

/// A call whose id was used before in the same answer gets the first free `id~N`, from 2.
fn rename_duplicates(content: &mut [Block]) {
    let mut seen: Vec<String> = Vec::new();
    for block in content {
        let Block::ToolCall(call) = block else { continue };
        if seen.contains(&call.id) {
            let free = (2u32..).map(|n| format!("{}~{n}", call.id)).find(|id| !seen.contains(id));
            call.id = free.unwrap_or_else(|| call.id.clone());
            call.is_duplicate = true;
        }
        seen.push(call.id.clone());
    }
}
