//! Decides whether a commit is accepted, and chains it to its stream.
//!
//! Owns the newest head of every live stream and the epoch. Everything it checks is in memory or in the
//! state, which shows what was accepted before, so two commits can never both pass. Must never touch the
//! journal's files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::frame::{self, FRAME_FIXED, Header, SALT};
use crate::heads::{self, StreamHead};
use crate::keys::{add_to_counter, admit, read_counter};
use crate::limits::{FRAME_BYTES_MAX, INBOX_ITEMS_MAX, LIVE_STREAMS_MAX};
use crate::state::State;
use crate::tail::Draft;
use crate::{Commit, Durability, Error, Hash, Head, Put, Receipt, Require, RunKey, Seq, Stream};

/// Bytes that an encoded put takes beside its key and value.
const PUT_FIXED: usize = 6;
/// What a value that is put again is taken to have; a group may pass the space that was made for it.
const AGAIN_BYTES: usize = 64;

/// A commit on its way to the writer, with all that its own thread could prepare.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) commit: Commit,
    /// For an item of an inbox: how many the run has consumed. Its sequence number is the next one.
    pub(crate) consumed: Option<u64>,
    salt: [u8; SALT],
    payload_hash: Hash,
    /// The puts, encoded.
    puts: Vec<u8>,
    puts_hash: Hash,
    pub(crate) answer: oneshot::Sender<Result<Receipt, Error>>,
    /// Keys whose values at the moment of linking are put again.
    again: Vec<Vec<u8>>,
    /// While it is linked: what the state was given, of which the first `given` are the commit's own puts.
    staged: Option<Arc<[Put]>>,
    given: usize,
}

impl Submitted {
    /// Hashes and encodes; fails if a part is too large.
    pub(crate) fn new(
        commit: Commit,
        consumed: Option<u64>,
        salt: [u8; SALT],
        answer: oneshot::Sender<Result<Receipt, Error>>,
    ) -> Result<Self, (Error, oneshot::Sender<Result<Receipt, Error>>)> {
        if let Err(error) = admit(&commit.puts) {
            return Err((error, answer));
        }
        let sizes =
            commit.puts.iter().map(|put| PUT_FIXED + put.key.len() + put.value.as_ref().map_or(0, Vec::len));
        let mut puts = Vec::with_capacity(sizes.sum());
        commit.puts.iter().for_each(|put| frame::put_put(&mut puts, put));
        let payload_hash = payload_hash(&salt, &commit.payload);
        let puts_hash = frame::hash(&puts);
        let given = commit.puts.len();
        let submitted = Self {
            commit,
            consumed,
            salt,
            payload_hash,
            puts,
            puts_hash,
            answer,
            again: vec![],
            staged: None,
            given,
        };
        match submitted.bytes() {
            got if got > FRAME_BYTES_MAX => {
                Err((Error::TooLarge { what: "a commit", got, max: FRAME_BYTES_MAX }, submitted.answer))
            }
            _ => Ok(submitted),
        }
    }

    /// Most bytes that its frame takes.
    pub(crate) fn bytes(&self) -> usize {
        let sums = self.commit.requires.iter().map(|require| match require {
            Require::Ceiling { key, .. } => PUT_FIXED + key.len() + 8,
            Require::Absent { .. } | Require::Holds { .. } | Require::InboxLen { .. } => 0,
        });
        let again = self.again.iter().map(|key| PUT_FIXED + key.len() + AGAIN_BYTES);
        let puts = self.puts.len() + sums.sum::<usize>() + again.sum::<usize>();
        FRAME_FIXED + SALT + self.commit.payload.len() + puts
    }

    /// Has the values of `keys` put again, as they are when it is linked; a key without a value is deleted again.
    pub(crate) fn with_again(self, keys: Vec<Vec<u8>>) -> Self {
        Self { again: keys, ..self }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.commit.durability == Durability::Durable
    }

    /// Makes it as it was before it was linked.
    pub(crate) fn unlink(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.commit.puts = staged.iter().take(self.given).cloned().collect();
        }
    }
}

/// Hash of a payload with its salt.
pub(crate) fn payload_hash(salt: &[u8], payload: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(salt).update(payload);
    Hash(*hasher.finalize().as_bytes())
}

/// Where accepted frames go.
pub(crate) struct Target<'a> {
    pub(crate) state: &'a State,
    pub(crate) draft: &'a mut Draft,
    pub(crate) segment: u64,
    /// Number of the next frame.
    pub(crate) position: u64,
}

/// Accepts or refuses commits, one after the other.
#[derive(Debug)]
pub(crate) struct Linker {
    pub(crate) epoch: u64,
    heads: HashMap<Stream, Option<StreamHead>>,
    /// Streams that lost records to a failed barrier and were not continued since.
    void: HashSet<Stream>,
}

impl Linker {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, heads: HashMap::new(), void: HashSet::new() }
    }

    /// Checks a commit; if it is accepted, appends its frame to the draft and its puts to the state.
    pub(crate) fn link(
        &mut self,
        submitted: &mut Submitted,
        target: &mut Target<'_>,
    ) -> Result<Receipt, Error> {
        let stream = submitted.commit.stream;
        let before = self.head(stream, target.state)?;
        let next = before.map_or(0, |before| before.head.seq + 1);
        let mut sums = self.check(submitted, next, target.state)?;
        for key in &submitted.again {
            sums.push(Put { key: key.clone(), value: target.state.get(key)? });
        }
        let (puts_hash, extended) = if sums.is_empty() {
            (submitted.puts_hash, None)
        } else {
            let mut puts = submitted.puts.clone();
            sums.iter().for_each(|put| frame::put_put(&mut puts, put));
            (frame::hash(&puts), Some(puts))
        };
        let Commit { epoch, at_ms, logic_version, kind, state_hash, .. } = submitted.commit;
        let header = Header {
            logic_version,
            stream,
            seq: next,
            epoch: epoch.0,
            at_ms,
            kind,
            prev_hash: before.map(|before| before.head.hash).unwrap_or_default(),
            payload_hash: submitted.payload_hash,
            puts_hash,
            state_hash,
        };
        let payload = (&submitted.salt, submitted.commit.payload.as_slice());
        let hash = target.draft.push(header, payload, extended.as_ref().unwrap_or(&submitted.puts));
        let after = StreamHead::after(before.as_ref(), &header, hash, target.segment);
        self.heads.insert(stream, Some(after));
        self.void.remove(&stream);

        let own = std::mem::take(&mut submitted.commit.puts);
        let puts: Arc<[Put]> = own.into_iter().chain(sums).chain([after.to_put(stream)]).collect();
        submitted.staged = Some(Arc::clone(&puts));
        let position = target.position;
        target.state.stage(position, puts);
        target.position += 1;
        Ok(Receipt { head: Head { seq: next, hash }, position })
    }

    /// Forgets what was linked and is not durable. Commits that build on records of `lost` are void.
    pub(crate) fn take_back(&mut self, lost: impl Iterator<Item = Stream>) {
        self.heads.clear();
        self.void.extend(lost);
    }

    /// Heads of other streams than its own were put: they are asked of the state again.
    pub(crate) fn forget_heads(&mut self) {
        self.heads.clear();
    }

    /// All preconditions, in the order in which they are reported. Answers the counters' new values.
    fn check(&mut self, submitted: &Submitted, next: Seq, state: &State) -> Result<Vec<Put>, Error> {
        let commit = &submitted.commit;
        if commit.epoch.0 < self.epoch {
            return Err(Error::Fenced { got: commit.epoch.0, current: self.epoch });
        }
        let expected = submitted.consumed.map_or(commit.expect_seq, |_| next);
        if expected > next && self.void.contains(&commit.stream) {
            return Err(Error::Void);
        }
        if expected != next {
            return Err(Error::Conflict { stream: commit.stream, expected, next });
        }
        let sums = self.check_requires(&commit.requires, state)?;
        match commit.stream {
            Stream::Inbox(run) => self.check_inbox(run, next, submitted.consumed, state)?,
            Stream::Own(_) | Stream::Run(_) if submitted.consumed.is_some() => {
                return Err(Error::Conflict { stream: commit.stream, expected: commit.expect_seq, next });
            }
            Stream::Run(run) => {
                if self.head(commit.stream, state)?.is_some_and(|head| head.is_purged) {
                    return Err(Error::Ended { run });
                }
            }
            Stream::Own(_) => {}
        }
        Ok(sums)
    }

    /// An item that is sent again with its idempotency key is a duplicate, whatever has become of the run
    /// since: this is asked after the requirements.
    fn check_inbox(
        &mut self,
        run: RunKey,
        len: u64,
        consumed: Option<u64>,
        state: &State,
    ) -> Result<(), Error> {
        if self.head(Stream::Run(run), state)?.is_some_and(|head| head.is_ended) {
            return Err(Error::Ended { run });
        }
        match consumed {
            Some(consumed) if len.saturating_sub(consumed) >= INBOX_ITEMS_MAX => {
                Err(Error::InboxFull { run, max: INBOX_ITEMS_MAX })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_requires(&mut self, requires: &[Require], state: &State) -> Result<Vec<Put>, Error> {
        let mut sums: Vec<Put> = Vec::new();
        for require in requires {
            match require {
                Require::Absent { key } => {
                    if let Some(value) = state.get(key)? {
                        return Err(Error::Duplicate { value });
                    }
                }
                Require::Holds { key, value } => {
                    if state.get(key)? != *value {
                        return Err(Error::Changed { key: key.clone() });
                    }
                }
                Require::InboxLen { run, len: seen } => {
                    let head = self.head(Stream::Inbox(*run), state)?;
                    let len = head.map_or(0, |head| head.head.seq + 1);
                    if len != *seen {
                        return Err(Error::InboxMoved { run: *run, seen: *seen, len });
                    }
                }
                Require::Ceiling { key, add, max } => {
                    let earlier = sums.iter().rev().find(|sum| sum.key == *key);
                    let current = match earlier {
                        Some(sum) => read_counter(sum.value.as_deref()),
                        None => read_counter(state.get(key)?.as_deref()),
                    };
                    let sum = add_to_counter(current, *add, *max);
                    let sum =
                        sum.ok_or(Error::Ceiling { key: key.clone(), current, add: *add, max: *max })?;
                    sums.push(Put { key: key.clone(), value: Some(sum.to_le_bytes().to_vec()) });
                }
            }
        }
        Ok(sums)
    }

    /// The newest head of a stream, accepted commits included.
    pub(crate) fn head(&mut self, stream: Stream, state: &State) -> Result<Option<StreamHead>, Error> {
        if let Some(head) = self.heads.get(&stream) {
            return Ok(*head);
        }
        if self.heads.len() >= LIVE_STREAMS_MAX {
            // The state has them all.
            self.heads.clear();
        }
        let head = state.get(&heads::key(stream))?.and_then(|value| StreamHead::decode(&value));
        self.heads.insert(stream, head);
        Ok(head)
    }
}
