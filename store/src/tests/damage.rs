//! Torn tails are cut, damage is reported, and nothing that changed is missed.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::{durable, open, options, ordered, run, seqs, temp_dir};
use crate::fs::RealFs;
use crate::{Cut, Error, JournalStore, Store, verify};

fn segment(dir: &Path, number: u64) -> PathBuf {
    crate::segment::path(&dir.join("journal"), number)
}

fn flip(path: &Path, offset: u64, bit: u8) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], offset).unwrap();
}

/// A killed store with three durable commits and an ordered one; answers where the last group begins and
/// ends.
fn killed(dir: &Path) -> (u64, u64) {
    let store = open(dir);
    let epoch = store.claim().unwrap();
    for seq in 0..3 {
        durable(&store, epoch, run(1), seq).unwrap();
    }
    let before = crate::JournalReader::open(dir).unwrap().end().offset;
    ordered(&store, epoch, run(1), 3).unwrap();
    let after = crate::JournalReader::open(dir).unwrap().end().offset;
    drop(store);
    (before, after)
}

#[test]
fn a_torn_tail_is_cut_and_said_so() {
    let dir = temp_dir();
    let (before, after) = killed(dir.path());
    flip(&segment(dir.path(), 1), after - 3, 5);
    let store = open(dir.path());
    let reason = "its checksum does not match (record 3 of Run(01010101010101010101010101010101))";
    let cut = Cut { segment: segment(dir.path(), 1), offset: before, reason: reason.to_owned() };
    assert_eq!(store.opening().cut, Some(cut));
    assert_eq!(seqs(&store, run(1)), [0, 1, 2]);
    drop(store);
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

#[test]
fn a_bad_frame_that_was_durable_is_damage_and_no_open_goes_past_it() {
    let dir = temp_dir();
    let (before, _) = killed(dir.path());
    flip(&segment(dir.path(), 1), before - 3, 5);
    for _ in 0..2 {
        let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs))).map(drop);
        let Err(Error::Damaged { segment: path, offset, reason }) = refused else {
            panic!("not damage: {refused:?}");
        };
        assert_eq!((path, offset < before), (segment(dir.path(), 1), true));
        let record = "its checksum does not match (record 2 of Run(01010101010101010101010101010101))";
        assert!(reason.starts_with(record), "{reason}");
    }
}

#[test]
fn a_newer_format_is_refused_by_name_in_whatever_block_it_stands() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    let (path, bytes) = &segments[1];
    let group = groups(bytes, 2).remove(0);
    for at in [0, group.start, group.start + crate::frame::GROUP_BLOCK] {
        let mut changed = bytes.clone();
        let len = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        changed[at + crate::frame::ENVELOPE + 1] = 2;
        crate::frame::close(&mut changed, at, at + crate::frame::ENVELOPE + len, 2, at as u64);
        std::fs::write(path, changed).unwrap();
        let refusals = [
            JournalStore::open(dir.path(), options(Arc::new(RealFs))).map(drop),
            verify(dir.path()).map(drop),
            crate::JournalReader::open(dir.path()).map(drop),
            crate::Remains::read(dir.path()).map(drop),
            crate::salvage(dir.path(), 0, &|_| Ok(Vec::new())).map(drop),
        ];
        let message = format!(
            "{} has format version 2, this program reads up to 1; use a sprag that reads version 2",
            path.display()
        );
        for refused in refusals {
            assert_eq!(refused.map_err(|error| error.to_string()), Err(message.clone()), "block at {at}");
        }
    }
}

/// A cleanly closed journal of two segments: what was written in each.
fn closed(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    for round in 0..2 {
        let store = open(dir);
        let epoch = store.claim().unwrap();
        for seq in 2 * round..2 * round + 2 {
            durable(&store, epoch, run(1), seq).unwrap();
            durable(&store, epoch, run(2), seq).unwrap();
        }
        store.close().unwrap();
    }
    let paths = [1, 2].map(|number| segment(dir, number));
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).to_vec()
}

/// `verify` finds damage just where an open refuses to go on, and no more is wrong with the rest of a journal that is
/// only torn. Answers what is torn.
fn agree(dir: &Path, change: &str) -> Option<Cut> {
    let report = verify(dir).unwrap();
    match crate::recover::survey(&RealFs, &dir.join("journal")) {
        Ok(survey) => {
            assert_eq!((report.findings, report.end), (vec![], survey.tail), "{change}");
            let remains = crate::Remains::read(dir).unwrap();
            assert_eq!((remains.places(), remains.is_damaged()), (&[][..], false), "{change}");
            assert_eq!(report.tail.is_some(), survey.cut.is_some(), "{change}: {:?}", survey.cut);
            survey.cut
        }
        Err(Error::Damaged { .. }) => {
            assert_ne!(report.findings, [], "{change}");
            None
        }
        Err(error) => panic!("{change}: {error}"),
    }
}

/// What a power cut leaves of a footer at `at`, which is synced after all else: so much of it, with and without zeros in
/// place of the rest, and some of its sectors without the others.
fn torn_footers(footer: &[u8], at: usize) -> Vec<(String, Vec<u8>)> {
    const SECTOR: usize = 512;
    let cuts = (0..footer.len()).map(|len| (format!("cut to {len}"), footer[..len].to_vec()));
    let zeroed = (0..footer.len()).step_by(7).map(|len| {
        let zeros = vec![0; footer.len() - len];
        (format!("zeros from {len}"), [&footer[..len], &zeros].concat())
    });
    let sectors = (at + footer.len()).div_ceil(SECTOR) - at / SECTOR;
    let some = (0..(1_u32 << sectors) - 1).map(|written| {
        let is_written = |byte: usize| written >> ((at + byte) / SECTOR - at / SECTOR) & 1 == 1;
        let bytes = footer.iter().enumerate().map(|(byte, value)| if is_written(byte) { *value } else { 0 });
        (format!("sectors {written:b}"), bytes.collect())
    });
    cuts.chain(zeroed).chain(some).collect()
}

#[test]
fn a_torn_footer_of_the_newest_segment_is_no_damage_and_is_written_again() {
    let dir = temp_dir();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    for seq in 0..100 {
        ordered(&store, epoch, run(1), seq).unwrap();
    }
    store.close().unwrap();
    let path = segment(dir.path(), 1);
    let bytes = std::fs::read(&path).unwrap();
    let at = crate::scan::trailer(&bytes).unwrap() as usize;
    let torn = torn_footers(&bytes[at..], at);
    assert!(bytes.len() - at > 512, "the footer lies in several sectors");
    for (change, footer) in &torn {
        std::fs::write(&path, [&bytes[..at], footer].concat()).unwrap();
        let cut = agree(dir.path(), change).map(|cut| (cut.segment, cut.offset));
        let is_written = footer.iter().any(|byte| *byte != 0);
        assert_eq!(cut, is_written.then(|| (path.clone(), at as u64)), "{change}");
    }
    for (change, footer) in torn.iter().step_by(200) {
        std::fs::write(&path, [&bytes[..at], footer].concat()).unwrap();
        let store = open(dir.path());
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{change}");
        assert_eq!(seqs(&store, run(1)), (0..100).collect::<Vec<_>>(), "{change}");
        drop(store);
        std::fs::remove_file(segment(dir.path(), 2)).unwrap();
    }
}

#[test]
fn a_wrong_footer_of_an_older_segment_is_damage() {
    let dir = temp_dir();
    let (path, bytes) = closed(dir.path()).remove(0);
    let at = crate::scan::trailer(&bytes).unwrap();
    for len in at as usize + crate::frame::ENVELOPE + 1..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let found = verify(dir.path()).unwrap().findings;
        assert!(matches!(&found[..], [one] if (&one.segment, one.offset) == (&path, at)), "{len}: {found:?}");
    }
}

#[test]
fn every_flipped_bit_is_found_and_located() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    assert_eq!(verify(dir.path()).unwrap().findings, []);
    let newest = &segments[1].0;
    for (path, bytes) in &segments {
        for offset in 0..bytes.len() {
            flip(path, offset as u64, (offset % 8) as u8);
            match verify(dir.path()) {
                Ok(report) => {
                    let places: Vec<_> =
                        report.findings.iter().map(|finding| (&finding.segment, finding.offset)).collect();
                    let tail = report.tail.as_ref().map(|cut| (&cut.segment, cut.offset));
                    let near = places
                        .into_iter()
                        .chain(tail)
                        .any(|(segment, at)| segment == path && at <= offset as u64);
                    assert!(near, "byte {offset} of {path:?}: {report:?}");
                    if path == newest {
                        agree(dir.path(), &format!("byte {offset}"));
                    }
                }
                Err(error) => panic!("byte {offset} of {path:?}: {error}"),
            }
            flip(path, offset as u64, (offset % 8) as u8);
        }
    }
}

#[test]
fn dropped_reordered_inserted_and_truncated_records_are_found() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    let (path, bytes) = &segments[0];
    let groups = groups(bytes, 1);
    let [.., second, third] = &groups[..] else { panic!("too few groups") };
    let without = |range: &std::ops::Range<usize>| [&bytes[..range.start], &bytes[range.end..]].concat();
    let swapped =
        [&bytes[..second.start], &bytes[third.clone()], &bytes[second.clone()], &bytes[third.end..]].concat();
    let doubled = [&bytes[..third.end], &bytes[second.clone()], &bytes[third.end..]].concat();
    let changes = [
        ("dropped", without(second)),
        ("last dropped", without(third)),
        ("reordered", swapped),
        ("inserted", doubled),
        ("truncated", bytes[..second.start].to_vec()),
        ("emptied", Vec::new()),
    ];
    for (change, changed) in changes {
        std::fs::write(path, changed).unwrap();
        let report = verify(dir.path()).unwrap();
        assert!(
            report.findings.iter().any(|finding| finding.segment == *path || finding.offset == 0),
            "{change}"
        );
    }
    std::fs::remove_file(path).unwrap();
    assert_ne!(verify(dir.path()).unwrap().findings, [], "a missing segment");
}

/// What is left of the last segment may look like what a crash leaves only where a group begins: so much of it must
/// be there that one can be seen.
#[test]
fn a_journal_that_ends_within_a_group_of_a_shortened_file_is_damage() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    let (path, bytes) = &segments[1];
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    for group in groups(bytes, 2) {
        for len in [group.start + crate::frame::ENVELOPE + 1, group.end - 1] {
            std::fs::write(path, &bytes[..len]).unwrap();
            let start = group.start as u64;
            let found = verify(dir.path()).unwrap().findings;
            assert!(
                matches!(&found[..], [one] if one.segment == *path && one.offset >= start),
                "{len}: {found:?}"
            );
            let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs))).map(drop);
            assert!(matches!(refused, Err(Error::Damaged { .. })), "{len}: {refused:?}");
        }
    }
}

/// Bytes that stand where none stood push a footer back: it still says how far records reached.
#[test]
fn an_open_that_does_not_reach_the_footer_goes_no_further() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    let (path, bytes) = &segments[1];
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    for group in groups(bytes, 2) {
        let at = group.end - 1;
        std::fs::write(path, [&bytes[..at], &[0], &bytes[at..]].concat()).unwrap();
        let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs))).map(drop);
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{at}: {refused:?}");
        agree(dir.path(), &format!("a byte more at {at}"));
    }
}

#[test]
fn a_last_segment_that_is_another_one_is_damage() {
    let dir = temp_dir();
    let segments = closed(dir.path());
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    std::fs::write(&segments[1].0, &segments[0].1).unwrap();
    let found = verify(dir.path()).unwrap().findings;
    assert!(matches!(&found[..], [one] if (&one.segment, one.offset) == (&segments[1].0, 0)), "{found:?}");
    let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs))).map(drop);
    assert!(matches!(refused, Err(Error::Damaged { offset: 0, .. })), "{refused:?}");
}

#[test]
fn a_state_of_another_journal_is_not_gone_on_with() {
    let [one, other] = [temp_dir(), temp_dir()];
    open(other.path()).close().unwrap();
    closed(one.path());
    let [own, foreign] = [&one, &other].map(|dir| dir.path().join("state"));
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(foreign, &own).unwrap();
    let refused = JournalStore::open(one.path(), options(Arc::new(RealFs))).map(drop);
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    assert_eq!(verify(one.path()).unwrap().findings, []);
    std::fs::remove_dir_all(&own).unwrap();
    assert_eq!(seqs(&open(one.path()), run(1)), [0, 1, 2, 3]);
}

/// Where each group of a segment lies.
fn groups(bytes: &[u8], segment: u64) -> Vec<std::ops::Range<usize>> {
    let mut starts = Vec::new();
    let mut from = 0;
    while let Some((offset, head)) = crate::frame::next_group(bytes, segment, from) {
        starts.push(offset..offset + crate::frame::GROUP_BLOCK + head.bytes as usize);
        from = offset + 1;
    }
    starts
}

proptest! {
    /// Whatever a block says, reading it ends with an answer.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        tag in proptest::sample::select(vec![b'H', b'G', b'F', b'I', b'R', b'K']),
        body in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = vec![0; crate::frame::ENVELOPE];
        bytes.extend([tag, crate::frame::FORMAT]);
        bytes.extend(body);
        let len = bytes.len();
        crate::frame::close(&mut bytes, 0, len, 1, 0);
        let content = crate::frame::block(&bytes, 1, 0).unwrap();
        let _ = crate::frame::head(content);
        let _ = crate::frame::group(content);
        let _ = crate::frame::frame(content).map(crate::frame::Frame::to_record);
        let _ = crate::index::footer(content);
        let _ = crate::frame::kept(content);
        let _ = crate::scan::group_at(&bytes, &crate::Point { segment: 1, ..crate::Point::START });
    }
}
