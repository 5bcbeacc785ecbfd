//! The scenarios that the specification names beside the given ones, and what its sentences promise besides.

use engine::harness::ResultPatch;
use model::Block;
use model::input::Hook;
use model::message::StopReason;

use crate::check;
use crate::harness::{result, script, user};
use crate::parts::{Answer, Body, Reply, calls, text, tool};

const EVERY_CALL_HOOK: [Hook; 4] =
    [Hook::BeforeToolBatch, Hook::BeforeToolCall, Hook::AfterToolCall, Hook::AfterToolOutcome];

fn y() -> Vec<Body> {
    vec![tool("t", "y")]
}

fn two() -> Reply {
    calls(&[("1", "t"), ("2", "t")])
}

fn three() -> Reply {
    calls(&[("1", "t"), ("2", "t"), ("3", "t")])
}

#[test]
fn one_tool_and_every_hook() {
    let every = [&EVERY_CALL_HOOK[..], &[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn]].concat();
    check(
        script("02 one tool, every hook")
            .polls()
            .hooks(&every)
            .tools([tool("t", "y").updates(1)])
            .model([calls(&[("1", "t")]), text("end")]),
    );
}

#[test]
fn one_after_another() {
    check(
        script("04 two tools sequential")
            .sequential()
            .polls()
            .shows_calls()
            .tools(y())
            .model([two(), text("end")]),
    );
}

// ---- steering and follow-ups ------------------------------------------------------------------------------------------

#[test]
fn steering_found_before_the_second_call() {
    check(
        script("05 sequential, steering seen before 2nd of 3 calls")
            .sequential()
            .steering(&[&[], &[], &[], &["steer"]])
            .hooks(&[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .answer("HOOK:shouldStopAfterTurn()", Answer::Stop)
            .tools(y())
            .model([three(), text("end")]),
    );
}

#[test]
fn steering_found_before_the_first_call() {
    check(
        script("05b sequential, steering seen before 1st call; hooks see every call")
            .sequential()
            .steering(&[&[], &["steer"]])
            .hooks(&EVERY_CALL_HOOK)
            .tools(y())
            .model([two(), text("end")]),
    );
}

#[test]
fn steering_after_the_last_call() {
    check(
        script("07 sequential, steering after the last call")
            .sequential()
            .steering(&[&[], &[], &[], &["steer"]])
            .hooks(&[Hook::ShouldStopAfterTurn])
            .tools(y())
            .model([calls(&[("1", "t")]), text("end")]),
    );
}

#[test]
fn two_messages_of_one_poll() {
    check(
        script("08b two steering messages of one poll, prepared calls keep their hooks")
            .steering(&[&[], &["one", "two"]])
            .hooks(&EVERY_CALL_HOOK)
            .tools(y())
            .model([two(), text("end")]),
    );
}

#[test]
fn a_follow_up() {
    check(script("09 follow-up").follow_up(&[&["f"]]).model([text("a"), text("b")]));
}

#[test]
fn no_steering_poll_after_a_stop() {
    check(
        script("09c shouldStopAfterTurn ends the run without a poll")
            .steering(&[&[], &["never"]])
            .hooks(&[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .answer("HOOK:shouldStopAfterTurn()", Answer::Stop)
            .model([text("a")]),
    );
}

// ---- aborts -----------------------------------------------------------------------------------------------------------

#[test]
fn abort_before_anything() {
    check(script("10a abort before anything").polls().abort_at("", "This operation was aborted"));
}

#[test]
fn abort_in_the_stream() {
    check(
        script("10c abort in the stream")
            .polls()
            .abort_at("message_start(assistant:stop)", "x")
            .model([text("par").hangs()]),
    );
}

#[test]
fn abort_without_a_reason() {
    check(script("10e abort with a reason that is no error").polls().abort_at("POLL:steering -> 0", ""));
}

#[test]
fn abort_while_calls_are_prepared() {
    check(
        script("10g abort in beforeToolCall of the 2nd of 3 parallel calls")
            .polls()
            .hooks(&[Hook::BeforeToolCall, Hook::AfterToolOutcome])
            .abort_at("HOOK:beforeToolCall(2)", "x")
            .tools(y())
            .model([three()]),
    );
}

#[test]
fn abort_in_prepare_next_turn() {
    check(
        script("10i abort in prepareNextTurn")
            .polls()
            .hooks(&[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .abort_at("HOOK:prepareNextTurn()", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_a_stop_hook_that_stops() {
    check(
        script("10k abort in shouldStopAfterTurn returning true")
            .polls()
            .hooks(&[Hook::ShouldStopAfterTurn])
            .answer("HOOK:shouldStopAfterTurn()", Answer::Stop)
            .abort_at("HOOK:shouldStopAfterTurn()", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_a_follow_up_poll_that_finds_something() {
    check(
        script("10m abort in follow-up poll returning one")
            .follow_up(&[&["f"]])
            .abort_at("POLL:followup -> 1", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_the_first_poll() {
    check(
        script("10p abort in the first steering poll returning one")
            .steering(&[&["lost"]])
            .abort_at("POLL:steering -> 1", "x"),
    );
}

#[test]
fn abort_after_a_failed_preparation() {
    check(
        script("10r abort after the 1st of 3 parallel calls failed preparation")
            .polls()
            .hooks(&[Hook::AfterToolOutcome])
            .abort_at("HOOK:afterToolOutcome(1)", "x")
            .tools(y())
            .model([calls(&[("1", "nope"), ("2", "t"), ("3", "t")])]),
    );
}

#[test]
fn abort_at_the_launch() {
    check(
        script("10s abort in the poll before the launch, which finds steering too")
            .steering(&[&[], &["steer"]])
            .hooks(&[Hook::AfterToolCall, Hook::AfterToolOutcome])
            .abort_at("POLL:steering -> 1", "x")
            .tools(y())
            .model([two()]),
    );
}

#[test]
fn abort_when_the_turn_has_ended() {
    check(
        script("10t abort by the sink at turn_end")
            .polls()
            .hooks(&[Hook::PrepareNextTurn])
            .abort_at("turn_end(assistant:stop; results=)", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_when_the_turn_has_ended_without_sources() {
    check(
        script("10u abort by the sink at turn_end, no sources, no hooks")
            .abort_at("turn_end(assistant:stop; results=)", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_in_the_poll_after_a_turn() {
    check(
        script("10v abort in the steering poll after a turn, which finds something")
            .steering(&[&[], &["lost"]])
            .abort_at("POLL:steering -> 1", "x")
            .model([text("a")]),
    );
}

#[test]
fn abort_between_sequential_hooks() {
    check(
        script("10w abort in beforeToolCall of the 1st of 2 sequential calls")
            .sequential()
            .polls()
            .hooks(&EVERY_CALL_HOOK)
            .abort_at("HOOK:beforeToolCall(1)", "x")
            .tools(y())
            .model([two()]),
    );
}

#[test]
fn handoff() {
    check(
        script("10x handoff during a tool")
            .polls()
            .handoff_at("EXEC 1")
            .tools(y())
            .model([calls(&[("1", "t")])]),
    );
}

// ---- answers ----------------------------------------------------------------------------------------------------------

#[test]
fn the_stream_ends_in_an_error() {
    check(
        script("11 stream error")
            .polls()
            .hooks(&[Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .model([text("par").stop_reason(StopReason::Error).error("overloaded")]),
    );
}

#[test]
fn the_stream_ends_in_an_error_under_an_abort() {
    check(
        script("11a stream error while aborted: no interruption")
            .polls()
            .abort_at("MODEL#1(ctx=u)", "x")
            .model([text("").stop_reason(StopReason::Error).error("net")]),
    );
}

#[test]
fn the_stream_breaks() {
    check(script("11c stream breaks after its start").polls().model([Reply::Breaks("net")]));
}

#[test]
fn calls_of_a_cut_answer() {
    check(
        script("12a length with tool call")
            .polls()
            .tools(y())
            .model([calls(&[("1", "t")]).stop_reason(StopReason::Length)]),
    );
}

#[test]
fn tool_use_without_calls() {
    check(script("12c toolUse without calls").polls().model([text("a").stop_reason(StopReason::ToolUse)]));
}

// ---- terminate --------------------------------------------------------------------------------------------------------

#[test]
fn one_result_does_not_terminate() {
    check(
        script("13b one of two terminates")
            .polls()
            .tools([tool("t", "y").terminates(), tool("u", "z")])
            .model([calls(&[("1", "t"), ("2", "u")]), text("end")]),
    );
}

#[test]
fn a_failed_look_loses_the_wish_to_end() {
    check(
        script("13e afterToolCall throws and terminate is lost")
            .polls()
            .hooks(&[Hook::AfterToolCall])
            .answer("HOOK:afterToolCall(1)", Answer::Fails("ac"))
            .tools([tool("t", "y").terminates()])
            .model([calls(&[("1", "t")]), text("end")]),
    );
}

#[test]
fn an_error_prevents_the_end() {
    check(
        script("13f an unknown tool beside one that terminates")
            .polls()
            .tools([tool("t", "y").terminates()])
            .model([calls(&[("1", "t"), ("2", "nope")]), text("end")]),
    );
}

#[test]
fn a_hook_makes_it_terminate() {
    let patch = ResultPatch { terminates: Some(true), ..ResultPatch::default() };
    check(
        script("13g afterToolOutcome sets terminate")
            .polls()
            .hooks(&[Hook::AfterToolOutcome])
            .answer("HOOK:afterToolOutcome(1)", Answer::Patch(patch))
            .tools(y())
            .model([calls(&[("1", "t")])]),
    );
}

// ---- interventions ----------------------------------------------------------------------------------------------------

#[test]
fn a_second_intervention() {
    check(
        script("14 second intervention ends the run")
            .polls()
            .hooks(&[Hook::BeforeToolBatch, Hook::PrepareNextTurn, Hook::ShouldStopAfterTurn])
            .answer("HOOK:beforeToolBatch(1)", Answer::Circles(0))
            .answer("HOOK:beforeToolBatch(2)", Answer::Circles(0))
            .tools(y())
            .model([calls(&[("1", "t")]), calls(&[("2", "t"), ("3", "nope")])]),
    );
}

#[test]
fn an_abort_wins_over_a_second_intervention() {
    check(
        script("14c abort while the second intervention is decided")
            .polls()
            .hooks(&[Hook::BeforeToolBatch])
            .answer("HOOK:beforeToolBatch(1)", Answer::Circles(0))
            .answer("HOOK:beforeToolBatch(2)", Answer::Circles(0))
            .abort_at("HOOK:beforeToolBatch(2)", "x")
            .tools(y())
            .model([calls(&[("1", "t")]), calls(&[("2", "t")])]),
    );
}

#[test]
fn an_intervention_on_every_kind_of_call() {
    check(
        script("14d intervention: unknown and valid calls, afterToolOutcome sees all")
            .polls()
            .hooks(&EVERY_CALL_HOOK)
            .answer("HOOK:beforeToolBatch(2,3)", Answer::Circles(1))
            .tools(y())
            .model([calls(&[("1", "nope"), ("2", "t"), ("3", "t")]), text("end")]),
    );
}

#[test]
fn no_valid_call_no_batch_hook() {
    check(
        script("14e batch hook is not asked about unknown calls alone")
            .polls()
            .hooks(&EVERY_CALL_HOOK)
            .tools(y())
            .model([calls(&[("1", "nope")]), text("end")]),
    );
}

#[test]
fn hooks_change_results() {
    let content = Some(vec![Block::Text("patched".into())]);
    let after = ResultPatch { content, is_error: Some(true), ..ResultPatch::default() };
    let outcome = ResultPatch { details: Some(serde_json::json!({ "d": 1 })), ..ResultPatch::default() };
    check(
        script("17 afterToolCall and afterToolOutcome replace fields")
            .polls()
            .hooks(&[Hook::AfterToolCall, Hook::AfterToolOutcome])
            .answer("HOOK:afterToolCall(1)", Answer::Patch(after))
            .answer("HOOK:afterToolOutcome(1)", Answer::Patch(outcome))
            .tools(y())
            .model([calls(&[("1", "t")]), text("end")]),
    );
}

#[test]
fn a_hook_that_fails_after_the_turn() {
    check(
        script("16b prepareNextTurn throws")
            .polls()
            .hooks(&[Hook::PrepareNextTurn])
            .answer("HOOK:prepareNextTurn()", Answer::Fails("broken"))
            .model([text("a")]),
    );
}

#[test]
fn a_stop_hook_that_fails() {
    check(
        script("16c shouldStopAfterTurn throws")
            .polls()
            .hooks(&[Hook::ShouldStopAfterTurn])
            .answer("HOOK:shouldStopAfterTurn()", Answer::Fails("broken"))
            .model([text("a")]),
    );
}

#[test]
fn a_batch_hook_that_fails() {
    check(
        script("15d beforeToolBatch throws")
            .polls()
            .hooks(&[Hook::BeforeToolBatch])
            .answer("HOOK:beforeToolBatch(1,2)", Answer::Fails("broken"))
            .tools(y())
            .model([two(), text("end")]),
    );
}

#[test]
fn the_interruption_is_told_whatever_the_program_converts() {
    check(
        script("A7b the interruption reaches the model past a conversion that drops custom messages")
            .then_continues()
            .deferred(|_| Ok(None))
            .abort_at("EXEC 1", "x")
            .tools(y())
            .model([calls(&[("1", "t")]), text("resumed")]),
    );
}

// ---- withdrawn messages -----------------------------------------------------------------------------------------------

#[test]
fn every_prompt_withdrawn() {
    check(script("19a all prompts cancelled").prompts(&["p1", "p2"]).withdrawn(&["p1", "p2"]));
}

#[test]
fn a_withdrawn_follow_up() {
    check(
        script("19c cancelled follow-up")
            .follow_up(&[&["gone"]])
            .withdrawn(&["gone"])
            .model([text("a"), text("never")]),
    );
}

#[test]
fn withdrawn_steering_after_a_plain_turn() {
    check(
        script("19d cancelled steering after a turn without tools")
            .steering(&[&[], &["gone"]])
            .withdrawn(&["gone"])
            .model([text("a"), text("never")]),
    );
}

#[test]
fn one_of_two_prompts_withdrawn() {
    check(
        script("19e one of two prompts cancelled")
            .prompts(&["p1", "p2"])
            .withdrawn(&["p1"])
            .model([text("a")]),
    );
}

#[test]
fn withdrawn_steering_after_tools() {
    check(
        script("19f cancelled steering skips calls and the run goes on")
            .steering(&[&[], &["gone"]])
            .withdrawn(&["gone"])
            .tools(y())
            .model([two(), text("end")]),
    );
}

// ---- the rest ---------------------------------------------------------------------------------------------------------

#[test]
fn equal_ids_in_an_intervention() {
    check(
        script("21 duplicate call ids in an intervention")
            .polls()
            .hooks(&[Hook::BeforeToolBatch])
            .answer("HOOK:beforeToolBatch(1)", Answer::Circles(0))
            .tools(y())
            .model([calls(&[("1", "t"), ("1", "t")]), text("end")]),
    );
}

#[test]
fn no_prompt() {
    check(script("23 empty prompts").prompts(&[]).base(vec![user("u")]).polls().model([text("a")]));
}

#[test]
fn the_sink_fails() {
    check(
        script("26 sink fails")
            .polls()
            .sink_fails_at("message_end(assistant:toolUse+calls)")
            .tools(y())
            .model([calls(&[("1", "t")])]),
    );
}

#[test]
fn a_result_goes_on() {
    let base = vec![user("u"), calls(&[("1", "t")]).message(), result("1", "t", "y")];
    check(script("A2 continue from toolResult-last").continues(base).model([text("a")]));
}

#[test]
fn an_answer_is_rejected_before_steering_is_polled() {
    let base = vec![user("u"), calls(&[("1", "t")]).message()];
    check(
        script("A4 low-level continue rejects although steering is queued")
            .steering(&[&["s"]])
            .continues(base),
    );
}

#[test]
fn nothing_cannot_be_continued() {
    check(script("A6 continue of an empty transcript").continues(Vec::new()));
}

#[test]
fn after_a_handoff_nothing_goes_on() {
    check(
        script("A8 handoff abort then continue is rejected")
            .then_continues()
            .handoff_at("EXEC 1")
            .tools(y())
            .model([calls(&[("1", "t")])]),
    );
}

#[test]
fn after_an_error_nothing_goes_on() {
    check(
        script("A10 continue after a failed model call is rejected")
            .then_continues()
            .model([Reply::Fails("net")]),
    );
}
