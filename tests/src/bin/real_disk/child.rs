//! Who writes on the disk, and who looks at what a power cut left of it: each a process of its own.
//!
//! Owns what is written and what must be there. It must never say that something is durable before the store (or, for
//! the controls, the system) has said so.

use std::fs::{self, File};
use std::io::{BufRead as _, Read as _, Write as _};
use std::path::Path;

use store::conformance::{commit, run_key};
use store::{Commit, Epoch, JournalStore, Options, Put, Seq, Store as _, Stream};

/// Runs that are written at once.
const RUNS: usize = 4;
/// Bytes of the first segment: small, so that segments are made and sealed all the time.
const SEGMENT_BYTES: u64 = 32 << 10;
/// Bytes of a record of a plain file.
const RECORD_BYTES: usize = 1_000;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// The store.
    Store,
    /// The store, on a disk that does not hear syncs.
    Unheard,
    /// A plain file, with `fdatasync` after each record.
    Synced,
    /// A plain file without it: what it says is not so.
    Unsynced,
}

impl Writer {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Store, Self::Unheard, Self::Synced, Self::Unsynced];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Unheard => "unheard",
            Self::Synced => "synced",
            Self::Unsynced => "unsynced",
        }
    }

    /// What it is called in the table.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Store => "the store",
            Self::Unheard => "the store, its syncs not heard",
            Self::Synced => "a file, with fdatasync",
            Self::Unsynced => "a file, without",
        }
    }

    /// What it acknowledges can be lost: a control, which shows that the rig sees it.
    pub(crate) const fn must_lose(self) -> bool {
        match self {
            Self::Store | Self::Synced => false,
            Self::Unheard | Self::Unsynced => true,
        }
    }

    /// Who has this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|writer| writer.name() == name)
    }

    /// Writes `groups` groups below `dir`. After each it says on stdout how much of each run is durable, and goes on
    /// when it is told to on stdin. It ends as if killed.
    pub(crate) fn write(self, dir: &Path, groups: u64) -> Result<(), String> {
        match self {
            Self::Store | Self::Unheard => write_store(&dir.join("store"), groups),
            Self::Synced => write_file(&dir.join("file"), groups, true),
            Self::Unsynced => write_file(&dir.join("file"), groups, false),
        }
    }

    /// Looks whether everything that was said to be durable is there; if not, what is wrong.
    pub(crate) fn check(self, dir: &Path, durable: &[u64]) -> Result<(), String> {
        match self {
            Self::Store | Self::Unheard => check_store(&dir.join("store"), durable),
            Self::Synced | Self::Unsynced => check_file(&dir.join("file"), durable),
        }
    }
}

/// Says what is durable, and waits to be told to go on.
fn acknowledge(durable: &[u64]) -> Result<(), String> {
    let line: Vec<String> = durable.iter().map(u64::to_string).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", line.join(" ")).and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    match std::io::stdin().lock().read_line(&mut String::new()) {
        Ok(0) => Err("nobody listens any more".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn open(dir: &Path, boot: u8) -> Result<(JournalStore, Epoch), String> {
    let options = Options { segment_bytes: SEGMENT_BYTES, boot_id: [boot; 16], ..Options::default() };
    let store = JournalStore::open(dir, options).map_err(|error| error.to_string())?;
    let epoch = store.claim().map_err(|error| error.to_string())?;
    Ok((store, epoch))
}

/// A commit of a run, whose payload only it can have.
fn nth(epoch: Epoch, run: usize, seq: Seq) -> Commit {
    let plain = commit(epoch, Stream::Run(run_key(run as u8)), seq);
    let put = Put { key: format!("run {run}").into_bytes(), value: Some(seq.to_le_bytes().to_vec()) };
    Commit { payload: payload(run, seq), puts: vec![put], ..plain }
}

/// Between a few bytes and some pages.
fn payload(run: usize, seq: Seq) -> Vec<u8> {
    format!("{run} {seq} ").into_bytes().repeat(1 + (seq as usize * 131 + run * 17) % 1_500)
}

fn write_store(dir: &Path, groups: u64) -> Result<(), String> {
    let (mut store, mut epoch) = open(dir, 1)?;
    let mut durable = [0; RUNS];
    for group in 0..groups {
        if group == groups / 2 {
            store.close().map_err(|error| error.to_string())?;
            (store, epoch) = open(dir, 1)?;
        }
        let mut tickets = Vec::new();
        for (run, seq) in durable.iter().enumerate().take(1 + group as usize % RUNS) {
            tickets.push(store.commit(nth(epoch, run, *seq)));
        }
        for (run, ticket) in tickets.into_iter().enumerate() {
            ticket.wait().map_err(|error| error.to_string())?;
            durable[run] += 1;
        }
        acknowledge(&durable)?;
    }
    std::process::exit(0)
}

fn check_store(dir: &Path, durable: &[u64]) -> Result<(), String> {
    let (store, epoch) = open(dir, 2)?;
    for (run, durable) in durable.iter().enumerate() {
        let stream = Stream::Run(run_key(run as u8));
        let records = store.read_journal(stream, 0, usize::MAX).map_err(|error| error.to_string())?;
        let found = records.len() as u64;
        if found < *durable {
            return Err(format!("run {run} has {found} commits, {durable} were acknowledged"));
        }
        for (seq, record) in records.iter().enumerate() {
            if record.head.seq != seq as Seq || record.payload != Some(payload(run, seq as Seq)) {
                return Err(format!("commit {seq} of run {run} is not what was written"));
            }
        }
        store.commit(nth(epoch, run, found)).wait().map_err(|error| error.to_string())?;
    }
    store.close().map_err(|error| error.to_string())?;
    let report = store::verify(dir).map_err(|error| error.to_string())?;
    report.findings.first().map_or(Ok(()), |finding| Err(format!("{finding:?}")))
}

/// The nth record of a plain file.
fn record(nth: u64) -> Vec<u8> {
    nth.to_le_bytes().repeat(RECORD_BYTES / 8)
}

fn write_file(path: &Path, groups: u64, syncs: bool) -> Result<(), String> {
    let mut file = File::create(path).map_err(|error| error.to_string())?;
    let dir = path.parent().map(File::open).transpose().map_err(|error| error.to_string())?;
    if let (true, Some(dir)) = (syncs, dir) {
        file.sync_all().and_then(|()| dir.sync_all()).map_err(|error| error.to_string())?;
    }
    for group in 0..groups {
        let written = file.write_all(&record(group));
        let synced = written.and_then(|()| if syncs { file.sync_data() } else { Ok(()) });
        synced.map_err(|error| error.to_string())?;
        acknowledge(&[group + 1])?;
    }
    Ok(())
}

fn check_file(path: &Path, durable: &[u64]) -> Result<(), String> {
    let durable = durable.first().copied().unwrap_or_default();
    let mut bytes = Vec::new();
    if path.exists() || durable > 0 {
        let mut file = fs::File::open(path).map_err(|error| error.to_string())?;
        file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    }
    let found =
        bytes.chunks(RECORD_BYTES).zip(0..).take_while(|(bytes, nth)| **bytes == record(*nth)).count() as u64;
    if found < durable {
        return Err(format!("the file has {found} records, {durable} were acknowledged"));
    }
    Ok(())
}
