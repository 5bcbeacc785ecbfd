//! A journal as a store that only reads: for commands beside a running engine, or without one.
//!
//! Owns a picture of the committed state, made from the puts in the frames alone. It must never write or take a lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::path::Path;

use store::{
    Commit, Epoch, Error, Head, JournalReader, Loaded, Purge, Purged, Record, RunKey, Seq, Store, Stream,
    Ticket, run_prefix,
};

/// The picture.
pub struct JournalView {
    path: std::path::PathBuf,
    reader: JournalReader,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    heads: HashMap<Stream, Head>,
    ended: HashSet<Stream>,
}

impl JournalView {
    /// Reads the journal in `DIR/journal` as it is now.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        loop {
            let reader = JournalReader::open(dir)?;
            let (values, heads, ended) = (BTreeMap::new(), HashMap::new(), HashSet::new());
            let mut view = Self { path: dir.to_owned(), reader, values, heads, ended };
            match view.read() {
                // An engine has purged runs meanwhile. It does so once, and then no longer.
                Err(Error::Damaged { .. }) if view.reader.has_moved()? => {}
                read => return read.map(|()| view),
            }
        }
    }

    fn read(&mut self) -> Result<(), Error> {
        let Self { reader, values, heads, ended, .. } = self;
        reader.each(|_, record| {
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
        })
    }

    fn refuse(&self) -> Ticket {
        Ticket::ready(Err(Error::ReadOnly { path: self.path.clone() }))
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
        Ok(Loaded {
            head: self.heads.get(&Stream::Run(run)).copied(),
            inbox_len: self.heads.get(&Stream::Inbox(run)).map_or(0, |head| head.seq.saturating_add(1)),
            is_ended: self.ended.contains(&Stream::Run(run)),
            values: self.scan(&run_prefix(run), None, usize::MAX)?,
        })
    }

    fn claim(&self) -> Result<Epoch, Error> {
        Err(Error::ReadOnly { path: self.path.clone() })
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.reader.read(stream, from, limit)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.reader.read_transcript(stream, from, limit)
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
        let range = self.values.range::<[u8], _>((from, Bound::Unbounded));
        let found = range.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn purge(&self, _runs: &[Purge]) -> Result<Purged, Error> {
        Err(Error::ReadOnly { path: self.path.clone() })
    }
}
