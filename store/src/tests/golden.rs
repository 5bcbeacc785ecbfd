//! The bytes of format 1, as they lie in `tests/golden` of the workspace: they decode forever.
//!
//! `BLESS=1` writes them anew; only a new format version may need that, under new names.

use std::path::PathBuf;

use crate::frame::{self, Frame, GroupHash, GroupHead, Header, Kept, Point, Rewritten, SegmentHead};
use crate::index::{Growing, Place, footer};
use crate::{Hash, Put, RecordKind, RunKey, Stream};

const SEGMENT: u64 = 7;

fn header() -> Header {
    Header {
        logic_version: 3,
        stream: Stream::Run(RunKey([0xab; 16])),
        seq: 41,
        epoch: 5,
        at_ms: 1_700_000_000_123,
        kind: RecordKind { code: 9, carries_messages: true, ends_stream: false },
        prev_hash: Hash([1; 32]),
        payload_hash: Hash([2; 32]),
        puts_hash: Hash([3; 32]),
        state_hash: Hash([4; 32]),
    }
}

fn puts() -> Vec<Put> {
    vec![
        Put { key: b"rkey".to_vec(), value: Some(b"value".to_vec()) },
        Put { key: b"gone".to_vec(), value: None },
    ]
}

fn from() -> Point {
    Point { segment: 6, offset: 4_096, position: 1_000, group: 90, hash: Hash([5; 32]), epoch: 5 }
}

/// A segment of one group of one frame, and where each block begins.
fn segment() -> (Vec<u8>, [usize; 4]) {
    let group_at = frame::HEAD_BLOCK;
    let frame_at = group_at + frame::GROUP_BLOCK;
    let mut bytes = vec![0; frame_at];
    frame::write_head(
        &mut bytes,
        &SegmentHead { segment: SEGMENT, size: 1 << 20, from: from(), rewritten: None },
    );
    let mut encoded = Vec::new();
    puts().iter().for_each(|put| frame::put_put(&mut encoded, put));
    let record = frame::put_frame(&mut bytes, &header(), (&[6; 16], b"what happened"), &encoded);
    frame::set_barrier(&mut bytes, frame_at);
    let end = bytes.len();
    frame::close(&mut bytes, frame_at, end, SEGMENT, frame_at as u64);
    let head = GroupHead {
        number: 90,
        prev_hash: Hash([5; 32]),
        position: 1_000,
        epoch: 5,
        durable: (6, 4_096),
        frames: 1,
        bytes: (end - frame_at) as u32,
    };
    frame::write_group(&mut bytes[group_at..], &head, SEGMENT, group_at as u64);
    let content = &bytes[group_at + frame::ENVELOPE..frame_at];
    let hash = GroupHash::new(content).over([record].iter());
    let end_point =
        Point { segment: SEGMENT, offset: end as u64, position: 1_001, group: 91, hash, epoch: 5 };
    let mut index = Growing::default();
    index.push(header().stream, 41, Place::new(frame_at as u32, true));
    bytes.extend(index.to_index().to_footer(&end_point));
    (bytes, [0, group_at, frame_at, end])
}

/// The same segment after a purge that left its one frame.
fn rewritten() -> Vec<u8> {
    let (whole, [_, _, frame_at, end]) = segment();
    let rewritten = Rewritten { end: Point { segment: SEGMENT, offset: 9_000, ..from() }, checkpoint: 2_000 };
    let mut bytes = frame::rewritten_head(SEGMENT, &from(), &rewritten);
    let (kept_at, at) = (bytes.len(), bytes.len() + frame::KEPT_BLOCK);
    bytes.resize(at, 0);
    bytes.extend_from_slice(&whole[frame_at..end]);
    let end = bytes.len();
    frame::close(&mut bytes, at, end, SEGMENT, at as u64);
    let kept = Kept { position: 1_007, frames: 1, bytes: (end - at) as u32 };
    frame::write_kept(&mut bytes[kept_at..], &kept, SEGMENT, kept_at as u64);
    let mut index = Growing::default();
    index.push(header().stream, 41, Place::new(at as u32, true));
    bytes.extend(index.to_index().to_footer_at(&rewritten.end, end as u64));
    bytes
}

#[test]
fn a_rewritten_segment_of_format_1_is_written_as_ever_and_decodes() {
    let bytes = golden("journal-v1-rewritten.bin", &rewritten());
    assert_eq!(bytes, rewritten());
    let head = frame::head(frame::block(&bytes, SEGMENT, 0).unwrap()).unwrap();
    assert_eq!((head.segment, head.from, head.block_bytes()), (SEGMENT, from(), frame::REWRITTEN_HEAD_BLOCK));
    let end = Point { segment: SEGMENT, offset: 9_000, ..from() };
    assert_eq!(head.rewritten, Some(Rewritten { end, checkpoint: 2_000 }));
    let start = crate::recover::first_group(&head);
    let group = crate::scan::kept_in(crate::scan::Bytes { bytes: &bytes, base: 0 }, &start).unwrap();
    assert_eq!((group.position, group.frames.len(), group.end.position), (1_007, 1, 1_008));
    assert_eq!(group.frames[0].1.header, header());
    let (found, _) = footer(frame::block(&bytes, SEGMENT, group.end.offset as usize).unwrap()).unwrap();
    assert_eq!(found, end);
}

fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::read(&path).unwrap()
}

#[test]
fn format_1_is_written_as_ever() {
    let (bytes, [_, group_at, frame_at, footer_at]) = segment();
    for (name, part) in [
        ("journal-v1-segment.bin", &bytes[..]),
        ("journal-v1-group.bin", &bytes[group_at..frame_at]),
        ("journal-v1-frame.bin", &bytes[frame_at..footer_at]),
        ("journal-v1-footer.bin", &bytes[footer_at..]),
    ] {
        assert_eq!(golden(name, part), part, "{name}");
    }
}

#[test]
fn format_1_decodes() {
    let (made, [head_at, group_at, frame_at, footer_at]) = segment();
    let bytes = golden("journal-v1-segment.bin", &made);
    let content = |at| frame::block(&bytes, SEGMENT, at).unwrap();
    let expected = SegmentHead { segment: SEGMENT, size: 1 << 20, from: from(), rewritten: None };
    assert_eq!(frame::head(content(head_at)), Some(expected));
    let group = frame::group(content(group_at)).unwrap();
    assert_eq!((group.number, group.durable, group.frames), (90, (6, 4_096), 1));
    let Frame { header: found, barrier, payload, puts: encoded, .. } =
        frame::frame(content(frame_at)).unwrap();
    assert_eq!((found, barrier), (header(), true));
    assert_eq!(payload, Some(&[&[6; 16][..], b"what happened"].concat()[..]));
    assert_eq!(frame::decode_puts(encoded), Some(puts()));
    let (end, index) = footer(content(footer_at)).unwrap();
    assert_eq!((end.offset, end.position), (footer_at as u64, 1_001));
    assert_eq!(index.find(header().stream), Some((41, &[Place::new(frame_at as u32, true)][..])));
    let walked =
        crate::scan::group_at(&bytes, &Point { segment: SEGMENT, offset: group_at as u64, ..from() });
    assert_eq!(walked.unwrap().end, end);
}
