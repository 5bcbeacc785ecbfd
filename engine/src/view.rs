//! A journal as a store that only reads: for commands beside a running engine, or without one.
//!
//! Owns a picture of the committed state, made from the puts in the frames alone. Of a damaged journal it answers for every
//! run whose records are whole, and with the damage for the others. It must never write or take a lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::path::Path;

use store::{
    Commit, Epoch, Error, Head, JournalReader, Loaded, Purge, Purged, Record, Remains, RunKey, Seq, Store,
    Stream, Ticket, run_prefix,
};

use crate::keys;

/// The picture.
pub struct JournalView {
    path: std::path::PathBuf,
    source: Source,
    picture: Picture,
}

/// Where records are read.
enum Source {
    Journal(JournalReader),
    Damaged(Remains),
}

/// What the puts of all frames add up to.
#[derive(Default)]
pub(crate) struct Picture {
    pub(crate) values: BTreeMap<Vec<u8>, Vec<u8>>,
    heads: HashMap<Stream, Head>,
    ended: HashSet<Stream>,
}

impl JournalView {
    /// Reads the journal in `DIR/journal` as it is now. Damage of it is no error; `remains` says what it is.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        loop {
            let mut picture = Picture::default();
            let read =
                JournalReader::open(dir).map(|reader| (reader.each(|_, record| picture.add(record)), reader));
            let source = match read {
                Ok((Ok(()), reader)) => Source::Journal(reader),
                // An engine has purged runs meanwhile. It does so once, and then no longer.
                Ok((Err(Error::Damaged { .. }), reader)) if reader.has_moved()? => continue,
                Ok((Err(Error::Damaged { .. }), _)) | Err(Error::Damaged { .. }) => {
                    let remains = Remains::read(dir)?;
                    picture = Picture::of(&remains)?;
                    picture.hide(&remains);
                    Source::Damaged(remains)
                }
                Ok((Err(error), _)) | Err(error) => return Err(error),
            };
            return Ok(Self { path: dir.to_owned(), source, picture });
        }
    }

    /// What is left of the journal, if it is damaged.
    pub fn remains(&self) -> Option<&Remains> {
        match &self.source {
            Source::Journal(_) => None,
            Source::Damaged(remains) => Some(remains),
        }
    }

    fn read(
        &self,
        stream: Stream,
        from: Seq,
        limit: usize,
        only_messages: bool,
    ) -> Result<Vec<Record>, Error> {
        match &self.source {
            Source::Journal(reader) if only_messages => reader.read_transcript(stream, from, limit),
            Source::Journal(reader) => reader.read(stream, from, limit),
            Source::Damaged(remains) => remains.records(stream, from, limit, only_messages),
        }
    }

    fn refuse(&self) -> Ticket {
        Ticket::ready(Err(Error::ReadOnly { path: self.path.clone() }))
    }
}

impl Picture {
    /// The picture of all whole frames.
    pub(crate) fn of(remains: &Remains) -> Result<Self, Error> {
        let mut picture = Self::default();
        remains.each(|_, record| picture.add(record))?;
        Ok(picture)
    }

    fn add(&mut self, record: Record) {
        let Self { values, heads, ended } = self;
        for (run, head) in store::purged_by(&record) {
            heads.insert(Stream::Run(run), head);
            heads.remove(&Stream::Inbox(run));
            ended.insert(Stream::Run(run));
        }
        for put in record.puts.into_iter().filter(|put| !store::is_reserved(&put.key)) {
            match put.value {
                Some(value) => values.insert(put.key, value),
                None => values.remove(&put.key),
            };
        }
        if record.kind.ends_stream {
            ended.insert(record.stream);
        }
        heads.insert(record.stream, record.head);
    }

    /// Takes torn runs out of the lists of runs; by name they are still found, so that they answer with the damage.
    fn hide(&mut self, remains: &Remains) {
        let is_torn = |key: &[u8]| {
            let run = keys::run_of(key).map(keys::run_key);
            run.is_some_and(|run| remains.torn().contains_key(&run))
        };
        let lists = [keys::NEWEST, keys::LIVE];
        self.values.retain(|key, _| !(lists.iter().any(|list| key.starts_with(list)) && is_torn(key)));
        for run in remains.torn().keys() {
            self.values.entry(keys::meta(model::RunId(run.0))).or_default();
        }
    }
}

impl Store for JournalView {
    fn commit(&self, _commit: Commit) -> Ticket {
        self.refuse()
    }

    fn push_inbox(&self, _item: Commit, _consumed: u64) -> Ticket {
        self.refuse()
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.remains().map_or(Ok(()), |remains| remains.admit(run))?;
        let Picture { heads, ended, .. } = &self.picture;
        Ok(Loaded {
            head: heads.get(&Stream::Run(run)).copied(),
            inbox_len: heads.get(&Stream::Inbox(run)).map_or(0, |head| head.seq.saturating_add(1)),
            is_ended: ended.contains(&Stream::Run(run)),
            values: self.scan(&run_prefix(run), None, usize::MAX)?,
        })
    }

    fn claim(&self) -> Result<Epoch, Error> {
        Err(Error::ReadOnly { path: self.path.clone() })
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.read(stream, from, limit, false)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.read(stream, from, limit, true)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let range = self.picture.values.range::<[u8], _>((from, Bound::Unbounded));
        let found = range.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn purge(&self, _runs: &[Purge]) -> Result<Purged, Error> {
        Err(Error::ReadOnly { path: self.path.clone() })
    }
}
