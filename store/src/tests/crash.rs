//! Cuts the power at every disk operation of a scenario, and again at every one of its recovery.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::broken_disk::BrokenDisk;
use super::{durable, open, options, ordered, run, temp_dir};
use crate::fs::Fs;
use crate::{Error, JournalStore, Store, Stream, verify};

/// Acknowledged and accepted records of each stream.
type Told = BTreeMap<Stream, (u64, u64)>;

/// Opens, commits across segments, and closes, until the power is off. Answers what was acknowledged and
/// accepted.
fn scenario(disk: Arc<dyn Fs>, dir: &Path, told: &mut Told) -> Result<(), Error> {
    let store = JournalStore::open(dir, options(disk))?;
    let epoch = store.claim()?;
    for round in 0..2 {
        for number in 1..=2 {
            let (_, next) = told.get(&run(number)).copied().unwrap_or_default();
            let accepted = ordered(&store, epoch, run(number), next);
            if accepted.is_ok() {
                told.entry(run(number)).or_default().1 = next + 1;
            }
            let mut large = super::with_put(crate::conformance::commit(epoch, run(number), next + 1));
            large.payload = vec![round; 400 << 10];
            accepted.and_then(|_| store.commit(large).wait())?;
            // A barrier covers everything before it.
            told.entry(run(number)).or_default().1 = next + 2;
            told.values_mut().for_each(|(acknowledged, accepted)| *acknowledged = *accepted);
        }
    }
    store.close()
}

/// Nothing acknowledged is lost, the chain is whole, and the store goes on.
fn check(dir: &Path, told: &Told, at: &str) {
    let store = open(dir);
    let epoch = store.claim().unwrap();
    for (stream, (acknowledged, _)) in told {
        let seqs = super::seqs(&store, *stream);
        assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>(), "{at}");
        assert!(seqs.len() as u64 >= *acknowledged, "{at}: {} of {acknowledged}", seqs.len());
        durable(&store, epoch, *stream, seqs.len() as u64).unwrap();
    }
    store.close().unwrap();
    let report = verify(dir).unwrap();
    assert_eq!((report.findings, report.tail), (vec![], None), "{at}");
}

fn operations() -> usize {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    scenario(Arc::clone(&disk) as _, dir.path(), &mut Told::new()).unwrap();
    disk.count()
}

#[test]
fn nothing_acknowledged_is_lost_whatever_the_operation_at_which_power_fails() {
    // Losing no unsynced sector is a kill; losing all or every third is a power cut.
    let mut turn = 0;
    for at in 0..operations() {
        for losing in 0..3 {
            let dir = temp_dir();
            let mut told = Told::new();
            let disk = Arc::new(BrokenDisk::cut(at, (at + losing) % 2 == 0));
            scenario(Arc::clone(&disk) as _, dir.path(), &mut told).unwrap_err();
            disk.lose_unsynced(|| {
                turn += 1;
                losing == 1 || (losing == 2 && turn % 3 == 0)
            });
            check(dir.path(), &told, &format!("operation {at}, losing: {losing}"));
        }
    }
}

#[test]
fn recovery_may_be_cut_as_well() {
    let at = operations() * 2 / 3;
    for second in 0.. {
        let dir = temp_dir();
        let mut told = Told::new();
        let disk = Arc::new(BrokenDisk::cut(at, true));
        scenario(Arc::clone(&disk) as _, dir.path(), &mut told).unwrap_err();
        disk.lose_unsynced(|| second % 2 == 0);
        let disk = Arc::new(BrokenDisk::cut(second, second % 3 == 0));
        let opened = JournalStore::open(dir.path(), options(Arc::clone(&disk) as _));
        let is_through = opened.is_ok();
        drop(opened);
        disk.lose_unsynced(|| second % 4 == 0);
        check(dir.path(), &told, &format!("operation {second} of recovery"));
        if is_through {
            return;
        }
    }
}

#[test]
fn what_an_open_answers_survives_a_power_cut_right_after_it() {
    for at in (0..operations()).step_by(3) {
        let dir = temp_dir();
        let mut told = Told::new();
        let disk = Arc::new(BrokenDisk::cut(at, true));
        scenario(Arc::clone(&disk) as _, dir.path(), &mut told).unwrap_err();
        disk.revive();
        let store = JournalStore::open(dir.path(), options(Arc::clone(&disk) as _)).unwrap();
        for (stream, (acknowledged, _)) in &mut told {
            *acknowledged = super::seqs(&store, *stream).len() as u64;
        }
        drop(store);
        disk.lose_unsynced(|| true);
        check(dir.path(), &told, &format!("operation {at}"));
    }
}
