//! The files of a batch: what is read, what is refused and why, what is written.

use std::path::{Path, PathBuf};

use model::{Outcome, RunId};

use super::ending::{ResultLine, TokenUsage};
use super::halt::Halt;
use super::joblog::JobLog;
use super::jobs::{BatchJob, Defaults, JobsFile};
use super::known::Standing;
use super::results::{Mended, Results, Verdict};
use super::run::{BatchRun, Options};
use super::shared::shared_workspaces;
use crate::config::Usd;
use crate::engine::Engine;
use crate::job::Job;
use crate::keys;
use crate::provider::Rehearsal;
use crate::query::UsdIs;

const BATCH: &str = "nightly";

fn parse(text: &str) -> JobsFile {
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: PathBuf::from("/work"), model: None };
    JobsFile::parse(Path::new("jobs.jsonl"), text.as_bytes(), &defaults)
}

/// What is bad, as a person reads it.
fn bad(text: &str) -> Vec<String> {
    parse(text).bad.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_of_a_line_becomes_one_of_the_job() {
    let line = r#"{"custom_id":"fix-17","prompt":"do it","model":"m","session":"s","workspace":"w",
        "tools":["read"],"system":"be brief","timeout_s":60,"max_turns":3,"max_usd":2.5,"max_tokens":9,
        "labels":{"team":"a"}}"#;
    let mut file = parse(&format!("\n{}\n\n", line.replace('\n', " ")));
    assert_eq!(file.bad, []);
    let version = file.jobs[0].job.version.take();
    assert!(version.is_some());
    let job = Job {
        timeout_s: Some(60),
        max_turns: Some(3),
        max_usd: Some(Usd::from_micros(2_500_000)),
        max_tokens: Some(9),
        system: Some("be brief".to_owned()),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        custom_id: Some("fix-17".to_owned()),
        batch: Some(BATCH.to_owned()),
        ..Job::new("do it").model("m").session("s").workspace("/work/w").tools(["read"])
    };
    assert_eq!(file.jobs, [BatchJob { line: 2, custom_id: "fix-17".to_owned(), job }]);
}

#[test]
fn a_version_is_what_a_line_says_however_it_is_written() {
    let version = |text: &str| parse(text).jobs[0].job.version;
    let first = version(r#"{"custom_id":"a","prompt":"x","max_turns":1}"#);
    assert_eq!(first, version(r#"{ "max_turns": 1, "prompt": "x", "custom_id": "a" }"#));
    assert_ne!(first, version(r#"{"custom_id":"a","prompt":"x","max_turns":2}"#));
}

#[test]
fn a_bad_line_is_told_with_its_place() {
    let lines = [
        r#"{"custom_id":"a","prompt":"x"}"#,
        r#"{"custom_id":"b","prompt":}"#,
        r#"{"custom_id":"c","promt":"x"}"#,
        r#"{"custom_id":"d"}"#,
        r#"{"custom_id":"","prompt":"x"}"#,
        r#"{"custom_id":"e","prompt":"x","max_usd":-1}"#,
        r#"{"custom_id":"a","prompt":"y"}"#,
        r#"{"custom_id":"f","body":{"model":"m","messages":[{"role":"assistant","content":"x"}]}}"#,
        r#"[1]"#,
    ];
    let expected = [
        "jobs.jsonl:2:27: expected value",
        "jobs.jsonl:3:24: unknown field `promt`, expected one of `custom_id`, `prompt`, `model`, `session`, \
         `workspace`, `tools`, `system`, `timeout_s`, `max_turns`, `max_usd`, `max_tokens`, `labels`",
        "jobs.jsonl:4:17: missing field `prompt`",
        "jobs.jsonl:5:15: expected a text, got an empty one",
        "jobs.jsonl:6:43: expected dollars with at most 6 decimals, like 2.50, got -1",
        "jobs.jsonl:7:1: custom_id `a` is that of line 1 already",
        "jobs.jsonl:8:38: the last of `messages` is not one of the user: nothing is asked",
        "jobs.jsonl:9:1: expected an object, got another value",
    ];
    assert_eq!(bad(&lines.join("\n")), expected);
    assert_eq!(parse(&lines.join("\n")).jobs.len(), 1);
    let defaults = Defaults::default();
    let file = JobsFile::parse(Path::new("j"), b"{\"custom_id\":\"\xff\"}", &defaults);
    assert_eq!(file.bad[0].to_string(), "j:1:15: not UTF-8");
}

#[test]
fn lines_of_providers_are_jobs_too() {
    let chat = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","max_tokens":5,
        "messages":[{"role":"system","content":"brief"},{"role":"user","content":"hi"},
        {"role":"assistant","content":"yes?"},{"role":"user","content":[{"type":"text","text":"go"}]}]}}"#;
    let messages = r#"{"custom_id":"b","params":{"model":"m","system":"brief","max_tokens":5,
        "messages":[{"role":"user","content":"hi"}]}}"#;
    let file = parse(&[chat, messages].map(|line| line.replace('\n', " ")).join("\n"));
    assert_eq!(file.bad, []);
    let said = |job: &Job| -> Vec<String> {
        let words =
            |message: &model::Message| format!("{}: {}", message.role().name(), message.joined_text());
        let system = format!("system: {}", job.system.clone().unwrap_or_default());
        std::iter::once(system).chain(job.base.iter().chain(&job.prompts).map(words)).collect()
    };
    let jobs: Vec<_> = file.jobs.iter().map(|job| (said(&job.job), job.job.base.len())).collect();
    let chat = ["system: brief", "user: hi", "assistant: yes?", "user: go"].map(str::to_owned).to_vec();
    let messages = ["system: brief", "user: hi"].map(str::to_owned).to_vec();
    assert_eq!(jobs, [(chat, 2), (messages, 0)]);
}

#[test]
fn one_directory_for_two_sessions_is_told() {
    let line =
        |id: &str, session: &str| format!(r#"{{"custom_id":"{id}","prompt":"x","workspace":"w"{session}}}"#);
    let store = store::MemoryStore::new();
    let shared_workspaces = |text: &str| shared_workspaces(&parse(text), "batch", &store).unwrap();
    assert_eq!(shared_workspaces(&line("a", "")), []);
    let in_turn = [line("a", r#","session":"s""#), line("b", r#","session":"s""#)].join("\n");
    assert_eq!(shared_workspaces(&in_turn), []);
    let shared = shared_workspaces(&[line("a", ""), line("b", "")].join("\n"));
    assert_eq!(shared.len(), 1);
    assert_eq!(shared[0].custom_ids, ["a", "b"]);
}

#[test]
fn a_halt_is_a_number_or_a_share() {
    let halts =
        ["fail=3", "fail=10%", "fail=0", "fail=101%", "fail", "3"].map(|text| text.parse::<Halt>().ok());
    assert_eq!(halts, [Some(Halt::Jobs(3)), Some(Halt::Percent(10)), None, None, None, None]);
    let reached = |halt: Halt| [0, 1, 2, 3].map(|failed| halt.is_reached(failed, 20));
    assert_eq!(reached(Halt::Jobs(3)), [false, false, false, true]);
    assert_eq!(reached(Halt::Percent(10)), [false, false, true, true]);
}

fn result(custom_id: &str) -> ResultLine {
    ResultLine {
        custom_id: custom_id.to_owned(),
        run: keys::batch_run(BATCH, custom_id).to_string(),
        outcome: Outcome::Completed.name().to_owned(),
        text: "done".to_owned(),
        turns: 1,
        tool_calls: 0,
        model_calls: 1,
        calls_lost: 0,
        usage: TokenUsage::default(),
        usd: 0.25,
        usd_is: UsdIs::Counted,
        started_at: Some("2026-01-01T00:00:00.000Z".to_owned()),
        ended_at: Some("2026-01-01T00:00:01.500Z".to_owned()),
        error: None,
        journal_head: "00".to_owned(),
    }
}

fn text(custom_id: &str) -> String {
    serde_json::to_string(&result(custom_id)).unwrap()
}

/// Opens a results file that held `before`; answers what was mended and what it holds then. Jobs `a` to `c` have ended.
fn opened(before: &str) -> (Mended, String, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.jsonl");
    std::fs::write(&path, before).unwrap();
    let confirm = |line: &ResultLine| {
        let is_ended = ["a", "b", "c"].contains(&line.custom_id.as_str());
        Ok(match is_ended {
            true => Verdict::Right(line.run.parse::<RunId>().unwrap()),
            false => Verdict::Wrong("unknown".to_owned()),
        })
    };
    let (mut results, mut mended) = Results::open(&path, confirm).unwrap();
    let mut stays = Vec::new();
    let each = |line: &ResultLine| {
        stays.push(line.custom_id.clone());
        Ok(())
    };
    results.each(each).unwrap();
    let c = keys::batch_run(BATCH, "c");
    if !results.has(c) {
        results.append(c, &result("c")).unwrap();
        results.append(c, &result("c")).unwrap();
    }
    results.sync().unwrap();
    if let Some(kept) = mended.kept.take() {
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), before);
        mended.kept = kept.file_name().map(PathBuf::from);
    }
    (mended, std::fs::read_to_string(&path).unwrap(), stays)
}

#[test]
fn a_results_file_is_mended_and_each_line_is_there_once() {
    let good = format!("{}\n{}\n{}\n", text("b"), text("a"), text("c"));
    let nothing = Mended::default();
    let kept = Some(PathBuf::from("results.jsonl.bad"));
    let all = || ["b", "a"].map(str::to_owned).to_vec();

    assert_eq!(opened(""), (nothing.clone(), format!("{}\n", text("c")), vec![]));
    let start = format!("{}\n{}\n", text("b"), text("a"));
    assert_eq!(opened(&start), (nothing.clone(), good.clone(), all()));

    let half = format!("{start}{}", &text("c")[..40]);
    let dropped = vec![(3, "it is not finished".to_owned())];
    assert_eq!(opened(&half), (Mended { dropped, ..nothing.clone() }, good.clone(), all()));

    let unended = format!("{}\n{}", text("b"), text("a"));
    assert_eq!(opened(&unended), (nothing.clone(), good.clone(), all()));

    let twice = format!("{}\n{}\n{}\n", text("b"), text("b"), text("a"));
    let dropped = vec![(2, "job `b` has its line already".to_owned())];
    assert_eq!(opened(&twice), (Mended { dropped, kept: kept.clone(), added: 0 }, good.clone(), all()));

    let foreign = format!("{}\n{}\n{}\n", text("z"), text("b"), text("a"));
    let dropped = vec![(1, "unknown".to_owned())];
    assert_eq!(opened(&foreign), (Mended { dropped, kept: kept.clone(), added: 0 }, good.clone(), all()));

    let damaged = format!("{}\n\0\0\0\n{}\n", text("b"), text("a"));
    let dropped = vec![(2, "it is not a result line: expected value at line 1 column 1".to_owned())];
    assert_eq!(opened(&damaged), (Mended { dropped, kept, added: 0 }, good, all()));
}

#[test]
fn every_file_that_was_mended_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.jsonl");
    for (id, name) in [("a", "results.jsonl.bad"), ("b", "results.jsonl.bad-2")] {
        let text = format!("{}\n", text(id));
        std::fs::write(&path, &text).unwrap();
        let (_, mended) = Results::open(&path, |_| Ok(Verdict::Wrong("unknown".to_owned()))).unwrap();
        assert_eq!(mended.kept, Some(dir.path().join(name)));
        assert_eq!(std::fs::read_to_string(dir.path().join(name)).unwrap(), text);
    }
}

#[test]
fn a_device_is_no_results_file() {
    let path = std::path::Path::new("/dev/full");
    let refused = Results::open(path, |_| Ok(Verdict::Wrong("unknown".to_owned()))).unwrap_err();
    let words = "/dev/full: cannot read: it is not a regular file; \
                 mend that and run the same command again, which continues";
    assert_eq!(refused.to_string(), words);
}

#[test]
fn a_joblog_has_the_columns_of_parallel() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut joblog = JobLog::create(&path).unwrap();
    joblog.append(1, &result("a\tb")).unwrap();
    let timed_out = ResultLine { outcome: "timed_out".to_owned(), text: String::new(), ..result("c") };
    joblog.append(2, &timed_out).unwrap();
    let expected = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n\
                    1\t:\t1767225600.000\t     1.500\t0\t4\t0\t0\ta b\n\
                    2\t:\t1767225600.000\t     1.500\t0\t0\t6\t0\tc\n";
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
}

/// A batch of three jobs in memory.
struct Bench {
    dir: tempfile::TempDir,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        let script = serde_json::json!({ "turns": [{ "text": "done {{custom_id}}" }] });
        let broken = serde_json::json!({ "turns": [{ "text": "", "fail": [{ "kind": "auth_permanent" }] }] });
        let engine = Engine::memory()
            .provider("m", Rehearsal::from_value(&script).unwrap())
            .provider("broken", Rehearsal::from_value(&broken).unwrap())
            .open()
            .unwrap();
        let bench = Self { dir: tempfile::tempdir().unwrap(), engine };
        bench.write(&["a", "b", "c"].map(|id| (id, "m")));
        bench
    }

    fn write(&self, jobs: &[(&str, &str)]) {
        let line = |(id, model): &(&str, &str)| {
            format!("{{\"custom_id\":\"{id}\",\"prompt\":\"x\",\"model\":\"{model}\"}}\n")
        };
        std::fs::write(self.dir.path().join("jobs.jsonl"), jobs.iter().map(line).collect::<String>())
            .unwrap();
    }

    fn open(&self, halt: Option<Halt>) -> Result<BatchRun, super::Error> {
        let options = Options {
            batch: BATCH.to_owned(),
            jobs: self.dir.path().join("jobs.jsonl"),
            results: self.dir.path().join("results.jsonl"),
            halt,
            ..Options::default()
        };
        let defaults = Defaults { batch: BATCH.to_owned(), ..Defaults::default() };
        let file = JobsFile::read(&options.jobs, &defaults)?;
        BatchRun::open(&self.engine, file, options)
    }

    /// Runs to the end; answers where each job stands.
    async fn run(&self, halt: Option<Halt>) -> Vec<(String, Standing)> {
        let mut batch = self.open(halt).unwrap();
        batch.start().await.unwrap();
        batch.follow(super::run::SYNC_EVERY, |_| {}).await.unwrap();
        let summary = batch.finish().unwrap();
        summary.jobs.into_iter().map(|(custom_id, _, standing)| (custom_id, standing)).collect()
    }

    fn results(&self) -> Vec<ResultLine> {
        let text = std::fs::read_to_string(self.dir.path().join("results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_runs_once_and_its_results_can_be_made_again() {
    let bench = Bench::new();
    let all = ["a", "b", "c"].map(|id| (id.to_owned(), Standing::Ended(Outcome::Completed)));
    assert_eq!(bench.run(None).await, all);
    let results = bench.results();
    let mut texts: Vec<&str> = results.iter().map(|result| result.text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["done a", "done b", "done c"]);

    std::fs::remove_file(bench.dir.path().join("results.jsonl")).unwrap();
    assert_eq!(bench.open(None).unwrap().mended(), &Mended { added: 3, ..Mended::default() });
    assert_eq!(bench.results(), results);
    assert_eq!(bench.run(None).await, all);
    assert_eq!(bench.results(), results);
}

#[tokio::test(start_paused = true)]
async fn results_of_another_store_are_left_as_they_are() {
    let (bench, other) = (Bench::new(), Bench::new());
    bench.run(None).await;
    let path = other.dir.path().join("results.jsonl");
    std::fs::copy(bench.dir.path().join("results.jsonl"), &path).unwrap();
    let refused = |before: &str| {
        std::fs::write(&path, before).unwrap();
        let refused = other.open(None).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
        assert!(!path.with_extension("jsonl.bad").exists());
        refused.replace(&path.display().to_string(), "FILE")
    };
    let results = std::fs::read_to_string(&path).unwrap();
    let run = &bench.results()[0].run;
    let of_another = format!(
        "FILE holds results of another store (run {run}); name another with --results, or the --data they came from"
    );
    assert_eq!(refused(&results), of_another);
    let jobs = std::fs::read_to_string(other.dir.path().join("jobs.jsonl")).unwrap();
    for text in [jobs.as_str(), jobs.trim_end(), "{\n  \"a\": 1\n}", "{\"a\":1}", "a list"] {
        assert_eq!(
            refused(text),
            "FILE holds something else than results; name another with --results",
            "{text}"
        );
    }
    for torn in ["", "{", "{\"custom_id\":\"a\",\"run", "\0\0", "{\"custom_id\":\"a\0\0"] {
        std::fs::write(&path, torn).unwrap();
        other.open(None).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_line_is_refused_with_both_versions() {
    let bench = Bench::new();
    bench.run(None).await;
    bench.write(&[("a", "broken"), ("b", "m"), ("c", "m")]);
    let refused = bench.open(None).err().map(|error| error.to_string()).unwrap_or_default();
    let version = |model: &str| {
        let line = format!("{{\"custom_id\":\"a\",\"prompt\":\"x\",\"model\":\"{model}\"}}");
        let version = parse(&line).jobs[0].job.version.unwrap();
        version.iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let file = bench.dir.path().join("jobs.jsonl").canonicalize().unwrap();
    let (old, new) = (version("m"), version("broken"));
    let expected = format!(
        "{}:1:1: job `a` was accepted as version {old} (\"x\") and the line is now version {new} (\"x\"); give the new \
         one another custom_id, or restore the line",
        file.display()
    );
    assert_eq!(refused, expected);
}

#[tokio::test(start_paused = true)]
async fn a_batch_halts_when_enough_have_failed() {
    let bench = Bench::new();
    bench.write(&[("a", "broken"), ("b", "broken"), ("c", "m")]);
    bench.run(None).await;
    bench.write(&[("a", "broken"), ("b", "broken"), ("c", "m"), ("d", "m")]);
    let halted = bench.run(Some(Halt::Jobs(2))).await;
    let failed = |id: &str| (id.to_owned(), Standing::Ended(Outcome::Blocked));
    let expected = [
        failed("a"),
        failed("b"),
        ("c".to_owned(), Standing::Ended(Outcome::Completed)),
        ("d".to_owned(), Standing::Going),
    ];
    assert_eq!(halted, expected);
}
