//! The scenarios of `tests/cases/loop-traces.jsonl`.

use engine::provider::UpdateKind;
use model::ToolResult;
use model::input::{Hook, NextTurn};
use model::message::StopReason;
use serde_json::json;

use crate::check;
use crate::harness::{script, user};
use crate::parts::{Answer, calls, text, tool};

fn y() -> Vec<crate::parts::Body> {
    vec![tool("t", "y")]
}

#[test]
fn plain_text() {
    check(
        script("01 plain text")
            .polls()
            .hooks(&[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .model([text("a")]),
    );
}

#[test]
fn two_tools_at_once() {
    check(
        script("03 two tools parallel (second finishes first)")
            .polls()
            .shows_tools()
            .tools([tool("slow", "s").waits_for("tool_end(2"), tool("fast", "f")])
            .model([calls(&[("1", "slow"), ("2", "fast")]), text("end")]),
    );
}

#[test]
fn one_sequential_tool_makes_the_batch_sequential() {
    check(
        script("04b tool-level executionMode=sequential forces whole batch")
            .polls()
            .shows_calls()
            .tools([tool("s", "s").sequential(), tool("p", "s")])
            .model([calls(&[("1", "p"), ("2", "s")]), text("end")]),
    );
}

#[test]
fn steering_found_when_a_call_is_ready() {
    check(
        script("06 sequential, steering seen after preparation of 1st call")
            .sequential()
            .steering(&[&[], &[], &["steer"]])
            .hooks(&[Hook::ShouldStopAfterTurn])
            .answer("HOOK:shouldStopAfterTurn()", Answer::Stop)
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "t")]), text("end")]),
    );
}

#[test]
fn steering_found_before_the_launch() {
    check(
        script("08 parallel checkpoint steering")
            .steering(&[&[], &["steer"]])
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "nope"), ("3", "t")]), text("end")]),
    );
}

#[test]
fn late_steering() {
    check(
        script("09b late steering at final poll after empty follow-up poll")
            .steering(&[&[], &[], &["late"]])
            .model([text("a"), text("b")]),
    );
}

#[test]
fn abort_while_steering_is_shown() {
    check(
        script("10b abort while injecting initial steering")
            .steering(&[&["steer"]])
            .abort_at("message_start(user:steer)", "why"),
    );
}

#[test]
fn the_stream_says_aborted_by_itself() {
    check(
        script("10d stream reports aborted but signal not aborted")
            .polls()
            .model([text("par").stop_reason(StopReason::Aborted)]),
    );
}

#[test]
fn abort_during_the_first_of_three() {
    check(
        script("10f abort during 1st of 3 sequential tools")
            .sequential()
            .polls()
            .abort_at("EXEC 1", "stopped")
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "t"), ("3", "t")])]),
    );
}

#[test]
fn abort_while_two_run() {
    check(
        script("10h abort during parallel execution; tool throws signal.reason")
            .polls()
            .hooks(&[Hook::AfterToolCall])
            .abort_at("EXEC 2", "boom")
            .tools([tool("waits", "").waits_for_cancel().fails("boom"), tool("t", "").fails("boom")])
            .model([calls(&[("1", "waits"), ("2", "t")])]),
    );
}

#[test]
fn abort_in_the_stop_hook() {
    check(
        script("10j abort in shouldStopAfterTurn returning false")
            .polls()
            .hooks(&[Hook::ShouldStopAfterTurn])
            .abort_at("HOOK:shouldStopAfterTurn()", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_an_empty_follow_up_poll() {
    check(
        script("10l abort in follow-up poll returning none")
            .polls()
            .abort_at("POLL:followup -> 0", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_the_batch_hook() {
    check(
        script("10n abort after batch validation (beforeToolBatch aborts)")
            .polls()
            .hooks(&[Hook::BeforeToolBatch, Hook::BeforeToolCall])
            .abort_at("HOOK:beforeToolBatch(1,3)", "This operation was aborted")
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "nope"), ("3", "t")])]),
    );
}

#[test]
fn abort_in_the_batch_hook_unknown_first() {
    check(
        script("10o batch hook aborts; unknown tool is first")
            .polls()
            .hooks(&[Hook::BeforeToolBatch, Hook::BeforeToolCall])
            .abort_at("HOOK:beforeToolBatch(2)", "This operation was aborted")
            .tools(y())
            .model([calls(&[("1", "nope"), ("2", "t")])]),
    );
}

#[test]
fn abort_before_the_batch() {
    check(
        script("10q abort before batch (during stream end) with sequential mode")
            .sequential()
            .polls()
            .abort_at("message_end(assistant:toolUse+calls)", "x")
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "t")])]),
    );
}

#[test]
fn the_model_fails() {
    check(
        script("11b streamFn throws (runAgentLoop rejects)")
            .polls()
            .model([crate::parts::Reply::Fails("net")]),
    );
}

#[test]
fn parts_of_an_answer() {
    use UpdateKind::{TextDelta, TextEnd, TextStart};
    check(
        script("11d stream with deltas")
            .polls()
            .model([text("ab").parts(&[TextStart, TextDelta, TextDelta, TextEnd])]),
    );
}

#[test]
fn calls_of_a_stopped_answer() {
    check(
        script("12b stop with tool call").polls().model([calls(&[("1", "t")]).stop_reason(StopReason::Stop)]),
    );
}

#[test]
fn every_result_terminates() {
    check(
        script("13a all results terminate")
            .polls()
            .tools([tool("t", "y").terminates()])
            .model([calls(&[("1", "t"), ("2", "t")])]),
    );
}

#[test]
fn a_follow_up_revives() {
    check(
        script("13c terminate + follow-up")
            .follow_up(&[&["fu"]])
            .tools([tool("t", "y").terminates()])
            .model([calls(&[("1", "t")]), text("end")]),
    );
}

#[test]
fn a_failed_last_look_keeps_the_wish_to_end() {
    check(
        script("13d afterToolOutcome throws but terminate survives")
            .polls()
            .hooks(&[Hook::AfterToolOutcome])
            .answer("HOOK:afterToolOutcome(1)", Answer::Fails("ao"))
            .tools([tool("t", "y").terminates()])
            .model([calls(&[("1", "t")])]),
    );
}

#[test]
fn an_intervention_then_recovery() {
    check(
        script("14b intervention then recovery")
            .polls()
            .hooks(&[Hook::BeforeToolBatch])
            .answer("HOOK:beforeToolBatch(1)", Answer::Circles(0))
            .tools(y())
            .model([calls(&[("1", "t")]), calls(&[("2", "t")]), text("fine")]),
    );
}

#[test]
fn a_healthy_batch_behind_its_hook() {
    check(
        script("15c commit/launch order in a healthy parallel batch")
            .polls()
            .shows_calls()
            .hooks(&[Hook::BeforeToolBatch])
            .tools(y())
            .model([calls(&[("1", "t"), ("2", "t")]), text("e")]),
    );
}

#[test]
fn another_context() {
    let next = NextTurn { context: Some(vec![user("new")]), ..NextTurn::default() };
    check(
        script("16 prepareNextTurn replaces context")
            .polls()
            .hooks(&[Hook::PrepareNextTurn])
            .answer("HOOK:prepareNextTurn()", Answer::Next(next))
            .tools(y())
            .model([calls(&[("1", "t")]), text("e")]),
    );
}

#[test]
fn every_way_not_to_run() {
    let names = ["nope", "req", "t", "t", "t", "bang", "str"];
    let ids = ["1", "2", "3", "4", "5", "6", "7"];
    let named: Vec<(&str, &str)> = ids.into_iter().zip(names).collect();
    let required =
        json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "number" } } });
    check(
        script(
            "18 unknown / invalid / blocked / blocked-default / hook-throws / tool-throws / throws-string",
        )
        .polls()
        .hooks(&[Hook::BeforeToolCall, Hook::AfterToolCall, Hook::AfterToolOutcome])
        .answer("HOOK:beforeToolCall(3)", Answer::Block("no!"))
        .answer("HOOK:beforeToolCall(4)", Answer::Block(""))
        .answer("HOOK:beforeToolCall(5)", Answer::Fails("hookfail"))
        .tools([
            tool("req", "").parameters(required),
            tool("t", "y"),
            tool("bang", "").fails("bang"),
            tool("str", "").fails("str"),
        ])
        .model([calls(&named), text("e")]),
    );
}

#[test]
fn tools_found_when_called() {
    check(
        script("18c deferred tool resolver: ok / wrong name / throws")
            .polls()
            .deferred(|name| match name {
                "late" => Ok(Some(tool("late", "y"))),
                "wrong" => Ok(Some(tool("other", ""))),
                _ => Err("resolver".to_owned()),
            })
            .model([calls(&[("1", "late"), ("2", "wrong"), ("3", "broken")]), text("e")]),
    );
}

#[test]
fn a_withdrawn_prompt() {
    check(
        script("19b queued-cancel: prompt cancelled between start and end")
            .prompts(&["p1"])
            .withdrawn(&["p1"]),
    );
}

#[test]
fn equal_ids() {
    check(
        script("20 duplicate call ids")
            .polls()
            .shows_calls()
            .hooks(&[Hook::BeforeToolBatch])
            .tools(y())
            .model([calls(&[("1", "t"), ("1", "t")]), text("e")]),
    );
}

#[test]
fn updates_of_a_tool() {
    check(
        script("22 tool updates after completion are ignored")
            .polls()
            .tools([tool("t", "y").updates(2)])
            .model([calls(&[("1", "t")]), text("e")]),
    );
}

#[test]
fn a_tool_that_answers_before_it_runs() {
    let answer = ToolResult::text("imm").with_details(&json!({ "a": 1 }));
    check(
        script("24 preparer returns immediate result (not started)")
            .polls()
            .hooks(&[Hook::AfterToolCall, Hook::AfterToolOutcome])
            .tools([tool("t", "y").prepares(Ok(answer))])
            .model([calls(&[("1", "t")]), text("e")]),
    );
}

#[test]
fn identity_of_turns() {
    check(
        script("27 turn identity: no responseId -> turnId added; responseId or own turnId present -> not; non-toolUse -> not")
            .polls()
            .tools(y())
            .model([
                calls(&[("1", "t")]).ids(None, None),
                calls(&[("2", "t")]),
                calls(&[("3", "t")]).ids(Some(" "), Some("own")),
                text("z").ids(None, None),
            ]),
    );
}

#[test]
fn a_bare_transcript_goes_on() {
    check(script("A1 continue from user-last").continues(vec![user("hi")]).model([text("a")]));
}

#[test]
fn an_answer_cannot_be_continued() {
    check(script("A3 continue rejected: assistant-last").continues(vec![user("hi"), text("a").message()]));
}

#[test]
fn a_follow_up_after_a_result() {
    let base = vec![user("u"), calls(&[("1", "t")]).message(), crate::harness::result("1", "t", "y")];
    check(script("A5 toolResult-last with queued follow-up").base(base).prompts(&["f1"]).model([text("b")]));
}

#[test]
fn an_abort_then_a_continuation() {
    check(
        script("A7 abort inside Agent then continue is accepted (custom-last)")
            .then_continues()
            .abort_at("EXEC 1", "This operation was aborted")
            .tools(y())
            .model([calls(&[("1", "t")]), text("resumed")]),
    );
}

#[test]
fn a_sink_that_fails_while_steering_is_shown() {
    check(
        script("A11 drained but uncommitted steering restored after failure")
            .steering(&[&["s1"]])
            .sink_fails_at("message_start(user:s1)"),
    );
}
