//! What a run takes while it waits for a model, counted where memory is taken: the same on any machine.
//!
//! Alone in its process, so that nothing else is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::Job;
use tests::documented;
use tests::measured;
use tests::silent::{Silent, engine, until};

/// The bar: what a run that waits for a model may take.
const BYTES_MAX: usize = 4 << 10;
/// How much more than the documented a run may take.
const DRIFT_MAX: f64 = 1.1;
/// Where it is documented.
const PAGE: &str = "docs/performance.md";
const NAME: &str = "waiting";
/// Runs before and after those that are measured: some of them are kept in memory by every engine.
const FEW: usize = 500;
const MANY: usize = 2_500;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator as it came; only numbers are kept.
#[allow(unsafe_code, reason = "the trait is unsafe to implement, and nothing else counts what is live")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(place, layout) }
    }
}

/// Bytes that are live while so many runs wait for a model, beyond those of an engine without a run.
async fn live_bytes(runs: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let begun = Arc::default();
    let engine = engine(dir.path(), Silent::new(&begun, None));
    let before = LIVE.load(Ordering::Relaxed);
    let job = |n| Job::new(format!("Sum up report {n}, please.")).model("m").tools(Vec::<String>::new());
    for submitted in engine.submit_all((0..runs).map(job)).await {
        submitted.unwrap();
    }
    until("calling the model", Duration::from_secs(60), || begun.load(Ordering::Acquire) == runs).await;
    let journal = Arc::clone(engine.journal().unwrap());
    tokio::task::spawn_blocking(move || journal.settle().unwrap()).await.unwrap();
    // Nothing moves any more: what is still on its way is freed within a moment.
    let mut least = LIVE.load(Ordering::Relaxed);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        least = least.min(LIVE.load(Ordering::Relaxed));
    }
    engine.close().await.unwrap();
    least.saturating_sub(before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_its_model_takes_four_kilobytes_at_most() {
    let few = live_bytes(FEW).await;
    let many = live_bytes(MANY).await;
    let each = many.saturating_sub(few) / (MANY - FEW);
    let found = format!("{each} bytes for each of {} more runs", MANY - FEW);
    println!("{found}");
    if std::env::var_os("BLESS").is_some() {
        documented::write(PAGE, NAME, &documented::shown(&found));
    }
    let documented = measured::number(&documented::block(PAGE, NAME).text, "", " bytes").unwrap();
    assert!(each as f64 <= documented * DRIFT_MAX, "{each} bytes, and {documented} are documented");
    assert!(each <= BYTES_MAX, "{each} bytes, at most {BYTES_MAX} are allowed");
}
