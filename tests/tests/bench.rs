//! The measurements of long runs, of recovery and of retention, at a size for every build: what they find must hold here
//! too, but for what only a whole run or a quiet machine can say. What they print has the form of the documented blocks, and
//! is not far from their figures.

use engine::bench;
use tests::documented::block;
use tests::measured::{form, number};

/// How many times the documented ratio a commit may cost here: this build is not optimised, and shares its cores with
/// other tests.
const DRIFT_MAX: f64 = 10.0;
/// How many times as long as all documented runs these few may take here, for the same reasons.
const DRIFT_MAX_FEW: f64 = 2.0;
/// The same of what depends on none of that.
const DRIFT_MAX_EXACT: f64 = 1.25;

fn documented(name: &str) -> String {
    block("docs/performance.md", name).text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_stays_small_and_is_resumed_by_its_context_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let report = bench::long(dir.path(), 5_000, |point| seen.push(*point)).await.unwrap();
    assert_eq!(report.points, seen);
    let reached: Vec<u64> = seen.iter().map(|point| point.transitions).collect();
    assert!(matches!(reached[..], [first, last] if first >= 1_000 && last >= 5_000), "{reached:?}");
    let last = &seen[1];
    assert!(last.rss_bytes < 200_000_000 && last.resume_ms < 1_000.0, "{last:?}");
    assert!(
        last.unique_bytes > seen[0].unique_bytes && last.commit_p50_us > 0.0 && last.raw_p50_us > 0.0,
        "{last:?}"
    );
    assert!(report.holds(), "{report}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left of it");

    let documented = documented("hour 48");
    assert_eq!(form(&report.to_string()), form(&documented));
    let first = documented.lines().find(|line| line.trim_start().starts_with("100")).unwrap();
    let figures: Vec<f64> = first.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let (ratio_p50, disk_per_unique) = (figures[3], figures[9]);
    assert!(seen[0].ratio_p50() <= DRIFT_MAX * ratio_p50, "{report}");
    assert!(seen[0].disk_per_unique() <= DRIFT_MAX_EXACT * disk_per_unique, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_runs_are_accounted_for_after_a_kill_and_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench::recovery(dir.path(), 300, |_| {}).await.unwrap();
    assert!(report.is_stable, "{report}");
    assert!(
        report.after_kill.accounted_ms < 2_000.0 && report.after_power_cut.accounted_ms < 5_000.0,
        "{report}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left of it");

    let documented = documented("recovery");
    assert_eq!(form(&report.to_string()), form(&documented));
    for (death, found) in [("a kill", report.after_kill), ("a power cut", report.after_power_cut)] {
        let whole = number(&documented, &format!("accounted for after {death}: "), " ms").unwrap();
        assert!(found.accounted_ms <= DRIFT_MAX_FEW * whole, "after {death}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_runs_give_their_bytes_back() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench::retention(dir.path(), 1_000, |_| {}).await.unwrap();
    let documented = documented("retention");
    assert_eq!(form(&report.to_string()), form(&documented));
    let given_back = number(&documented, "given back: ", " (at least").unwrap();
    assert!(report.given_back * DRIFT_MAX_EXACT >= given_back, "{report}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left of it");
}
