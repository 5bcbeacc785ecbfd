//! The rules one by one, each at the point where it changes its answer.

use model::guard::loops::{
    Admission, CallFacts, CallHash, Detector, Finding, Intervention, Level, OutcomeFacts, RunHash, ToolHash,
    Window,
};
use serde_json::{Value, json};

use crate::{Outcome, facts, outcome_facts};

/// A window that is filled one finished call at a time.
#[derive(Default, Clone)]
struct Log {
    window: Window,
    run: Option<RunHash>,
}

impl Log {
    fn add(&mut self, call: &CallFacts, outcome: OutcomeFacts) -> &mut Self {
        self.window.record_outcome(self.run, call, CallHash::of("answered"), outcome);
        self
    }

    fn times(&mut self, times: usize, call: &CallFacts, outcome: OutcomeFacts) -> &mut Self {
        for _ in 0..times {
            self.add(call, outcome);
        }
        self
    }

    fn pending(&mut self, call: &CallFacts) -> &mut Self {
        self.window.record_call(self.run, call, CallHash::of("never answered"));
        self
    }

    fn verdict(&self, call: &CallFacts) -> Option<Finding> {
        self.window.verdict(self.run, call)
    }
}

fn read(path: &str) -> CallFacts {
    facts("read", &json!({"path": path}))
}

fn edit(variant: usize) -> CallFacts {
    facts("edit", &json!({"variant": variant}))
}

fn exec(command: &str) -> CallFacts {
    facts("exec", &json!({"command": command}))
}

fn poll() -> CallFacts {
    facts("process", &json!({"action": "poll"}))
}

fn said(text: &str) -> OutcomeFacts {
    outcome_facts(&read(""), &Outcome::Result(json!({"content": [{"type": "text", "text": text}]})))
}

fn error(text: &str) -> OutcomeFacts {
    outcome_facts(&read(""), &Outcome::Error(text.to_owned()))
}

fn ended(exit_code: i32, output: &str) -> OutcomeFacts {
    let details = json!({"status": "completed", "exitCode": exit_code, "aggregated": output});
    outcome_facts(&exec(""), &Outcome::Result(json!({"details": details})))
}

const VETO: OutcomeFacts = OutcomeFacts::Vetoed;

fn found(level: Level, detector: Detector, count: u32) -> Option<Finding> {
    Some(Finding { level, detector, count, paired: None, is_churning: detector == Detector::ArgumentChurn })
}

fn critical(detector: Detector, count: u32) -> Option<Finding> {
    found(Level::Critical, detector, count)
}

fn warning(detector: Detector, count: u32) -> Option<Finding> {
    found(Level::Warning, detector, count)
}

#[test]
fn a_repeat_is_warned_at_ten_and_blocked_at_twenty_and_broken_at_thirty() {
    let mut log = Log::default();
    for count in 0..30 {
        let expected = match count {
            0..10 => None,
            10..20 => warning(Detector::GenericRepeat, count),
            _ => critical(Detector::GenericRepeat, count),
        };
        assert_eq!(log.verdict(&read("a")), expected);
        log.add(&read("a"), said("same"));
    }
    assert_eq!(log.verdict(&read("a")), critical(Detector::GlobalCircuitBreaker, 30));
    assert_eq!(log.verdict(&read("b")), None);
    assert_eq!(log.verdict(&facts("grep", &json!({"path": "a"}))), None);
}

#[test]
fn a_repeat_with_changing_outcomes_is_only_warned_about() {
    let mut log = Log::default();
    for at in 0..30 {
        log.add(&read("a"), said(&at.to_string()));
    }
    assert_eq!(log.verdict(&read("a")), warning(Detector::GenericRepeat, 30));
}

#[test]
fn a_repeat_counts_back_to_the_last_change() {
    let mut log = Log::default();
    log.times(5, &read("a"), said("old")).times(19, &read("a"), said("new"));
    assert_eq!(log.verdict(&read("a")), warning(Detector::GenericRepeat, 24));
    log.add(&read("a"), said("new"));
    assert_eq!(log.verdict(&read("a")), critical(Detector::GenericRepeat, 20));
}

#[test]
fn other_calls_and_pending_ones_do_not_interrupt_a_repeat() {
    let mut log = Log::default();
    log.times(10, &read("a"), said("same"));
    log.times(5, &read("b"), said("else")).pending(&read("a")).times(10, &read("a"), said("same"));
    assert_eq!(log.verdict(&read("a")), critical(Detector::GenericRepeat, 20));
}

#[test]
fn a_veto_adds_to_the_outcome_before_it() {
    let mut log = Log::default();
    log.times(20, &read("a"), said("same")).add(&read("a"), VETO);
    assert_eq!(log.verdict(&read("a")), critical(Detector::GenericRepeat, 21));
    log.add(&read("a"), said("new"));
    assert_eq!(log.verdict(&read("a")), warning(Detector::GenericRepeat, 22));
}

#[test]
fn vetoes_older_than_the_oldest_equal_outcome_do_not_count() {
    let mut log = Log::default();
    log.times(10, &read("a"), VETO).times(19, &read("a"), said("same"));
    assert_eq!(log.verdict(&read("a")), warning(Detector::GenericRepeat, 29));
}

#[test]
fn vetoes_count_alone_when_nothing_else_is_there() {
    let mut log = Log::default();
    log.times(20, &read("a"), VETO);
    assert_eq!(log.verdict(&read("a")), critical(Detector::GenericRepeat, 20));
    log.times(10, &read("a"), VETO);
    assert_eq!(log.verdict(&read("a")), critical(Detector::GlobalCircuitBreaker, 30));
}

#[test]
fn pending_calls_count_for_the_warning_only() {
    let mut log = Log::default();
    for _ in 0..30 {
        log.pending(&read("a"));
    }
    assert_eq!(log.verdict(&read("a")), warning(Detector::GenericRepeat, 30));
}

#[test]
fn a_poll_is_judged_by_its_answers_alone() {
    let mut log = Log::default();
    for at in 0..20 {
        log.add(&poll(), said(&at.to_string()));
    }
    assert_eq!(log.verdict(&poll()), None);
    for (more, expected) in [
        (8, None),
        (1, warning(Detector::KnownPollNoProgress, 10)),
        (9, warning(Detector::KnownPollNoProgress, 19)),
        (1, critical(Detector::KnownPollNoProgress, 20)),
        (10, critical(Detector::GlobalCircuitBreaker, 30)),
    ] {
        log.times(more, &poll(), said("19"));
        assert_eq!(log.verdict(&poll()), expected);
    }
}

#[test]
fn ten_errors_about_one_missing_tool_block_whatever_the_arguments() {
    let mut log = Log::default();
    for at in 0..9 {
        log.add(&edit(at), error("Unknown tool: frob"));
    }
    assert_eq!(log.verdict(&edit(0)), None);
    log.add(&edit(9), error("tool FROB not found"));
    assert_eq!(log.verdict(&edit(99)), critical(Detector::UnknownToolRepeat, 10));
    assert_eq!(log.verdict(&read("a")), None);
}

#[test]
fn anything_else_ends_a_streak_of_missing_tools() {
    let streak = || {
        let mut log = Log::default();
        log.times(12, &edit(0), error("Unknown tool: frob"));
        log
    };
    assert_eq!(streak().verdict(&edit(1)), critical(Detector::UnknownToolRepeat, 12));
    assert_eq!(streak().add(&edit(1), error("Unknown tool: other")).verdict(&edit(1)), None);
    assert_eq!(streak().add(&edit(1), error("denied")).verdict(&edit(1)), None);
    assert_eq!(streak().add(&edit(1), said("fine")).verdict(&edit(1)), None);
    assert_eq!(streak().add(&edit(1), VETO).verdict(&edit(1)), None);
    assert_eq!(streak().pending(&edit(1)).verdict(&edit(1)), None);
    assert_eq!(streak().add(&read("a"), error("Unknown tool: frob")).verdict(&edit(1)), None);
}

#[test]
fn two_calls_taking_turns_are_warned_about_at_the_tenth_and_blocked_at_the_twentieth() {
    let mut log = Log::default();
    let paired =
        |finding: Option<Finding>, tool| finding.map(|f| Finding { paired: Some(ToolHash::of(tool)), ..f });
    let sides = [(read("a"), said("a"), "read"), (facts("list", &json!({})), said("b"), "list")];
    for count in 1..=31 {
        let (call, outcome, _) = &sides[(count as usize + 1) % 2];
        let (_, _, other) = sides[count as usize % 2];
        let expected = match count {
            0..10 => None,
            10..20 => warning(Detector::PingPong, count),
            _ => critical(Detector::PingPong, count),
        };
        assert_eq!(log.verdict(call), paired(expected, other));
        log.add(call, *outcome);
    }
}

#[test]
fn an_alternation_needs_the_other_call_next() {
    let mut log = Log::default();
    for _ in 0..9 {
        log.add(&read("a"), said("x")).add(&read("b"), said("x"));
    }
    assert_eq!(log.verdict(&read("b")), None);
    assert_eq!(log.verdict(&read("c")), None);
    assert_eq!(log.verdict(&read("a")).map(|finding| finding.count), Some(19));
    log.add(&read("b"), said("x"));
    assert_eq!(log.verdict(&read("a")), None, "the tail is the last call alone");
}

#[test]
fn without_evidence_an_alternation_is_only_warned_about_and_hides_the_repeat() {
    for spoiler in [Some(said("y")), Some(VETO), None] {
        let mut log = Log::default();
        log.times(11, &read("a"), said("x"));
        for at in 0..19 {
            let call = read(if at % 2 == 0 { "b" } else { "a" });
            match (at, spoiler) {
                (9, Some(outcome)) => log.add(&call, outcome),
                (9, None) => log.pending(&call),
                _ => log.add(&call, said("x")),
            };
        }
        let expected = Finding {
            level: Level::Warning,
            detector: Detector::PingPong,
            count: 21,
            paired: Some(ToolHash::of("read")),
            is_churning: false,
        };
        assert_eq!(log.verdict(&read("a")), Some(expected));
    }
}

#[test]
fn each_side_of_an_alternation_may_have_its_own_outcome() {
    let mut log = Log::default();
    for _ in 0..10 {
        log.add(&read("a"), said("x")).add(&read("b"), said("y"));
    }
    let finding = log.verdict(&read("a")).unwrap();
    assert_eq!((finding.level, finding.detector, finding.count), (Level::Critical, Detector::PingPong, 21));
}

#[test]
fn churn_needs_two_variants_three_times_each_with_one_result() {
    let churn = |counts: &[usize], next: usize| {
        let mut log = Log::default();
        for (variant, count) in counts.iter().enumerate() {
            log.times(*count, &edit(variant), error("denied"));
        }
        log.window.churn(log.run, &edit(next))
    };
    assert_eq!(churn(&[3, 3], 0), 6);
    assert_eq!(churn(&[3, 3], 1), 6);
    assert_eq!(churn(&[3, 3], 2), 0);
    assert_eq!(churn(&[9], 0), 0);
    assert_eq!(churn(&[3, 2], 0), 0);
    assert_eq!(churn(&[3, 4, 5], 1), 12);
    assert_eq!(churn(&[3, 4, 1], 1), 0);
    assert_eq!(churn(&[3, 28], 0), 0, "the window cuts the first variant short");
}

#[test]
fn churn_ends_where_something_else_begins_and_skips_what_has_no_result() {
    let churn = |change: &dyn Fn(&mut Log)| {
        let mut log = Log::default();
        log.times(3, &edit(0), error("denied")).times(3, &edit(1), error("denied"));
        change(&mut log);
        log.times(3, &edit(1), error("denied")).times(3, &edit(0), error("denied"));
        log.window.churn(log.run, &edit(0))
    };
    assert_eq!(churn(&|_| ()), 12);
    assert_eq!(churn(&|log| _ = log.add(&edit(2), VETO)), 12);
    assert_eq!(churn(&|log| _ = log.pending(&edit(2))), 12);
    assert_eq!(churn(&|log| _ = log.add(&read("a"), error("denied"))), 6);
    assert_eq!(churn(&|log| _ = log.pending(&read("a"))), 6);
    assert_eq!(churn(&|log| _ = log.add(&edit(2), said("fine"))), 6);
    assert_eq!(churn(&|log| _ = log.add(&edit(1), error("other"))), 6);
    assert_eq!(
        churn(&|log| _ = log.add(&edit(2), error("other"))),
        0,
        "a new variant, not tried often enough"
    );
    assert_eq!(churn(&|log| _ = log.times(3, &edit(2), error("other"))), 0, "not all alike");
}

#[test]
fn churn_is_warned_about_at_ten_and_never_blocks() {
    let mut log = Log::default();
    for count in 1..=30 {
        let variant = edit((count as usize - 1) / 3 % 2);
        log.add(&variant, error("denied"));
        let expected = if count < 10 { None } else { warning(Detector::ArgumentChurn, count) };
        assert_eq!(log.verdict(&variant), expected);
    }
}

#[test]
fn a_warning_on_a_poll_or_an_alternation_says_whether_the_call_churns() {
    let log_call = facts("process", &json!({"action": "log"}));
    let mut log = Log::default();
    log.times(3, &log_call, error("gone")).times(10, &poll(), error("gone"));
    assert_eq!(
        log.verdict(&poll()),
        Some(Finding { is_churning: true, ..warning(Detector::KnownPollNoProgress, 10).unwrap() })
    );
    let mut log = Log::default();
    for at in 0..12 {
        log.add(&edit(at % 2), error("denied"));
    }
    let alternation = log.verdict(&edit(0)).unwrap();
    assert!(alternation.detector == Detector::PingPong && alternation.is_churning);
    log.times(8, &edit(0), error("denied"));
    for at in 0..20 {
        log.add(&edit(at % 2), error("denied"));
    }
    let alternation = log.verdict(&edit(0)).unwrap();
    assert!(alternation.level == Level::Critical && !alternation.is_churning);
}

#[test]
fn commands_with_one_failure_are_blocked_at_twenty_without_a_warning() {
    let mut log = Log::default();
    for at in 0..20 {
        assert_eq!(log.verdict(&exec("next")), None);
        log.add(&exec(&at.to_string()), ended(1, &format!("boom after {at}ms")));
    }
    assert_eq!(log.verdict(&exec("next")), critical(Detector::GenericRepeat, 20));
    assert_eq!(log.verdict(&exec("3")), None, "its own failure lies behind those of others");
    log.add(&exec("x"), VETO);
    assert_eq!(log.verdict(&exec("next")), critical(Detector::GenericRepeat, 21));
    log.pending(&exec("y"));
    assert_eq!(log.verdict(&exec("next")), critical(Detector::GenericRepeat, 21));
}

#[test]
fn other_tools_and_other_outcomes_end_a_streak_of_failures() {
    let after = |change: &dyn Fn(&mut Log)| {
        let mut log = Log::default();
        for at in 0..20 {
            log.add(&exec(&at.to_string()), ended(1, "boom"));
        }
        change(&mut log);
        log.verdict(&exec("next"))
    };
    assert_eq!(after(&|_| ()), critical(Detector::GenericRepeat, 20));
    assert_eq!(after(&|log| _ = log.add(&read("a"), said("x"))), None);
    assert_eq!(after(&|log| _ = log.pending(&read("a"))), None);
    assert_eq!(after(&|log| _ = log.add(&exec("x"), ended(0, "fine"))), None);
    assert_eq!(after(&|log| _ = log.add(&exec("x"), error("spawn failed"))), None);
    assert_eq!(after(&|log| _ = log.add(&exec("x"), ended(1, "bang"))), None);
    assert_eq!(after(&|log| _ = log.add(&exec("x"), ended(2, "boom"))), None);
}

#[test]
fn this_command_may_start_a_streak_of_failures_but_not_return_to_it() {
    let mut log = Log::default();
    for at in 0..10 {
        log.add(&exec(&at.to_string()), ended(1, "boom"));
    }
    log.times(10, &exec("x"), ended(1, "boom"));
    assert_eq!(
        log.verdict(&exec("x")),
        critical(Detector::GenericRepeat, 20),
        "ten of its own, then ten of others"
    );
    let mut log = Log::default();
    log.times(15, &exec("x"), ended(1, "boom")).times(15, &exec("y"), ended(1, "boom"));
    assert_eq!(log.verdict(&exec("x")), warning(Detector::GenericRepeat, 15));
    assert_eq!(log.verdict(&exec("z")), critical(Detector::GlobalCircuitBreaker, 30));
}

#[test]
fn runs_do_not_see_each_other_and_share_the_window() {
    let runs = [RunHash::of("a"), RunHash::of("b"), None];
    let mut log = Log::default();
    for at in 0..30 {
        log.run = runs[at % 3];
        log.add(&read("a"), said("same"));
    }
    for run in runs {
        assert_eq!(log.window.verdict(run, &read("a")), warning(Detector::GenericRepeat, 10));
    }
    log.run = RunHash::of("other");
    log.add(&read("b"), said("x"));
    assert_eq!(log.window.verdict(runs[0], &read("a")), None, "its oldest record was pushed out");
    assert_eq!(log.window.verdict(runs[1], &read("a")), warning(Detector::GenericRepeat, 10));
    assert_eq!(log.window.len(), 30);
}

#[test]
fn an_outcome_is_filed_with_the_newest_pending_call_it_fits() {
    let [a, b] = [CallHash::of("a"), CallHash::of("b")];
    let started = |calls: &[Option<CallHash>]| {
        let mut window = Window::default();
        for call in calls {
            window.record_call(None, &read("x"), *call);
        }
        window
    };
    let with = |mut window: Window, call| {
        window.record_outcome(None, &read("x"), call, said("done"));
        window
    };
    assert_eq!(with(started(&[a, b]), a).len(), 2);
    assert_ne!(with(started(&[a, b]), a), with(started(&[a, b]), b));
    assert_eq!(with(started(&[a, b]), b), with(started(&[a, b]), None), "no id fits any, the newest first");
    assert_eq!(with(with(started(&[a, a]), a), a).len(), 2);
    assert_eq!(with(with(started(&[a]), a), a).len(), 2, "nothing pending is left: a record of its own");
    assert_eq!(with(started(&[a]), CallHash::of("c")).len(), 2);
    for (run, call) in
        [(RunHash::of("r"), read("x")), (None, read("y")), (None, facts("grep", &json!({"path": "x"})))]
    {
        let mut window = started(&[a]);
        window.record_outcome(run, &call, a, said("done"));
        assert_eq!(window.len(), 2);
    }
}

#[test]
fn a_pending_call_that_left_the_window_comes_back_as_a_record() {
    let mut window = Window::default();
    window.record_call(None, &read("x"), CallHash::of("a"));
    for _ in 0..30 {
        window.record_call(None, &read("y"), None);
    }
    window.record_outcome(None, &read("x"), CallHash::of("a"), said("late"));
    let mut expected = Window::default();
    for _ in 0..29 {
        expected.record_call(None, &read("y"), None);
    }
    expected.record_outcome(None, &read("x"), CallHash::of("a"), said("late"));
    assert_eq!(window, expected);
}

#[test]
fn twenty_identical_calls_may_run_in_one_batch_and_twenty_one_may_not() {
    let window = Window::default();
    let admitted = window.admit(None, &[read("a"); 20]);
    assert_eq!(admitted.intervention, None);
    let places: Vec<usize> = admitted.warnings.iter().map(|warning| warning.place).collect();
    assert_eq!(places, Vec::from_iter(10..20));
    let refused = window.admit(None, &[read("a"); 21]);
    let finding = critical(Detector::GenericRepeat, 20).unwrap();
    assert_eq!(refused, Admission { intervention: Some(Intervention { place: 20, finding }), ..admitted });
}

#[test]
fn earlier_calls_of_a_batch_break_what_a_veto_breaks() {
    let mut unknown = Log::default();
    unknown.times(10, &edit(0), error("unknown tool frob"));
    let admission = unknown.window.admit(None, &[read("a"), edit(1)]);
    assert_eq!(admission, Admission { warnings: Vec::new(), intervention: None });

    let mut turns = Log::default();
    for _ in 0..10 {
        turns.add(&read("a"), said("x")).add(&read("b"), said("x"));
    }
    assert_eq!(turns.window.admit(None, &[read("a")]).intervention.map(|it| it.finding.count), Some(21));
    let admission = turns.window.admit(None, &[read("b"), read("a")]);
    assert_eq!(admission.intervention, None);
}

#[test]
fn the_calls_before_the_trigger_keep_their_warnings() {
    let mut log = Log::default();
    log.times(12, &read("b"), said("1")).times(18, &read("a"), said("same"));
    let admission = log.window.admit(None, &[read("b"), read("a"), read("a"), read("a")]);
    let warned: Vec<(usize, u32)> =
        admission.warnings.iter().map(|it| (it.place, it.finding.count)).collect();
    assert_eq!(warned, [(0, 12), (1, 18), (2, 19)]);
    let finding = critical(Detector::GenericRepeat, 20).unwrap();
    assert_eq!(admission.intervention, Some(Intervention { place: 3, finding }));
}

#[test]
fn only_the_trigger_and_its_equals_are_vetoed() {
    let mut window = Window::default();
    let batch =
        [(read("b"), CallHash::of("1")), (read("a"), CallHash::of("2")), (read("a"), CallHash::of("3"))];
    window.record_vetoes(None, batch, read("a").key);
    let mut expected = Window::default();
    expected.record_veto(None, &read("a"), CallHash::of("2"));
    expected.record_veto(None, &read("a"), CallHash::of("3"));
    assert_eq!(window, expected);
    assert_eq!(window.times_blocked(None, &read("a")), 2);
    assert_eq!(window.times_blocked(None, &read("b")), 0);
    assert_eq!(window.times_blocked(RunHash::of("r"), &read("a")), 0);
}

#[test]
fn a_blocked_call_that_comes_again_unchanged_is_blocked_at_once() {
    let mut log = Log::default();
    log.times(10, &edit(0), error("unknown tool frob")).add(&edit(1), VETO);
    assert_eq!(log.verdict(&edit(1)), None, "the reference's streak is gone");
    let finding = critical(Detector::BlockedRepeat, 1).unwrap();
    let blocked = Some(Intervention { place: 1, finding });
    assert_eq!(log.window.admit(None, &[edit(2), edit(1)]).intervention, blocked);
    assert_eq!(log.window.admit(None, &[edit(2)]).intervention, None);
    assert_eq!(log.window.admit(RunHash::of("other"), &[edit(1)]).intervention, None);
}

#[test]
fn the_six_detectors_are_asked_before_the_memory_of_blocks() {
    let mut log = Log::default();
    log.times(20, &read("a"), said("same")).add(&read("a"), VETO);
    let intervention = log.window.admit(None, &[read("a")]).intervention.unwrap();
    assert_eq!(Some(intervention.finding), critical(Detector::GenericRepeat, 21));
}

#[test]
fn a_call_blocked_only_in_imagination_was_not_blocked() {
    let window = Window::default();
    assert_eq!(window.admit(None, &[read("a"), read("a")]).intervention, None);
}

#[test]
fn number_spellings_make_no_difference_and_values_do() {
    let key = |json: &str| facts("read", &serde_json::from_str::<Value>(json).unwrap()).key;
    for (left, right) in
        [("1.0", "1"), ("1e2", "100"), ("-0.0", "0"), ("9007199254740993", "9007199254740992.0")]
    {
        assert_eq!(key(&format!("{{\"a\":[{left}]}}")), key(&format!("{{\"a\":[{right}]}}")));
    }
    assert_ne!(key("{\"a\":1.5}"), key("{\"a\":1.25}"));
    assert_ne!(key("{\"a\":null}"), key("{}"));
}

/// Windows outlive the version that wrote them, so what a hash is made of must not change unnoticed.
#[test]
fn hashes_are_the_same_in_every_version() {
    let mut log = Log { run: RunHash::of("r"), ..Log::default() };
    log.add(&exec("make"), ended(1, "boom in 3ms")).add(&edit(1), error("unknown tool: frob"));
    log.add(&read("a"), said("text"))
        .add(&poll(), VETO)
        .pending(&facts("message", &json!({"action": "send"})));
    let bytes = postcard::to_allocvec(&log.window).unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = [
        "05fe7dfde658314ec815e9cd4e43f3ed9844ed7f282dadae0201b2dea48d667b282101df926ee87482c16d0101035587",
        "b2572255b5792a406829224b510148f80e0a7035d8b3b752c6105ac7f45b00009ca5e8d1312e2fc7d93f0d108cbf2bde",
        "5dcaa87e52c4143a01b2dea48d667b282101df926ee87482c16d0101d75c9afc729305afd4f57f45bd298f4d000120a6",
        "8635f3d8947d01a9cc9a632386985af5c1dd5c168404e7175c6797c0ef06c201b2dea48d667b282101df926ee87482c1",
        "6d0101912c5e6c1a08ee50e00e60cdf5ebdd32000000033698ee3178669ec84d00f2274c0553dab81c931490602501b2",
        "dea48d667b282101df926ee87482c16d01004bd766dabadb76f2833787a743a784d9b7a4b5afd31f87d801b2dea48d66",
        "7b28210174b5afd9cc741d2600",
    ];
    assert_eq!(hex, golden.concat());
}
