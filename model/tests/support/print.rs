//! What a run shows, as one line: phase; effects; marks. A result or message that the step made follows on
//! its own line.

use model::effect::needs_barrier;
use model::guard::retry::Decision;
use model::input::HookCall;
use model::{Content, Effect, Mark, Message, Moved, Phase, RunState, Source, ToolResult};

use super::HOOKS;

/// The lines of one step.
pub(crate) fn step(before: &RunState, after: &RunState, moved: &Moved) -> String {
    let barrier = if needs_barrier(&before.effects(), after) { "barrier, " } else { "" };
    let effects: Vec<String> = after.effects().iter().map(effect).collect();
    let effects = if effects.is_empty() { "nothing".to_owned() } else { effects.join(", ") };
    let mut lines = format!("< {}; {barrier}{effects}; {}\n", after.core.phase, marks(&moved.marks));
    if let Some(Decision { branch, action }) = &moved.decision {
        lines += &format!("  decided {}: {action:?}\n", branch.name());
        if let Phase::Done { reason: Some(reason), .. } = &after.core.phase {
            lines += &format!("  because {reason}\n");
        }
    }
    for made in &moved.made {
        lines += &format!("  made {}\n", message(made));
    }
    let results = moved.results.iter().map(|(call, made)| format!("result {call} {}", result(made)));
    for line in shorten(results.collect(), 6) {
        lines += &format!("  {line}\n");
    }
    lines
}

/// Of a longer list the first and the last half of `max`, and between them how many are left out.
fn shorten(mut items: Vec<String>, max: usize) -> Vec<String> {
    if items.len() > max {
        let left_out = max / 2..items.len() - max / 2;
        let note = format!("... {} more ...", left_out.len());
        items.splice(left_out, [note]);
    }
    items
}

/// One effect in few words.
pub(crate) fn effect(effect: &Effect) -> String {
    let source = |source: &Source| match source {
        Source::Prompt => "prompts",
        Source::Steering => "steering",
        Source::FollowUp => "follow_up",
    };
    match effect {
        Effect::AwaitLane => "await_lane".to_owned(),
        Effect::Poll { source: of } => format!("poll {}", source(of)),
        Effect::Drain { source: of } => format!("drain {}", source(of)),
        Effect::PrepareRequest { .. } => "prepare_request".to_owned(),
        Effect::CallModel { turn, attempt } => format!("call_model {turn}.{attempt}"),
        Effect::Sleep { until } => format!("sleep until {}", until.since(super::START)),
        Effect::ResolveBatch { .. } => "resolve_batch".to_owned(),
        Effect::RunHook(HookCall { hook, call, .. }) => {
            let name = HOOKS.iter().find(|(_, known)| known == hook).map_or("", |(name, _)| name);
            call.map_or_else(|| format!("hook {name}"), |call| format!("hook {name}.{call}"))
        }
        Effect::RunTool { call, .. } => format!("run {call}"),
        Effect::PlanCompaction => "plan_compaction".to_owned(),
        Effect::Compact { .. } => "compact".to_owned(),
        Effect::AwaitApproval { call, .. } => format!("await_approval {call}"),
        Effect::AwaitPerson => "await_person".to_owned(),
    }
}

/// Marks in order; a message that starts and ends at once is shown once.
pub(crate) fn marks(marks: &[Mark]) -> String {
    let mut words = Vec::new();
    let mut rest = marks;
    while let Some((mark, tail)) = rest.split_first() {
        rest = tail;
        words.push(match mark {
            Mark::AgentStart => "agent_start".to_owned(),
            Mark::TurnStart => "turn_start".to_owned(),
            Mark::MessageStart(of) if tail.first() == Some(&Mark::MessageEnd(*of)) => {
                rest = &tail[1..];
                format!("message({})", content(*of))
            }
            Mark::MessageStart(of) => format!("message_start({})", content(*of)),
            Mark::MessageEnd(of) => format!("message_end({})", content(*of)),
            Mark::ToolStart { call } => format!("tool_start({call})"),
            Mark::ToolEnd { call, is_started, is_invalid } => {
                let ran = if *is_started { "ran" } else { "unrun" };
                format!("tool_end({call} {ran}{})", if *is_invalid { " invalid" } else { "" })
            }
            Mark::TurnEnd => "turn_end".to_owned(),
            Mark::AgentEnd => "agent_end".to_owned(),
        });
    }
    if words.is_empty() { "-".to_owned() } else { shorten(words, 24).join(" ") }
}

fn content(content: Content) -> String {
    match content {
        Content::Prompt(index) => format!("prompt {index}"),
        Content::Inbox(position) => format!("inbox {position}"),
        Content::Opening => "opening".to_owned(),
        Content::Answer => "answer".to_owned(),
        Content::Made(index) => format!("made {index}"),
        Content::Result(call) => format!("result {call}"),
    }
}

fn message(message: &Message) -> String {
    match message {
        Message::Assistant(answer) => {
            let taint = if answer.is_tainted { " tainted" } else { "" };
            let text = answer.error_message.as_deref().unwrap_or("");
            format!("assistant {}{taint}: {}", answer.stop_reason.name(), cut(text))
        }
        Message::Custom(custom) => format!("custom {}", custom.custom_type),
        Message::User(_) | Message::ToolResult(_) => format!("{:?}", message.role()),
    }
}

fn result(result: &ToolResult) -> String {
    let kind = if result.is_error { "error" } else { "ok" };
    let terminates = if result.terminates { " terminates" } else { "" };
    format!("{kind}{terminates}: {}", cut(&result.joined_text()))
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    if line.chars().count() > 64 {
        format!("{}...", line.chars().take(64).collect::<String>())
    } else {
        line.to_owned()
    }
}
