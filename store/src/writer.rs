//! The one thread that writes the journal: it takes what waits, links it, writes it as one group with at most
//! one barrier, and answers.
//!
//! Owns the order of commits. A group's steps, in the only order they may have: room, link, write, barrier,
//! answer. If writing or the barrier fails, the segment is given up, everything since the last barrier is
//! taken back, and the commits whose submitters still wait are linked again into the next segment, once.
//! Ordered commits were answered before their barrier: they are void, and so is what builds on them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::journal::{CLOSED, OPENED, Shared};
use crate::limits::{GROUP_BYTES_MAX, GROUP_FRAMES_MAX};
use crate::link::{Linker, Submitted, Target};
use crate::state::State;
use crate::tail::{Draft, Tail};
use crate::{Commit, Durability, Epoch, Error, Hash, Put, Receipt, RecordKind, Require, Seq, Stream};

/// What the writer is asked.
pub(crate) enum Message {
    /// Link and write this.
    Commit(Box<Submitted>),
    /// Answer once everything sent before is linked.
    Flush(SyncSender<()>),
    /// Commit this on the store's own stream 0.
    Record(Box<OwnRecord>, SyncSender<Result<Receipt, Error>>),
    /// Answer once no segment is open: what was written can be rewritten.
    Seal(SyncSender<Result<(), Error>>),
    /// Answer with an epoch that no other claim got.
    Claim(SyncSender<Result<Epoch, Error>>),
    /// End cleanly.
    Close(SyncSender<Result<(), Error>>),
    /// End as if killed.
    Stop,
}

/// A record of the store's own.
#[derive(Debug, Default)]
pub(crate) struct OwnRecord {
    pub(crate) code: u8,
    pub(crate) payload: Vec<u8>,
    pub(crate) puts: Vec<Put>,
    pub(crate) requires: Vec<Require>,
    /// Keys whose values are put again, as they are when the record is linked.
    pub(crate) again: Vec<Vec<u8>>,
}

/// The writer's own state.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    tail: Tail,
    linker: Linker,
    draft: Draft,
    /// Streams of the ordered commits since the last barrier.
    unsynced: Vec<Stream>,
    /// When the first of them was written.
    unsynced_since: Option<Instant>,
    /// Frames given to the state as durable.
    released: u64,
    linger: Option<Duration>,
    /// The epoch of this open was given to a claimer.
    is_claimed: bool,
    boot_id: [u8; 16],
    /// The latest time that a commit named.
    at_ms: i64,
}

/// What became of the commits of a group.
struct Linked {
    accepted: Vec<(Submitted, Receipt)>,
    /// Refused because of what may itself wait for its barrier.
    refused: Vec<(Submitted, Error)>,
}

/// A failed group: why, and the commits that still wait.
type Failed = (Error, Vec<Submitted>);

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        tail: Tail,
        linger: Option<Duration>,
        boot_id: [u8; 16],
        at_ms: i64,
    ) -> Self {
        let (epoch, released) = (tail.acked().epoch, tail.acked().position);
        Self {
            shared,
            tail,
            linker: Linker::new(epoch),
            draft: Draft::new(),
            unsynced: Vec::new(),
            unsynced_since: None,
            released,
            linger,
            is_claimed: false,
            boot_id,
            at_ms,
        }
    }

    /// Starts the next epoch: one durable record on the store's own stream 0.
    pub(crate) fn open_epoch(&mut self) -> Result<Epoch, Error> {
        let before = self.linker.epoch;
        self.linker.epoch += 1;
        let payload = self.boot_id.to_vec();
        match self.own_record(OwnRecord { code: OPENED, payload, ..OwnRecord::default() }) {
            Ok(_) => Ok(Epoch(self.linker.epoch)),
            Err(error) => {
                self.linker.epoch = before;
                Err(error)
            }
        }
    }

    /// Serves until told to end, or until nobody is left to ask.
    pub(crate) fn run(mut self, receiver: &Receiver<Message>) {
        let mut batch = Vec::new();
        loop {
            let other = self.collect(receiver, &mut batch);
            if !batch.is_empty() {
                self.commit(std::mem::take(&mut batch));
            }
            match other {
                Next::Nothing => {}
                Next::Sync => self.linger_sync(),
                // Whoever asked and went away needs no answer.
                Next::Message(Message::Flush(answer)) => drop(answer.send(())),
                Next::Message(Message::Record(record, answer)) => {
                    let recorded = self.own_record(*record);
                    // It may have put what is known of other streams.
                    self.linker.forget_heads();
                    drop(answer.send(recorded));
                }
                Next::Message(Message::Seal(answer)) => {
                    let sealed = self.seal();
                    drop(answer.send(sealed));
                }
                Next::Message(Message::Claim(answer)) => {
                    let epoch = self.claim();
                    drop(answer.send(epoch));
                }
                Next::Message(Message::Close(answer)) => {
                    let closed = self.close();
                    drop(answer.send(closed));
                    return;
                }
                Next::Message(Message::Commit(submitted)) => batch.push(*submitted),
                Next::Message(Message::Stop) | Next::Gone => return,
            }
        }
    }

    /// Takes the commits that wait, up to the size of a group, and what ended the taking.
    fn collect(&self, receiver: &Receiver<Message>, batch: &mut Vec<Submitted>) -> Next {
        let mut bytes: usize = batch.iter().map(Submitted::bytes).sum();
        if batch.is_empty() {
            match self.wait(receiver) {
                Next::Message(Message::Commit(submitted)) => {
                    bytes += submitted.bytes();
                    batch.push(*submitted);
                }
                other @ (Next::Nothing | Next::Message(_) | Next::Sync | Next::Gone) => return other,
            }
        }
        while batch.len() < GROUP_FRAMES_MAX {
            match receiver.try_recv() {
                // It waits for the next group; the loop takes it up again.
                Ok(Message::Commit(submitted)) if bytes + submitted.bytes() > GROUP_BYTES_MAX => {
                    return Next::Message(Message::Commit(submitted));
                }
                Ok(Message::Commit(submitted)) => {
                    bytes += submitted.bytes();
                    batch.push(*submitted);
                }
                Ok(other) => return Next::Message(other),
                // A sender that is gone is met again by the next wait.
                Err(_) => return Next::Nothing,
            }
        }
        Next::Nothing
    }

    fn wait(&self, receiver: &Receiver<Message>) -> Next {
        let (Some(linger), Some(since)) = (self.linger, self.unsynced_since) else {
            return receiver.recv().map_or(Next::Gone, Next::Message);
        };
        let left = linger.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Next::Sync;
        }
        match receiver.recv_timeout(left) {
            Ok(message) => Next::Message(message),
            Err(RecvTimeoutError::Timeout) => Next::Sync,
            Err(RecvTimeoutError::Disconnected) => Next::Gone,
        }
    }

    /// Writes the commits as one group, and once more if its segment had to be given up.
    fn commit(&mut self, submitted: Vec<Submitted>) {
        if let Err((error, waiting)) = self.write_group(submitted) {
            let Err((error, waiting)) =
                self.take_back(error, waiting).and_then(|again| self.write_group(again))
            else {
                return;
            };
            let waiting = match self.take_back(error.clone(), waiting) {
                Ok(waiting) | Err((_, waiting)) => waiting,
            };
            // What was sent after them, before their answers were seen, builds on nothing.
            self.linker.take_back(waiting.iter().map(|submitted| submitted.commit.stream));
            for submitted in waiting {
                // A dropped ticket wants no answer.
                let _ = submitted.answer.send(Err(error.clone()));
            }
        }
    }

    fn write_group(&mut self, submitted: Vec<Submitted>) -> Result<(), Failed> {
        let shared = Arc::clone(&self.shared);
        let guard = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = guard.as_ref() else { return Err((Error::Closed, submitted)) };
        let bytes = submitted.iter().map(Submitted::bytes).sum();
        let segment = match self.tail.make_room(bytes) {
            Ok(segment) => segment,
            Err(error) => {
                self.release(state);
                return Err((error, submitted));
            }
        };
        self.release(state);
        let Linked { accepted, refused } = self.link(submitted, state, segment);
        if self.draft.is_empty() && (refused.is_empty() || self.unsynced.is_empty()) {
            refuse(refused);
            return Ok(());
        }
        let barrier = !refused.is_empty() || accepted.iter().any(|(submitted, _)| submitted.is_durable());
        if !self.draft.is_empty()
            && let Err(error) = self.tail.write(&mut self.draft, self.linker.epoch, barrier)
        {
            return Err((error, waiting(accepted, refused)));
        }
        self.draft.clear();
        let (durable, ordered): (Vec<_>, Vec<_>) =
            accepted.into_iter().partition(|(submitted, _)| submitted.is_durable());
        if !ordered.is_empty() {
            self.unsynced.extend(ordered.iter().map(|(submitted, _)| submitted.commit.stream));
            self.unsynced_since.get_or_insert_with(Instant::now);
            answer(ordered);
        }
        if barrier && let Err(error) = self.tail.sync() {
            return Err((error, waiting(durable, refused)));
        }
        answer(durable);
        refuse(refused);
        self.release(state);
        Ok(())
    }

    /// Links what is accepted and answers what is not. Who is told that something is there already is told after the
    /// barrier that covers it.
    fn link(&mut self, submitted: Vec<Submitted>, state: &State, segment: u64) -> Linked {
        let mut linked = Linked { accepted: Vec::with_capacity(submitted.len()), refused: Vec::new() };
        let position = self.tail.written().position;
        let mut target = Target { state, draft: &mut self.draft, segment, position };
        for mut submitted in submitted {
            let starts =
                matches!(submitted.commit.stream, Stream::Run(_)) && submitted.commit.expect_seq == 0;
            // Live runs need what is left, to park.
            let room = if starts { self.tail.spare() } else { Ok(()) };
            let accepted = room.and_then(|()| self.linker.link(&mut submitted, &mut target));
            self.at_ms = self.at_ms.max(submitted.commit.at_ms);
            match accepted {
                Ok(receipt) => linked.accepted.push((submitted, receipt)),
                Err(error @ (Error::Duplicate { .. } | Error::Conflict { .. })) if submitted.is_durable() => {
                    linked.refused.push((submitted, error));
                }
                // A dropped ticket wants no answer.
                Err(error) => drop(submitted.answer.send(Err(error))),
            }
        }
        linked
    }

    /// Gives the segment up and takes back what is not durable. Answers the commits to link again; fails if
    /// no segment was open: another try would meet the same.
    fn take_back(&mut self, error: Error, mut waiting: Vec<Submitted>) -> Result<Vec<Submitted>, Failed> {
        let had_segment = self.tail.give_up();
        if had_segment {
            tracing::warn!(%error, void = self.unsynced.len(), "a segment was given up");
        }
        self.draft.clear();
        if let Some(state) = self.shared.state.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            state.void(self.tail.acked().position);
        }
        self.linker.take_back(self.unsynced.drain(..));
        self.unsynced_since = None;
        waiting.iter_mut().for_each(Submitted::unlink);
        if had_segment { Ok(waiting) } else { Err((error, waiting)) }
    }

    /// Tells the state what is durable by now.
    fn release(&mut self, state: &State) {
        let durable = self.tail.acked().position;
        if self.tail.acked() == self.tail.written() {
            self.unsynced.clear();
            self.unsynced_since = None;
        }
        if self.released < durable {
            state.release(durable);
            self.released = durable;
        }
    }

    /// Nobody asked for a barrier for too long: ordered commits get one.
    fn linger_sync(&mut self) {
        match self.tail.sync() {
            Ok(()) => self.release_now(),
            Err(error) => {
                // Nobody waits for them; the next commit of each run meets the error.
                let _ = self.take_back(error, Vec::new());
            }
        }
    }

    fn claim(&mut self) -> Result<Epoch, Error> {
        if !self.is_claimed {
            self.is_claimed = true;
            return Ok(Epoch(self.linker.epoch));
        }
        self.open_epoch()
    }

    /// Seals the segment that is open: the next group begins another. If that fails, the segment is given up as after
    /// any failed barrier.
    fn seal(&mut self) -> Result<(), Error> {
        let sealed = self.tail.seal();
        if let Err(error) = &sealed {
            // Nobody waits: the next commit of each run meets the error.
            let _ = self.take_back(error.clone(), Vec::new());
        }
        self.release_now();
        sealed
    }

    fn close(&mut self) -> Result<(), Error> {
        let recorded = self.own_record(OwnRecord { code: CLOSED, ..OwnRecord::default() });
        let closed = self.tail.close();
        self.release_now();
        recorded.and(closed)
    }

    /// Tells the state what is durable by now, if it is still there.
    fn release_now(&mut self) {
        let shared = Arc::clone(&self.shared);
        if let Some(state) = shared.state.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            self.release(state);
        }
    }

    /// Commits a record on the store's own stream 0.
    fn own_record(&mut self, record: OwnRecord) -> Result<Receipt, Error> {
        let OwnRecord { code, payload, puts, requires, again } = record;
        let stream = Stream::Own(0);
        let commit = Commit {
            stream,
            expect_seq: self.next_seq(stream)?,
            epoch: Epoch(self.linker.epoch),
            at_ms: self.at_ms,
            logic_version: 0,
            kind: RecordKind { code, carries_messages: false, ends_stream: false },
            payload,
            puts,
            state_hash: Hash::default(),
            requires,
            durability: Durability::Durable,
        };
        let (answer, mut answered) = oneshot::channel();
        let salt = self.shared.salts.next();
        let submitted = Submitted::new(commit, None, salt, answer).map_err(|(error, _)| error)?;
        self.commit(vec![submitted.with_again(again)]);
        // `commit` answers before it returns.
        answered.try_recv().unwrap_or(Err(Error::Closed))
    }

    fn next_seq(&mut self, stream: Stream) -> Result<Seq, Error> {
        let shared = Arc::clone(&self.shared);
        let guard = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let state = guard.as_ref().ok_or(Error::Closed)?;
        Ok(self.linker.head(stream, state)?.map_or(0, |head| head.head.seq + 1))
    }
}

/// What ended the taking of commits.
enum Next {
    Nothing,
    Message(Message),
    /// Ordered commits have waited long enough.
    Sync,
    /// Nobody is left to ask.
    Gone,
}

/// The commits that are linked again when their group has failed.
fn waiting(accepted: Vec<(Submitted, Receipt)>, refused: Vec<(Submitted, Error)>) -> Vec<Submitted> {
    let accepted = accepted.into_iter().map(|(submitted, _)| submitted);
    accepted.chain(refused.into_iter().map(|(submitted, _)| submitted)).collect()
}

fn refuse(refused: Vec<(Submitted, Error)>) {
    for (submitted, error) in refused {
        // A dropped ticket wants no answer.
        let _ = submitted.answer.send(Err(error));
    }
}

fn answer(linked: Vec<(Submitted, Receipt)>) {
    for (submitted, receipt) in linked {
        let sender: oneshot::Sender<_> = submitted.answer;
        // A dropped ticket wants no answer.
        let _ = sender.send(Ok(receipt));
    }
}
