//! Plausible facts, from few words.

use model::guard::loops::{ToolKind, call_facts};
use model::input::{
    Admission, CallPlan, CallVerdict, DrainedItem, Fact, Failure, FailureKind, Intervention, RecoveryClass,
    Request, Routes,
};
use model::message::{AssistantMessage, StopReason, ToolCall, Usage};
use model::{Block, JsonText, Label, ToolResult};

use super::{START, number};

/// The lane is free.
pub(crate) fn admitted(is_tainted: bool) -> Fact {
    Fact::Admitted(Box::new(Admission { is_tainted, ..Admission::default() }))
}

/// `3` a user message at position 3, `3c` a custom one, `3-` a withdrawn one.
pub(crate) fn drained(words: &[&str]) -> Fact {
    let item = |word: &&str| DrainedItem {
        position: number(word.trim_end_matches(['c', '-'])),
        is_user: !word.contains('c'),
        is_withdrawn: word.contains('-'),
    };
    Fact::Drained { items: words.iter().map(item).collect() }
}

/// The intent of a call that may use so many tokens.
pub(crate) fn prepared(tokens: u64) -> Fact {
    Fact::RequestPrepared(Request {
        hash: [3; 32],
        converter_version: 1,
        edits: None,
        profile: 0,
        reserve: Usage { output: tokens, ..Usage::default() },
    })
}

/// `text`, `length`, `error`, `aborted`, `calls 3` or `repeated 3` (all with the same id).
pub(crate) fn answer(words: &[&str]) -> AssistantMessage {
    let count = words.get(1).map_or(0, |word| number(word));
    let (stop_reason, content) = match words[0] {
        "text" => (StopReason::Stop, vec![Block::Text("done".to_owned())]),
        "length" => (StopReason::Length, calls(count.max(1), "c")),
        "error" => (StopReason::Error, vec![Block::Text(String::new())]),
        "aborted" => (StopReason::Aborted, vec![Block::Text(String::new())]),
        "calls" => (StopReason::ToolUse, calls(count, "c")),
        "repeated" => (StopReason::ToolUse, calls(count, "")),
        other => panic!("no answer is called `{other}`"),
    };
    let is_failed = stop_reason == StopReason::Error || stop_reason == StopReason::Aborted;
    AssistantMessage {
        content,
        api: "rehearsal".to_owned(),
        provider: "rehearsal".to_owned(),
        model: "rehearsal".to_owned(),
        response_id: None,
        turn_id: None,
        usage: Usage { input: 10, output: 5, ..Usage::default() },
        stop_reason,
        error_message: is_failed.then(|| "it broke".to_owned()),
        is_tainted: false,
        at: START,
    }
}

fn calls(count: u64, prefix: &str) -> Vec<Block> {
    let call = |index: u64| {
        Block::ToolCall(ToolCall {
            id: if prefix.is_empty() { "same".to_owned() } else { format!("{prefix}{index}") },
            name: "read".to_owned(),
            arguments: JsonText::empty(),
            is_duplicate: false,
        })
    };
    (0..count).map(call).collect()
}

/// `rate_limit`, `rate_limit after=45000`, `idle text`.
pub(crate) fn failed(words: &[&str]) -> Fact {
    let kind = FailureKind::ALL.into_iter().find(|kind| kind.name() == words[0]).expect("a kind of failure");
    let after = words.iter().find_map(|word| word.strip_prefix("after=")).map(number);
    Fact::ModelFailed { failure: failure(kind, after, words.contains(&"text")), routes: Routes::default() }
}

/// A failure without an answer of its own.
pub(crate) fn failure(kind: FailureKind, retry_after_ms: Option<u64>, had_text: bool) -> Failure {
    Failure {
        kind,
        message: Label::from("the provider's words"),
        retry_after_ms,
        had_text,
        usage: Usage::default(),
        partial: None,
    }
}

/// One word a call: its verdict, and after a colon what it is about (`valid:a` and `valid:a` ask for the
/// same). The last word is repeated for the rest of the answer's calls; `sequential` may come first.
pub(crate) fn batch(words: &[&str], total: u32) -> Fact {
    let is_sequential = words.first() == Some(&"sequential");
    let words = if is_sequential { &words[1..] } else { words };
    let last = words.last().copied().unwrap_or("valid");
    let kept = usize::try_from(total).expect("few calls").min(model::limits::CALLS_MAX);
    let calls = (0..kept).map(|index| plan(index, words.get(index).copied().unwrap_or(last))).collect();
    Fact::BatchAdmitted { calls, total, is_sequential }
}

/// One call as planned.
pub(crate) fn plan(index: usize, word: &str) -> CallPlan {
    let (verdict, about) = word.split_once(':').unwrap_or((word, ""));
    let about = if about.is_empty() { format!("call {index}") } else { about.to_owned() };
    let verdict = match verdict {
        "valid" | "command" => CallVerdict::Valid,
        "missing" => CallVerdict::Unknown,
        "invalid" => CallVerdict::Invalid("Validation failed for tool \"read\":".to_owned()),
        "refused" => CallVerdict::Refused("it cannot be prepared".to_owned()),
        "duplicate" => CallVerdict::Duplicate,
        "immediate" => CallVerdict::Immediate(ToolResult::text("at once")),
        other => panic!("no verdict is called `{other}`"),
    };
    CallPlan {
        id: Label::from(format!("c{index}").as_str()),
        tool: Label::from("read"),
        facts: call_facts("read", &serde_json::json!({ "about": about }), ToolKind::Plain),
        class: if word.starts_with("command") { RecoveryClass::Adoptable } else { RecoveryClass::AtMostOnce },
        verdict,
    }
}

/// What a batch hook says of a critical loop.
pub(crate) fn intervention() -> Intervention {
    Intervention { call: 0, reason: "It goes in circles.".to_owned(), details: JsonText::empty() }
}
