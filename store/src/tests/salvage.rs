//! Whatever is changed in a journal, the runs that it does not touch stay as they are, the others are named, and after a
//! salvage the store opens, verifies and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::broken_disk::BrokenDisk;
use super::{durable, open, ordered, run, temp_dir};
use crate::conformance::run_key;
use crate::{
    Epoch, Error, JournalStore, Record, Remains, RunKey, Salvaged, Store, Stream, salvage, salvage_on, verify,
};

/// Runs of the journal: 1 is all in the first segment, and ended; 2 and 3 go on; 4 begins in the second; 5 is purged.
const RUNS: [u8; 5] = [1, 2, 3, 4, 5];

/// Files of a journal by name.
type Files = BTreeMap<String, Vec<u8>>;

fn end(store: &dyn Store, epoch: Epoch, number: u8, seq: u64) {
    let mut last = super::with_put(super::commit(epoch, run(number), seq));
    last.kind.ends_stream = true;
    store.commit(last).wait().unwrap();
}

/// A journal of three sealed segments, one of them rewritten, and one that was being written.
fn journal(dir: &Path) -> Files {
    let store = open(dir);
    let epoch = store.claim().unwrap();
    for seq in 0..3 {
        for number in 1..4 {
            durable(&store, epoch, run(number), seq).unwrap();
        }
    }
    durable(&store, epoch, run(5), 0).unwrap();
    end(&store, epoch, 1, 3);
    end(&store, epoch, 5, 1);
    store.purge(&[crate::Purge { run: run_key(5), puts: vec![], requires: vec![] }]).unwrap();
    store.close().unwrap();
    let store = open(dir);
    let epoch = store.claim().unwrap();
    store.push_inbox(super::with_put(super::commit(epoch, Stream::Inbox(run_key(3)), 0)), 0).wait().unwrap();
    for seq in 3..5 {
        for number in 2..4 {
            durable(&store, epoch, run(number), seq).unwrap();
        }
        durable(&store, epoch, run(4), seq - 3).unwrap();
    }
    store.close().unwrap();
    let store = open(dir);
    let epoch = store.claim().unwrap();
    for seq in 5..7 {
        durable(&store, epoch, run(2), seq).unwrap();
        durable(&store, epoch, run(4), seq - 3).unwrap();
    }
    ordered(&store, epoch, run(2), 7).unwrap();
    drop(store);
    let files = files(dir);
    for (name, bytes) in &files {
        // What was made for later is not needed to be as large as it is.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        std::fs::write(dir.join("journal").join(name), &bytes[..bytes.len().min(used + 64)]).unwrap();
    }
    self::files(dir)
}

fn files(dir: &Path) -> Files {
    let names = std::fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.map(|name| (name.clone(), std::fs::read(dir.join("journal").join(&name)).unwrap())).collect()
}

/// A directory that holds these files and no state.
fn lay(dir: &Path, files: &Files) {
    for gone in ["journal", "state"] {
        let _ = std::fs::remove_dir_all(dir.join(gone));
    }
    std::fs::create_dir_all(dir.join("journal")).unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(dir.join("journal").join(name), bytes).unwrap());
}

type Chains = BTreeMap<Stream, Vec<Record>>;

/// All records of every run, as a store reads them.
fn chains(
    read: impl Fn(Stream) -> Result<Vec<Record>, Error>,
) -> BTreeMap<Stream, Result<Vec<Record>, Error>> {
    let streams = RUNS.iter().flat_map(|number| [run(*number), Stream::Inbox(run_key(*number))]);
    streams.map(|stream| (stream, read(stream))).collect()
}

/// What a whole journal answers.
fn whole(files: &Files) -> Chains {
    let dir = temp_dir();
    lay(dir.path(), files);
    let store = open(dir.path());
    let chains = chains(|stream| store.read_journal(stream, 0, usize::MAX));
    chains.into_iter().map(|(stream, records)| (stream, records.unwrap())).collect()
}

/// A changed journal, and what is known of it.
struct Case<'a> {
    dir: &'a Path,
    whole: &'a Chains,
    /// Says in a failure what was changed.
    name: &'a str,
    changed: PathBuf,
    /// The open segment is shorter or gone: what is left looks like what a crash leaves, if it ends where a group does.
    /// Only a state that knows of more can tell: the open then refuses (`Error::Behind`).
    is_tail_cut: bool,
}

impl Case<'_> {
    /// What readers get: each run as it was, or damage; answers the torn ones.
    fn read(&self) -> BTreeSet<RunKey> {
        let remains = Remains::read(self.dir).unwrap();
        let torn: BTreeSet<RunKey> = remains.torn().keys().copied().collect();
        for (stream, found) in chains(|stream| remains.records(stream, 0, usize::MAX, false)) {
            let key = stream.run().unwrap();
            if torn.contains(&key) {
                assert!(matches!(found, Err(Error::Damaged { .. })), "{}: {stream:?}", self.name);
            } else {
                let found = found.unwrap();
                assert!(
                    self.is_tail_cut || !found.is_empty() || self.may_be_gone(&remains, stream),
                    "{}: {stream:?}",
                    self.name
                );
                self.same(stream, &found);
            }
        }
        torn
    }

    /// It held nothing, or every trace of it is lost.
    fn may_be_gone(&self, remains: &Remains, stream: Stream) -> bool {
        self.whole[&stream].is_empty() || remains.nameless() != Some(0)
    }

    fn same(&self, stream: Stream, found: &[Record]) {
        if found.is_empty() {
            return;
        }
        let seqs = |records: &[Record]| records.iter().map(|record| record.head.seq).collect::<Vec<_>>();
        let mut expected = self.whole[&stream].as_slice();
        let is_torn = stream == run(2) && found.len() + 1 == expected.len();
        if is_torn || self.is_tail_cut && found.len() < expected.len() {
            // The last record was never acknowledged as durable.
            expected = &expected[..found.len()];
        }
        if stream.run() == Some(run_key(5)) {
            return;
        }
        assert_eq!(seqs(found), seqs(expected), "{}: {stream:?}", self.name);
        assert_eq!(found, expected, "{}: {stream:?}", self.name);
    }

    /// `verify` finds the place, or the journal is as good as before.
    fn is_found(&self) {
        let report = verify(self.dir).unwrap();
        let places = report.findings.iter().map(|finding| &finding.segment);
        let is_located =
            places.chain(report.tail.as_ref().map(|cut| &cut.segment)).any(|at| *at == self.changed);
        if !is_located && report.findings.is_empty() {
            let store = JournalStore::open(self.dir, super::options(Arc::new(crate::fs::RealFs)));
            let store = store.unwrap_or_else(|error| panic!("{}: {error}", self.name));
            for (stream, found) in chains(|stream| store.read_journal(stream, 0, usize::MAX)) {
                self.same(stream, &found.unwrap());
            }
        }
    }

    /// After a salvage the store opens, every hash is right, and whole runs go on.
    fn is_saved(&self, torn: &BTreeSet<RunKey>) -> Salvaged {
        let salvaged = salvage(self.dir, 7, &|_| Ok(Vec::new()))
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert_eq!(salvaged.torn.keys().copied().collect::<BTreeSet<_>>(), *torn, "{}", self.name);
        let store = JournalStore::open(self.dir, super::options(Arc::new(crate::fs::RealFs)));
        let store = store.unwrap_or_else(|error| panic!("{}: {error}; {salvaged:?}", self.name));
        assert_eq!(verify(self.dir).unwrap().findings, [], "{}", self.name);
        let epoch = store.claim().unwrap();
        for (stream, found) in chains(|stream| store.read_journal(stream, 0, usize::MAX)) {
            let found = found.unwrap();
            if torn.contains(&stream.run().unwrap()) {
                assert_eq!(found, [], "{}: {stream:?}", self.name);
                continue;
            }
            self.same(stream, &found);
            if [run(2), run(3), run(4)].contains(&stream) && !found.is_empty() {
                durable(&store, epoch, stream, found.len() as u64).unwrap();
            }
        }
        store.close().unwrap();
        assert_eq!(verify(self.dir).unwrap().findings, [], "{}", self.name);
        assert_eq!(salvage(self.dir, 8, &|_| Ok(Vec::new())).unwrap().segments, [], "{}", self.name);
        salvaged
    }
}

/// Changes of one file: a bit flipped at each of some bytes, cuts at some lengths, and the file gone.
fn changes(bytes: &[u8], stride: usize) -> impl Iterator<Item = (String, Option<Vec<u8>>)> {
    let flips = (0..bytes.len()).step_by(stride).map(move |at| {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1 << (at % 8);
        (format!("bit of byte {at}"), Some(changed))
    });
    let cuts =
        (0..bytes.len()).step_by(stride).map(|len| (format!("cut to {len}"), Some(bytes[..len].to_vec())));
    flips.chain(cuts).chain([("gone".to_owned(), None)])
}

fn each_case(stride: usize, check: impl Fn(&Case<'_>)) {
    let made = temp_dir();
    let files = journal(made.path());
    let whole = whole(&files);
    let dir = temp_dir();
    let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let last = files.iter().rfind(|(_, bytes)| is_used(bytes)).map(|(file, _)| file);
    for (file, bytes) in &files {
        for (change, changed) in changes(bytes, stride) {
            let mut files = files.clone();
            match changed {
                Some(changed) => drop(files.insert(file.clone(), changed)),
                None => drop(files.remove(file)),
            }
            lay(dir.path(), &files);
            let name = format!("{file}: {change}");
            let changed = dir.path().join("journal").join(file);
            let is_tail_cut = last == Some(file) && !change.starts_with("bit");
            check(&Case { dir: dir.path(), whole: &whole, name: &name, changed, is_tail_cut });
        }
    }
}

#[test]
fn whole_runs_are_read_beside_any_change() {
    each_case(11, |case| drop(case.read()));
}

#[test]
fn any_change_is_found_or_harmless() {
    each_case(97, |case| case.is_found());
}

#[test]
fn any_change_is_saved() {
    each_case(61, |case| {
        let torn = case.read();
        case.is_saved(&torn);
    });
}

/// The journal with a bit of `run(2)`'s newest record in the second segment flipped, and one of the third's footer.
fn damaged(dir: &Path) -> (Files, Chains) {
    let made = temp_dir();
    let mut files = journal(made.path());
    let whole = whole(&files);
    let remains = Remains::read(made.path()).unwrap();
    let mut place = None;
    remains
        .each_frame(|segment, _, offset, frame| {
            if (frame.header.stream, frame.header.seq) == (run(2), 4) {
                place = Some((segment, offset));
            }
        })
        .unwrap();
    let (segment, offset) = place.unwrap();
    files.get_mut(&format!("{segment:08}.seg")).unwrap()[offset as usize + 200] ^= 4;
    let rewritten = files.get_mut("00000001.seg").unwrap();
    let last = rewritten.len() - 20;
    rewritten[last] ^= 1;
    lay(dir, &files);
    (files, whole)
}

#[test]
fn with_a_footer_only_the_run_that_was_hit_is_lost_and_its_bytes_are_kept() {
    let dir = temp_dir();
    let (files, whole) = damaged(dir.path());
    let case =
        Case { dir: dir.path(), whole: &whole, name: "two", changed: PathBuf::new(), is_tail_cut: false };
    let torn = case.read();
    assert_eq!(torn, [run_key(2)].into());
    let salvaged = case.is_saved(&torn);
    assert_eq!(salvaged.torn[&run_key(2)].last_good, Some(3));
    assert_eq!(salvaged.whole, 3);
    let kept: Vec<PathBuf> = salvaged.segments.into_iter().filter_map(|mended| mended.damaged).collect();
    assert_eq!(kept.len(), 2);
    for path in kept {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert_eq!(std::fs::read(&path).unwrap(), files[&name], "{name}");
    }
}

#[test]
fn a_salvage_may_be_cut_at_every_operation_and_is_done_again() {
    let dir = temp_dir();
    let (files, whole) = damaged(dir.path());
    let mut at = 0;
    loop {
        lay(dir.path(), &files);
        let disk = Arc::new(BrokenDisk::cut(at, false));
        let cut = salvage_on(Arc::clone(&disk) as Arc<dyn crate::fs::Fs>, dir.path(), 7, &|_| Ok(Vec::new()));
        if disk.count() <= at {
            cut.unwrap();
            break;
        }
        disk.revive();
        let name = format!("cut at {at}");
        let case =
            Case { dir: dir.path(), whole: &whole, name: &name, changed: PathBuf::new(), is_tail_cut: false };
        let again = salvage(dir.path(), 8, &|_| Ok(Vec::new()));
        again.unwrap_or_else(|error| panic!("{name}: {error}"));
        let store = open(dir.path());
        assert_eq!(verify(dir.path()).unwrap().findings, [], "{name}");
        for (stream, found) in chains(|stream| store.read_journal(stream, 0, usize::MAX)) {
            let found = found.unwrap();
            assert_eq!(found.is_empty(), stream == run(2) || whole[&stream].is_empty(), "{name}: {stream:?}");
            case.same(stream, &found);
        }
        at += 1;
    }
}
