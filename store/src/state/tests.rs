//! State against a map that applies the same puts, across closes, kills, restarts, voids and every way sled
//! can fail.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};

use proptest::prelude::*;

use super::*;
use crate::fs::RealFs;
use crate::limits::VALUE_BYTES_MAX;

const BOOT: [u8; 16] = [7; 16];
const OTHER_BOOT: [u8; 16] = [8; 16];

fn put(key: &str, value: &str) -> Put {
    Put { key: key.into(), value: Some(value.into()) }
}

fn delete(key: &str) -> Put {
    Put { key: key.into(), value: None }
}

fn pairs(expected: &[(&str, &str)]) -> Pairs {
    expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn open(dir: &Path, options: StateOptions) -> (State, Found) {
    State::open(Arc::new(RealFs), dir, BOOT, options).unwrap()
}

fn fresh(options: StateOptions) -> (tempfile::TempDir, State) {
    let dir = tempfile::tempdir().unwrap();
    let (state, found) = open(dir.path(), options);
    assert_eq!(found, Found::Rebuild { reason: "there is no state".to_owned() });
    (dir, state)
}

fn commit(state: &State, position: u64, puts: &[Put]) {
    state.stage(position, puts.into());
    state.release(position + 1);
}

fn all(state: &State) -> Pairs {
    state.scan(b"", None, usize::MAX).unwrap()
}

/// A door that a test keeps shut.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let guard = self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open);
        drop(guard.unwrap());
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Options under which `held` waits at the gate.
fn held_at(gate: &Arc<Gate>, held: &'static [SledStep]) -> StateOptions {
    let gate = Arc::clone(gate);
    let hook = move |step| {
        if held.contains(&step) {
            gate.pass();
        }
        Ok(())
    };
    StateOptions { hook: Some(Arc::new(hook)), ..StateOptions::default() }
}

fn degraded(state: &State) -> String {
    state.health().degraded.unwrap()
}

#[test]
fn a_closed_state_is_used_as_found_on_any_boot() {
    let (dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[put("a", "1"), put("b", "2")]);
    commit(&state, 1, &[delete("a"), put("b", "3")]);
    state.close().unwrap();
    let (state, found) =
        State::open(Arc::new(RealFs), dir.path(), OTHER_BOOT, StateOptions::default()).unwrap();
    assert_eq!(found, Found::Usable { applied: 2 });
    assert_eq!(all(&state), pairs(&[("b", "3")]));
}

#[test]
fn a_state_left_open_is_used_as_found_on_the_same_boot_only() {
    let (dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[put("a", "1")]);
    state.settle();
    drop(state);
    let (state, found) = open(dir.path(), StateOptions::default());
    assert_eq!(found, Found::Usable { applied: 1 });
    assert_eq!(all(&state), pairs(&[("a", "1")]));
    drop(state);
    let (state, found) =
        State::open(Arc::new(RealFs), dir.path(), OTHER_BOOT, StateOptions::default()).unwrap();
    assert_eq!(found, Found::Rebuild { reason: "the machine went down while the state was open".to_owned() });
    assert_eq!(all(&state), pairs(&[]));
}

#[test]
fn only_the_newest_state_moved_aside_is_kept() {
    let (dir, mut state) = fresh(StateOptions::default());
    for boot in 1..=3 {
        drop(state);
        state =
            State::open(Arc::new(RealFs), dir.path(), [100 + boot; 16], StateOptions::default()).unwrap().0;
    }
    let mut names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["state", "state.aside-3", "state.mark"]);
}

#[test]
fn a_state_that_sled_cannot_read_is_rebuilt() {
    let (dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[put("a", "1")]);
    state.close().unwrap();
    let sled_file = dir.path().join("state/db");
    std::fs::remove_file(&sled_file).unwrap();
    std::fs::create_dir(&sled_file).unwrap();
    let (state, found) = open(dir.path(), StateOptions::default());
    assert!(matches!(found, Found::Rebuild { .. }), "{found:?}");
    assert_eq!(all(&state), pairs(&[]));
}

#[test]
fn a_mark_of_another_version_is_not_trusted() {
    let (dir, state) = fresh(StateOptions::default());
    state.close().unwrap();
    std::fs::write(dir.path().join("state.mark"), b"sprag-state 2 closed\n").unwrap();
    let (_, found) = open(dir.path(), StateOptions::default());
    let reason = "the state was given up, or is of another version".to_owned();
    assert_eq!(found, Found::Rebuild { reason });
}

#[test]
fn staged_puts_are_visible_at_once_and_reach_sled_only_when_released() {
    let (dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[put("a", "1")]);
    state.stage(1, [put("a", "2"), put("b", "2")].into());
    state.settle();
    assert_eq!(state.get(b"a").unwrap(), Some(b"2".to_vec()));
    assert_eq!(all(&state), pairs(&[("a", "2"), ("b", "2")]));
    assert_eq!(state.health(), StateHealth { applied: 1, lag: 0, is_full: false, degraded: None });
    drop(state);
    let (state, found) = open(dir.path(), StateOptions::default());
    assert_eq!((found, all(&state)), (Found::Usable { applied: 1 }, pairs(&[("a", "1")])));
}

#[test]
fn void_brings_the_older_values_back() {
    let (_dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[put("a", "1"), put("c", "1")]);
    state.settle();
    state.stage(1, [put("a", "2")].into());
    state.stage(2, [delete("a"), put("b", "3"), put("b", "4"), delete("c")].into());
    assert_eq!(all(&state), pairs(&[("b", "4")]));
    state.void(2);
    assert_eq!(all(&state), pairs(&[("a", "2"), ("c", "1")]));
    state.void(1);
    assert_eq!(all(&state), pairs(&[("a", "1"), ("c", "1")]));
    commit(&state, 1, &[put("a", "5")]);
    state.settle();
    assert_eq!(all(&state), pairs(&[("a", "5"), ("c", "1")]));
    assert_eq!(state.health(), StateHealth { applied: 2, lag: 0, is_full: false, degraded: None });
}

#[test]
fn scans_merge_both_sides_within_prefix_cursor_and_limit() {
    let gate = Arc::new(Gate::default());
    let (_dir, state) = fresh(held_at(&gate, &[]));
    commit(&state, 0, &[put("p1", "s"), put("p2", "s"), put("p3", "s"), put("q1", "s"), put("o1", "s")]);
    state.settle();
    state.stage(1, [put("p0", "o"), delete("p2"), put("p3", "o"), put("p4", "o"), put("q0", "o")].into());
    let scan = |prefix: &str, after: Option<&str>, limit| {
        state.scan(prefix.as_bytes(), after.map(str::as_bytes), limit)
    };
    assert_eq!(scan("p", None, 9), Ok(pairs(&[("p0", "o"), ("p1", "s"), ("p3", "o"), ("p4", "o")])));
    assert_eq!(scan("p", None, 2), Ok(pairs(&[("p0", "o"), ("p1", "s")])));
    assert_eq!(scan("p", Some("p1"), 9), Ok(pairs(&[("p3", "o"), ("p4", "o")])));
    assert_eq!(scan("p", Some("a"), 1), Ok(pairs(&[("p0", "o")])));
    assert_eq!(scan("p", Some("p4"), 9), Ok(pairs(&[])));
    assert_eq!(scan("p", None, 0), Ok(pairs(&[])));
    assert_eq!(scan("q", None, 9), Ok(pairs(&[("q0", "o"), ("q1", "s")])));
}

#[test]
fn release_waits_for_a_sled_that_lags_too_far() {
    let gate = Arc::new(Gate::default());
    let options = StateOptions { lag_puts_max: 2, ..held_at(&gate, &[SledStep::Batch]) };
    let (_dir, state) = fresh(options);
    commit(&state, 0, &[put("a", "1")]);
    commit(&state, 1, &[put("b", "1")]);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            commit(&state, 2, &[put("c", "1")]);
            order.lock().unwrap().push("released");
        });
        while state.shared.lock().hurried == 0 {
            thread::yield_now();
        }
        order.lock().unwrap().push("opened");
        gate.open();
    });
    assert_eq!(order.into_inner().unwrap(), ["opened", "released"]);
    state.settle();
    assert_eq!(state.health(), StateHealth { applied: 3, lag: 0, is_full: false, degraded: None });
}

#[test]
fn a_held_thread_stops_nobody_and_the_next_open_rebuilds() {
    let gate = Arc::new(Gate::default());
    let stalls =
        StateOptions { stall_after: Duration::ZERO, lag_puts_max: 4, ..held_at(&gate, &[SledStep::Batch]) };
    let dir = tempfile::tempdir().unwrap();
    let (state, _) = open(dir.path(), StateOptions::default());
    commit(&state, 0, &[put("a", "0"), put("b", "0"), put("c", "0")]);
    state.close().unwrap();

    let (state, found) = open(dir.path(), stalls);
    assert_eq!(found, Found::Usable { applied: 1 });
    for position in 1..100 {
        commit(&state, position, &[put("a", &position.to_string()), delete("b")]);
    }
    state.settle();
    assert_eq!(degraded(&state), "sled made no progress for 0 ms");
    state.stage(100, [put("a", "void")].into());
    state.void(100);
    assert_eq!(state.get(b"c").unwrap(), Some(b"0".to_vec()));
    assert_eq!(all(&state), pairs(&[("a", "99"), ("c", "0")]));
    assert_eq!(state.shared.lock().overlay.puts(), 0);
    state.close().unwrap();

    let (state, found) = open(dir.path(), StateOptions::default());
    let reason = "the state was given up, or is of another version".to_owned();
    assert_eq!(found, Found::Rebuild { reason });
    gate.open();
    commit(&state, 0, &[put("a", "1")]);
    state.settle();
    assert_eq!(all(&state), pairs(&[("a", "1")]));
}

#[test]
fn a_sled_that_does_not_even_answer_readers_is_an_error_that_says_what_to_do() {
    let gate = Arc::new(Gate::default());
    let options = StateOptions {
        stall_after: Duration::ZERO,
        last_answer_wait: Duration::ZERO,
        ..held_at(&gate, &[SledStep::Batch, SledStep::LastAnswer])
    };
    let (dir, state) = fresh(options);
    commit(&state, 0, &[put("a", "1")]);
    state.settle();
    let mute = Error::Io {
        operation: "reading",
        path: dir.path().join("state"),
        message: "sled does not answer; open the store again to rebuild the state".to_owned(),
    };
    assert_eq!(state.get(b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(state.get(b"b"), Err(mute.clone()));
    assert_eq!(state.scan(b"a", None, 1), Err(mute));
    gate.open();
}

#[test]
fn an_error_or_a_panic_of_sled_stops_nobody() {
    let fail: fn() -> io::Result<()> = || Err(io::Error::other("no space"));
    let panic: fn() -> io::Result<()> = || panic!("broken page");
    let cases = [(fail, "sled failed: Unsupported: no space"), (panic, "sled failed: panic: broken page")];
    for (break_it, reason) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (state, _) = open(dir.path(), StateOptions::default());
        commit(&state, 0, &[put("a", "1"), put("b", "1")]);
        state.close().unwrap();
        let hook = move |step| if step == SledStep::Batch { break_it() } else { Ok(()) };
        let (state, _) =
            open(dir.path(), StateOptions { hook: Some(Arc::new(hook)), ..StateOptions::default() });
        commit(&state, 1, &[put("a", "2")]);
        state.settle();
        commit(&state, 2, &[put("c", "2")]);
        assert_eq!(degraded(&state), reason);
        assert_eq!(all(&state), pairs(&[("a", "2"), ("b", "1"), ("c", "2")]));
        drop(state);
        assert!(matches!(open(dir.path(), StateOptions::default()).1, Found::Rebuild { .. }));
    }
}

#[test]
fn without_room_on_the_disk_sled_waits_and_nobody_else_does() {
    let is_full = Arc::new(AtomicBool::new(false));
    let hook = {
        let is_full = Arc::clone(&is_full);
        move |step| match step {
            SledStep::FindRoom if is_full.load(Ordering::SeqCst) => Err(io::ErrorKind::StorageFull.into()),
            SledStep::FindRoom | SledStep::Batch | SledStep::LastAnswer => Ok(()),
        }
    };
    let options = StateOptions { lag_puts_max: 2, hook: Some(Arc::new(hook)), ..StateOptions::default() };
    let (dir, state) = fresh(options.clone());
    commit(&state, 0, &[put("a", "0"), put("b", "0")]);
    state.settle();
    is_full.store(true, Ordering::SeqCst);
    for position in 1..10 {
        commit(&state, position, &[put("a", &position.to_string())]);
    }
    state.settle();
    assert_eq!(state.health(), StateHealth { applied: 1, lag: 9, is_full: true, degraded: None });
    assert_eq!(all(&state), pairs(&[("a", "9"), ("b", "0")]));
    is_full.store(false, Ordering::SeqCst);
    state.settle();
    assert_eq!(state.health(), StateHealth { applied: 10, lag: 0, is_full: false, degraded: None });

    is_full.store(true, Ordering::SeqCst);
    commit(&state, 10, &[put("a", "10")]);
    state.close().unwrap();
    let (state, found) = open(dir.path(), options);
    assert_eq!((found, all(&state)), (Found::Usable { applied: 10 }, pairs(&[("a", "9"), ("b", "0")])));
}

#[test]
fn a_value_too_large_never_reaches_sled() {
    let (_dir, state) = fresh(StateOptions::default());
    commit(&state, 0, &[Put { key: b"a".to_vec(), value: Some(vec![0; VALUE_BYTES_MAX + 1]) }]);
    state.settle();
    assert_eq!(degraded(&state), "sled failed: a value of 4097 bytes was let in, at most 4096 fit");
}

#[test]
fn frames_without_puts_still_move_the_position() {
    let (dir, state) = fresh(StateOptions::default());
    state.stage(0, [].into());
    state.release(5);
    state.close().unwrap();
    assert_eq!(open(dir.path(), StateOptions::default()).1, Found::Usable { applied: 5 });
}

#[test]
fn a_scan_sees_whole_frames_while_sled_applies_and_forgets() {
    const ACCOUNTS: u64 = 500;
    // With so little lag, sled would come to frames younger than a scan that is under way.
    let (_dir, state) = fresh(StateOptions { lag_puts_max: 8, ..StateOptions::default() });
    let account = |number: u64, value: u64| Put {
        key: number.to_be_bytes().to_vec(),
        value: Some(value.to_le_bytes().to_vec()),
    };
    let mut values = vec![1_000; ACCOUNTS as usize];
    commit(&state, 0, &(0..ACCOUNTS).map(|number| account(number, 1_000)).collect::<Vec<_>>());
    let mut transfer = |position: u64| {
        let (from, to) = (position * 7 % ACCOUNTS, position * 13 % ACCOUNTS);
        values[from as usize] -= 1;
        values[to as usize] += 1;
        commit(&state, position, &[from, to].map(|number| account(number, values[number as usize])));
    };
    thread::scope(|scope| {
        let writer = scope.spawn(move || (1..2_000).for_each(&mut transfer));
        while !writer.is_finished() {
            let sum: u64 = all(&state).iter().map(|(_, value)| crate::keys::read_counter(Some(value))).sum();
            assert_eq!(sum, ACCOUNTS * 1_000);
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Stage(Vec<Put>),
    Release,
    Void,
    Settle,
    Degrade,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (0u8..6, proptest::option::weighted(0.7, 0u8..9))
        .prop_map(|(key, value)| Put { key: vec![b'k', key], value: value.map(|value| vec![value]) });
    let step = prop_oneof![
        8 => proptest::collection::vec(put, 0..5).prop_map(Step::Stage),
        4 => Just(Step::Release),
        2 => Just(Step::Void),
        2 => Just(Step::Settle),
        1 => Just(Step::Degrade),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..40)
}

/// What the first frames add up to.
fn fold(frames: &[Vec<Put>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut values = BTreeMap::new();
    for put in frames.iter().flatten() {
        match &put.value {
            Some(value) => values.insert(put.key.clone(), value.clone()),
            None => values.remove(&put.key),
        };
    }
    values
}

/// Closes and opens, then does what the journal does: stages and releases what is not applied.
fn reopen(state: State, dir: &Path, frames: &[Vec<Put>]) -> State {
    state.close().unwrap();
    let (state, found) = open(dir, StateOptions::default());
    let applied = match found {
        Found::Usable { applied } => applied,
        Found::Rebuild { .. } => 0,
    };
    for (position, puts) in (0u64..).zip(frames).skip(applied as usize) {
        commit(&state, position, puts);
    }
    state
}

/// The frames that the process below writes, by position.
fn endless_frame(position: u64) -> Vec<Put> {
    vec![put(&format!("k{}", position % 7), &position.to_string()), delete(&format!("k{}", position * 3 % 7))]
}

/// Names the directory in which the process below writes.
const ENDLESS_DIR: &str = "STATE_TESTS_ENDLESS_DIR";

/// The process of the test after this one; does nothing when it runs as a test itself.
#[test]
fn endless_writer() {
    let Some(dir) = std::env::var_os(ENDLESS_DIR) else { return };
    let (state, _) = open(Path::new(&dir), StateOptions::default());
    for position in 0.. {
        commit(&state, position, &endless_frame(position));
        if position % 1_000 == 999 {
            state.settle();
            std::fs::write(Path::new(&dir).join("settled"), (position + 1).to_string()).unwrap();
        }
    }
}

#[test]
fn a_killed_process_leaves_whole_frames_up_to_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "state::tests::endless_writer"])
        .env(ENDLESS_DIR, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let settled = || std::fs::read_to_string(dir.path().join("settled")).ok()?.parse::<u64>().ok();
    while settled().is_none_or(|settled| settled < 5_000) {
        assert_eq!(writer.try_wait().unwrap(), None);
        thread::yield_now();
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    let (state, found) = open(dir.path(), StateOptions::default());
    let applied = state.health().applied;
    assert_eq!(found, Found::Usable { applied });
    assert!(applied >= 5_000, "{applied}");
    let frames: Vec<_> = (0..applied).map(endless_frame).collect();
    assert_eq!(all(&state), fold(&frames).into_iter().collect::<Pairs>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_always_holds_what_the_frames_add_up_to(steps in steps()) {
        let (dir, mut state) = fresh(StateOptions::default());
        let mut frames: Vec<Vec<Put>> = Vec::new();
        let mut released = 0;
        for step in steps {
            match step {
                Step::Stage(puts) => {
                    state.stage(frames.len() as u64, puts.as_slice().into());
                    frames.push(puts);
                }
                Step::Release => {
                    released = frames.len();
                    state.release(released as u64);
                }
                Step::Void => {
                    let from = released + (frames.len() - released) / 2;
                    frames.truncate(from);
                    state.void(from as u64);
                }
                Step::Settle => state.settle(),
                Step::Degrade => state.shared.degrade("as the test says".to_owned()),
                Step::Reopen => {
                    frames.truncate(released);
                    state = reopen(state, dir.path(), &frames);
                }
            }
            let expected = fold(&frames);
            prop_assert_eq!(all(&state), expected.clone().into_iter().collect::<Pairs>());
            for key in 0u8..6 {
                let key = [b'k', key];
                prop_assert_eq!(state.get(&key).unwrap(), expected.get(key.as_slice()).cloned());
            }
        }
    }
}
