//! Attempts that fail.

use model::Label;
use model::input::FailureKind;

use super::*;

fn failure(kind: FailureKind) -> Failure {
    Failure {
        kind,
        message: Label::default(),
        retry_after_ms: None,
        had_text: false,
        usage: Usage::default(),
        partial: None,
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_fails_by_its_name() {
    for kind in FailureKind::ALL {
        // A rehearsal that is idle fails by nothing: whoever watches it ends it.
        if [FailureKind::Script, FailureKind::Unknown, FailureKind::Idle].contains(&kind) {
            continue;
        }
        let model = one(json!({ "text": "said", "fail": [{ "kind": kind.name() }], "usage": {} }));
        assert_eq!(failed(&model, request(0, 0)).await, failure(kind));
    }
}

#[tokio::test]
async fn attempts_fail_in_order_and_then_succeed() {
    let model = one(json!({ "text": "said", "fail": [
        { "kind": "rate_limit", "retry_after_ms": 1500, "message": "slow down, {{custom_id}}" },
        { "kind": "overloaded" },
    ] }));
    let slow = Failure {
        message: Label::from("slow down, fix-17"),
        retry_after_ms: Some(1500),
        ..failure(FailureKind::RateLimit)
    };
    assert_eq!(events(&model, request(0, 0)).await, [StreamEvent::Failed(slow)]);
    assert_eq!(failed(&model, request(0, 1)).await, failure(FailureKind::Overloaded));
    for attempt in [2, u32::MAX] {
        assert_eq!(answer(&model, request(0, attempt)).await.content, [Block::Text("said".into())]);
    }
}

#[tokio::test]
async fn a_call_may_break_off_within_its_text() {
    let fail = |chars: usize| json!([{ "kind": "connection", "after_chars": chars }]);
    let broken = |had_text, output| {
        let usage = used(3, output);
        StreamEvent::Failed(Failure { had_text, usage, ..failure(FailureKind::Connection) })
    };
    let start = [
        StreamEvent::Opened,
        update(UpdateKind::ThinkingStart, 0, ""),
        update(UpdateKind::ThinkingDelta, 0, "hm"),
        update(UpdateKind::ThinkingEnd, 0, "hm"),
    ];
    let text = |text: &str| [update(UpdateKind::TextStart, 1, ""), update(UpdateKind::TextDelta, 1, text)];
    let calls = json!([{ "tool": "never" }]);
    let cases = [
        (0, [&start[..], &[broken(false, 1)]].concat()),
        (2, [&start[..], &text("dé"), &[broken(true, 2)]].concat()),
        (99, [&start[..], &text("déjà vu"), &[broken(true, 3)]].concat()),
    ];
    for (chars, expected) in cases {
        let turn = json!({ "text": "déjà vu", "thinking": "hm", "calls": calls, "fail": fail(chars) });
        assert_eq!(events(&one(turn), request(0, 0)).await, expected, "after {chars}");
    }
}

#[tokio::test]
async fn an_answer_without_text_is_a_failure_of_its_kind() {
    let brought = async |kind: &str| {
        let model = one(json!({ "text": "said", "thinking": "hm", "fail": [{ "kind": kind }] }));
        events(&model, request(0, 0)).await
    };
    let ended = |kind, usage| StreamEvent::Failed(Failure { usage, ..failure(kind) });
    assert_eq!(brought("empty").await, [StreamEvent::Opened, ended(FailureKind::Empty, used(3, 0))]);
    assert_eq!(brought("missing").await, [ended(FailureKind::Missing, Usage::default())]);
    assert_eq!(
        brought("reasoning_only").await,
        [
            StreamEvent::Opened,
            update(UpdateKind::ThinkingStart, 0, ""),
            update(UpdateKind::ThinkingDelta, 0, "hm"),
            update(UpdateKind::ThinkingEnd, 0, "hm"),
            ended(FailureKind::ReasoningOnly, used(3, 1)),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_call_is_silent_until_it_is_aborted() {
    let turn = json!({
        "text": "said", "delay_ms": 5, "fail": [{ "kind": "idle" }, { "kind": "idle", "after_chars": 2 }],
    });
    let model = one(turn);
    let aborted_after = async |attempt: u32, ms: u64| {
        let abort = CancellationToken::new();
        let stream = timed(model.stream(request(0, attempt), abort.clone()));
        let aborting = async {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            abort.cancel();
        };
        tokio::join!(stream, aborting).0.pop()
    };
    let days: u64 = 48 * 3_600_000;
    assert_eq!(aborted_after(0, 60).await, Some((60, aborted(vec![], Usage::default()))));
    assert_eq!(aborted_after(0, days).await, Some((u128::from(days), aborted(vec![], Usage::default()))));
    let content = vec![Block::Text("sa".into())];
    assert_eq!(aborted_after(1, 60).await, Some((60, aborted(content, used(3, 1)))));
    assert_eq!(ModelProvider::idle_timeout(&model), Some(Duration::from_secs(120)));
}
