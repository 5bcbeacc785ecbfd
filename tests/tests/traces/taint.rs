//! What a message is marked with: network content, taint, the identity of a turn; and what is told of bad arguments.

use std::sync::Arc;

use model::input::{Hook, NextTurn};
use model::message::CustomMessage;
use model::{Block, JsonText, Label, Message, Millis};
use serde_json::{Value, json};

use crate::harness::{Script, result, script, user};
use crate::log::{Log, label};
use crate::parts::{Answer, call, calls, text, tool};

/// Runs a scenario; answers the label of each message of its transcript, with its mark.
fn marks(script: Script) -> Vec<String> {
    run(script).1.iter().map(marked).collect()
}

fn run(script: Script) -> (crate::harness::Trace, Vec<Message>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(script.run())
}

fn marked(message: &Message) -> String {
    let json = message.to_json();
    let mark = match json.get("__openclaw") {
        None => "",
        Some(mark) if *mark == json!({ "turnTainted": true }) => " tainted",
        Some(mark) if *mark == json!({ "resultContentSource": "network" }) => " network",
        Some(mark) => panic!("an unknown mark: {mark}"),
    };
    format!("{}{mark}", label(message))
}

/// The result of a call that brought network content.
fn from_network(id: &str) -> Message {
    let Message::ToolResult(mut message) = result(id, "net", "page") else { panic!("a result") };
    message.result.is_network = true;
    Message::ToolResult(message)
}

fn custom(kind: &str) -> Message {
    Message::Custom(CustomMessage {
        custom_type: kind.to_owned(),
        content: vec![Block::Text(kind.to_owned())],
        is_displayed: false,
        details: JsonText::empty(),
        at: Millis(1),
    })
}

fn net() -> crate::parts::Body {
    tool("net", "page").network()
}

#[test]
fn network_content_taints_the_answers_after_it() {
    let found =
        marks(script("").tools([net()]).model([calls(&[("1", "net")]), calls(&[("2", "net")]), text("end")]));
    let expected = [
        "user:hi",
        "assistant:toolUse+calls",
        "toolResult:1 network",
        "assistant:toolUse+calls tainted",
        "toolResult:2 network",
        "assistant:stop tainted",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_user_message_clears_the_taint_and_a_custom_one_does_not() {
    let scenario = |message: &'static str| {
        let steering: &[&[&'static str]] = &[&[], &[], &[message]];
        script("").steering(steering).tools([net()]).model([calls(&[("1", "net")]), text("end")])
    };
    assert_eq!(marks(scenario("look"))[3..], ["user:look", "assistant:stop"]);
    assert_eq!(marks(scenario("[note]"))[3..], ["custom:note", "assistant:stop tainted"]);
}

#[test]
fn a_continuation_starts_as_its_transcript_ends() {
    let call = calls(&[("1", "net")]).message();
    let last = |base: Vec<Message>| marks(script("").continues(base).model([text("end")])).pop().unwrap();
    assert_eq!(last(vec![user("u"), call.clone(), from_network("1")]), "assistant:stop tainted");
    assert_eq!(last(vec![user("u"), call.clone(), from_network("1"), custom("c")]), "assistant:stop tainted");
    assert_eq!(last(vec![user("u"), call.clone(), from_network("1"), user("v")]), "assistant:stop");
    assert_eq!(last(vec![user("u"), call, result("1", "net", "page")]), "assistant:stop");
    let Message::Assistant(mut tainted) = text("a").message() else { panic!("an answer") };
    tainted.is_tainted = true;
    assert_eq!(last(vec![user("u"), Message::Assistant(tainted), custom("c")]), "assistant:stop tainted");
}

#[test]
fn a_fresh_run_with_a_prompt_starts_clean() {
    let base = vec![user("u"), calls(&[("1", "net")]).message(), from_network("1")];
    assert_eq!(marks(script("").base(base).model([text("end")])).pop().unwrap(), "assistant:stop");
}

#[test]
fn an_abort_keeps_the_content_that_came_and_marks_its_message() {
    let scenario = |body: crate::parts::Body| {
        marks(script("").abort_at("EXEC 1", "why").tools([body]).model([calls(&[("1", "net")])]))[2..4]
            .to_vec()
    };
    assert_eq!(scenario(net()), ["toolResult:1 network", "assistant:aborted tainted"]);
    assert_eq!(
        scenario(net().fails("half a page")),
        ["toolResult:1!err network", "assistant:aborted tainted"]
    );
    assert_eq!(scenario(net().fails("why")), ["toolResult:1!err", "assistant:aborted"]);
}

#[test]
fn a_call_that_did_not_start_brings_nothing() {
    let required = json!({ "type": "object", "required": ["n"] });
    let found =
        marks(script("").tools([net().parameters(required)]).model([calls(&[("1", "net")]), text("end")]));
    assert_eq!(found[2..], ["toolResult:1!err", "assistant:stop"]);
}

#[test]
fn the_end_of_a_looping_run_is_not_marked() {
    let found = marks(
        script("")
            .hooks(&[Hook::BeforeToolBatch])
            .answer("HOOK:beforeToolBatch(2)", Answer::Circles(0))
            .answer("HOOK:beforeToolBatch(3)", Answer::Circles(0))
            .tools([net()])
            .model([calls(&[("1", "net")]), calls(&[("2", "net")]), calls(&[("3", "net")])]),
    );
    let expected = [
        "toolResult:1 network",
        "assistant:toolUse+calls tainted",
        "toolResult:2!err",
        "assistant:toolUse+calls tainted",
        "toolResult:3!err",
        "assistant:error",
    ];
    assert_eq!(found[2..], expected);
}

#[test]
fn every_turn_without_a_response_id_has_an_identity_of_its_own() {
    let blank = || calls(&[("1", "t")]).ids(Some("  "), Some(""));
    let (_, transcript) = run(script("").tools([tool("t", "y")]).model([blank(), blank(), text("end")]));
    let ids: Vec<&str> = transcript
        .iter()
        .filter_map(|message| match message {
            Message::Assistant(answer) => answer.turn_id.as_deref(),
            Message::User(_) | Message::ToolResult(_) | Message::Custom(_) => None,
        })
        .collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    let lengths = |id: &str| id.split('-').map(str::len).collect::<Vec<_>>();
    assert_eq!(lengths(ids[0]), [8, 4, 4, 4, 12]);
}

/// What a call with these arguments is told by a tool with this schema.
fn told(schema: Value, args: Value) -> String {
    let answer = calls(&[]).content(vec![call("1", "t", &args)]);
    let scenario = script("").tools([tool("t", "ran").parameters(schema)]).model([answer, text("end")]);
    run(scenario).1[2].joined_text()
}

#[test]
fn bad_arguments_are_told_as_the_reference_tells_them() {
    let schema = json!({
        "type": "object",
        "required": ["path", "range"],
        "properties": {
            "path": { "type": "string" },
            "range": { "type": "object", "required": ["from"], "properties": { "from": { "type": "integer" } } },
        },
    });
    let text = told(schema.clone(), json!({ "path": "a", "range": { "from": "x" } }));
    let expected = "Validation failed for tool \"t\":\n  - range.from: must be integer\n\nReceived arguments:\n{\n  \
                    \"path\": \"a\",\n  \"range\": {\n    \"from\": \"x\"\n  }\n}";
    assert_eq!(text, expected);
    let text = told(schema.clone(), json!({ "path": "a", "range": {} }));
    let expected = "Validation failed for tool \"t\":\n  - range.from: must have required properties from\n\nReceived \
                    arguments:\n{\n  \"path\": \"a\",\n  \"range\": {}\n}";
    assert_eq!(text, expected);
    assert_eq!(told(schema, json!({ "path": 7, "range": "{\"from\": \" 3 \"}" })), "ran");
}

#[test]
fn the_last_look_is_told_final_arguments_of_what_ran_and_raw_ones_of_what_did_not() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "number" } } });
    let args = json!({ "n": "3" });
    let answer =
        calls(&[]).content(vec![call("1", "t", &args), call("2", "t", &args), call("3", "nope", &args)]);
    let scenario = script("")
        .hooks(&[Hook::BeforeToolCall, Hook::AfterToolOutcome])
        .answer("HOOK:beforeToolCall(2)", Answer::Block("no"))
        .tools([tool("t", "y").parameters(schema)])
        .model([answer, text("end")]);
    let log = looped(&scenario);
    assert!(log.has("1 was called with {\"n\":3}"));
    assert!(log.has("2 was called with {\"n\":\"3\"}"));
    assert!(log.has("3 was called with {\"n\":\"3\"}"));
}

/// Runs a scenario; answers everything that was written.
fn looped(scenario: &Script) -> Arc<Log> {
    let (config, log) = scenario.config();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut transcript = Vec::new();
    runtime.block_on(engine::run_loop(&config, scenario.prompts.clone(), &mut transcript, None)).unwrap();
    log
}

#[test]
fn a_tool_that_was_found_is_offered_from_then_on() {
    let scenario = script("")
        .tools([tool("t", "y")])
        .deferred(|name| Ok((name == "late").then(|| tool("late", "y"))))
        .model([calls(&[("1", "late"), ("2", "nope")]), text("end")]);
    let log = looped(&scenario);
    assert!(log.has("#1 thinks off, has t"));
    assert!(log.has("#2 thinks off, has t,late"));
}

#[test]
fn the_next_turn_may_have_another_model_and_level() {
    let next = NextTurn { model: Some(Label::from("n")), thinking: Some(Label::from("high")), context: None };
    let scenario = script("")
        .hooks(&[Hook::PrepareNextTurn])
        .answer("HOOK:prepareNextTurn()", Answer::Next(next))
        .tools([tool("t", "y")])
        .model([calls(&[("1", "t")]), text("end")]);
    let log = looped(&scenario);
    assert!(log.has("MODEL#1(ctx=u)"));
    assert!(log.has("n#2(ctx=uatr)"));
    assert!(log.has("#2 thinks high, has t"));
}
