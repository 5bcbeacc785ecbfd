//! The measurements of long runs and of recovery, at a size for every build: what they find must hold here too, but for
//! what only a whole run or a quiet machine can say.

use engine::bench;

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
}
