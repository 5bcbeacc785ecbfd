//! Replacing a file so that the change survives power loss, and telling after a crash whether it happened.
//!
//! Owns the order of the operations. It must never leave a half file under the file's name, and never answer
//! before the file and every directory on the way to it are synced.
//!
//! The order, and why a probe can tell what happened:
//! 1. The intent (what the file was, what it is to be, what the call answers) is in the call's scratch,
//!    synced, before anything else happens. So without an intent nothing happened.
//! 2. The new content goes to a temporary file beside the file and is synced; then one rename puts it in
//!    place. So the file is the old one or the new one, and its hash says which.
//! 3. The directories are synced from the file up to the workspace, also those that an earlier try made, then
//!    the call answers. A probe that finds the new file syncs them too: the rename may not be on the disk
//!    yet.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use model::ToolResult;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::workspace::{Place, Target, Workspace, open_dir, shown};
use super::{CallContext, Probe};

/// Version of the intent's encoding.
const INTENT_VERSION: u8 = 1;

/// The intent's name in the call's scratch.
const INTENT_NAME: &str = "intent";

/// How many directories above the scratch the engine may leave for the call to make.
const SCRATCH_LEVELS: usize = 3;

/// The most bytes that one write hands to the disk.
const CHUNK_BYTES: usize = 1 << 20;

/// The most bytes of an intent that a probe reads.
const INTENT_BYTES_MAX: u64 = 16 << 20;

/// The only door to the disk for what changes it, so that a test can count the operations and cut after each.
pub(super) trait Door {
    /// Performs one operation.
    fn pass<T>(&self, name: &'static str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T>;

    /// Syncs one file or directory.
    fn sync(&self, name: &'static str, file: &File) -> io::Result<()>;
}

/// The door that is always open.
pub(super) struct Disk;

impl Door for Disk {
    fn pass<T>(&self, _name: &'static str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        operation()
    }

    fn sync(&self, _name: &'static str, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// Where a call works and leaves its traces.
#[derive(Clone, Debug)]
pub(super) struct Site {
    workspace: PathBuf,
    scratch: Option<PathBuf>,
    /// Name of the temporary file, the same for every try of the call.
    temporary: OsString,
}

impl Site {
    /// The site of `call`.
    pub(super) fn of(call: &CallContext) -> Self {
        let hash = blake3::hash(call.idempotency_key.as_bytes()).to_hex();
        let temporary = format!(".sprag-{}", hash.get(..16).unwrap_or_default()).into();
        Self { workspace: call.workspace.clone(), scratch: call.scratch.clone(), temporary }
    }
}

/// A file as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// blake3 of its content.
    pub(super) hash: [u8; 32],
    /// Its permission bits.
    pub(super) mode: u32,
}

impl Snapshot {
    /// The file at `place`; none if nothing is there.
    pub(super) fn of(place: &Place) -> io::Result<Option<Self>> {
        let file = match place.open_file() {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let hash = blake3::Hasher::new().update_reader(&file)?.finalize();
        Ok(Some(Self { hash: *hash.as_bytes(), mode: mode(&file)? }))
    }

    /// The open `file`, whose whole content is `content`.
    pub(super) fn with_content(file: &File, content: &[u8]) -> io::Result<Self> {
        Ok(Self { hash: *blake3::hash(content).as_bytes(), mode: mode(file)? })
    }
}

fn mode(file: &File) -> io::Result<u32> {
    Ok(file.metadata()?.mode() & 0o7777)
}

/// A change of one file.
pub(super) struct Change<'a> {
    /// Where the file is.
    pub(super) place: Place,
    /// What is there now.
    pub(super) before: Option<Snapshot>,
    /// Its content afterwards.
    pub(super) after: &'a [u8],
    /// What the call answers once the change is durable.
    pub(super) result: ToolResult,
}

/// What a call is about to do, as its scratch keeps it.
#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    version: u8,
    /// Bytes of the file's path below the workspace, without links.
    path: Vec<u8>,
    before: Option<[u8; 32]>,
    after: [u8; 32],
    result: ToolResult,
}

/// Makes the change and answers once it is durable.
pub(super) fn replace(door: &impl Door, site: &Site, change: Change<'_>) -> Result<ToolResult, String> {
    let after = *blake3::hash(change.after).as_bytes();
    let before = change.before.map(|snapshot| snapshot.hash);
    let path = change.place.path().to_owned();
    let intent = Intent {
        version: INTENT_VERSION,
        path: path.as_os_str().as_bytes().to_vec(),
        before,
        after,
        result: change.result,
    };
    if let Some(scratch) = &site.scratch {
        keep_intent(door, scratch, &intent)
            .map_err(|error| format!("cannot keep the intent in `{}`: {error}", scratch.display()))?;
    }
    let done = if before == Some(after) {
        settle(door, &change.place)
    } else {
        put(door, &change.place, change.before, change.after, &site.temporary)
    };
    done.map_err(|error| format!("cannot write `{}`: {error}", shown(&path)))?;
    Ok(intent.result)
}

/// What became of a call that may have got as far as [`replace`].
pub(super) async fn probe(call: &CallContext) -> Probe {
    let site = Site::of(call);
    tokio::task::spawn_blocking(move || probe_through(&Disk, &site)).await.unwrap_or(Probe::Unknown)
}

pub(super) fn probe_through(door: &impl Door, site: &Site) -> Probe {
    let Some(scratch) = &site.scratch else { return Probe::Unknown };
    let intent = match read_intent(&scratch.join(INTENT_NAME)) {
        Ok(intent) if intent.version == INTENT_VERSION => intent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Probe::DidNotRun,
        Ok(_) | Err(_) => return Probe::Unknown,
    };
    look(door, site, intent).unwrap_or(Probe::Unknown)
}

fn look(door: &impl Door, site: &Site, intent: Intent) -> Result<Probe, String> {
    let place = Workspace::open(&site.workspace)?.locate(OsString::from_vec(intent.path))?;
    let text = |error: io::Error| error.to_string();
    if !matches!(place.target(), Target::Missing(names) if names.len() > 1) {
        remove(door, place.dir().map_err(text)?, &site.temporary).map_err(text)?;
    }
    let now = Snapshot::of(&place).map_err(text)?.map(|snapshot| snapshot.hash);
    if now == Some(intent.after) {
        settle(door, &place).map_err(text)?;
        return Ok(Probe::Ran(intent.result));
    }
    Ok(if now == intent.before { Probe::DidNotRun } else { Probe::Unknown })
}

/// Syncs a file that is what it is to be, and every directory from it up to the workspace.
fn settle(door: &impl Door, place: &Place) -> io::Result<()> {
    let file = place.open_file()?;
    door.sync("sync file", &file)?;
    sync_dirs(door, place.dirs(), &[])
}

/// Puts the new content in place of what is at `place`.
fn put(
    door: &impl Door,
    place: &Place,
    before: Option<Snapshot>,
    content: &[u8],
    temporary: &OsStr,
) -> io::Result<()> {
    let (made, name) = match place.target() {
        Target::Directory => return Err(io::ErrorKind::IsADirectory.into()),
        Target::Entry(name) => (Vec::new(), name),
        Target::Missing(names) => match names.split_last() {
            Some((name, parents)) => (make_dirs(door, place.dir()?, parents)?, name),
            None => return Err(io::ErrorKind::NotFound.into()),
        },
    };
    let dir = made.last().map_or_else(|| place.dir(), Ok)?;
    let placed = fill(door, dir, temporary, before, content)
        .and_then(|()| door.pass("rename", || Ok(renameat(dir, temporary, dir, name)?)));
    if let Err(error) = placed {
        // The first error is the one to tell. A file that stays is removed by the next try.
        let _ = remove(door, dir, temporary);
        return Err(error);
    }
    sync_dirs(door, place.dirs(), &made)
}

fn make_dirs(door: &impl Door, parent: &File, names: &[OsString]) -> io::Result<Vec<File>> {
    let mut made: Vec<File> = Vec::new();
    for name in names {
        let above = made.last().unwrap_or(parent);
        door.pass("make directory", || match mkdirat(above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        })?;
        made.push(open_dir(above, name)?);
    }
    Ok(made)
}

/// Writes and syncs the temporary file, with the permissions of the file that it is to replace.
fn fill(
    door: &impl Door,
    dir: &File,
    temporary: &OsStr,
    before: Option<Snapshot>,
    content: &[u8],
) -> io::Result<()> {
    remove(door, dir, temporary)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A file that is to be private must not be readable for a moment.
    let mode = Mode::from_raw_mode(if before.is_some() { 0o600 } else { 0o666 });
    let mut file = door.pass("create", || Ok(File::from(openat(dir, temporary, flags, mode)?)))?;
    for chunk in content.chunks(CHUNK_BYTES) {
        door.pass("write", || file.write_all(chunk))?;
    }
    if let Some(before) = before {
        let permissions = std::fs::Permissions::from_mode(before.mode);
        door.pass("set mode", || file.set_permissions(permissions))?;
    }
    door.sync("sync file", &file)
}

fn remove(door: &impl Door, dir: &File, name: &OsStr) -> io::Result<()> {
    door.pass("remove", || match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    })
}

fn sync_dirs(door: &impl Door, above: &[File], below: &[File]) -> io::Result<()> {
    above.iter().chain(below).rev().try_for_each(|dir| door.sync("sync directory", dir))
}

/// Keeps the intent under its name only once it is whole.
fn keep_intent(door: &impl Door, scratch: &Path, intent: &Intent) -> io::Result<()> {
    let bytes = postcard::to_allocvec(intent).map_err(io::Error::other)?;
    make_scratch(door, scratch)?;
    let fresh = scratch.join("intent.new");
    let mut options = OpenOptions::new();
    let mut file = door.pass("create", || options.write(true).create(true).truncate(true).open(&fresh))?;
    door.pass("write", || file.write_all(&bytes))?;
    door.sync("sync file", &file)?;
    door.pass("rename", || std::fs::rename(&fresh, scratch.join(INTENT_NAME)))?;
    door.sync("sync directory", &File::open(scratch)?)
}

/// Makes the scratch directory. Those above it are synced also if they were there: an earlier try may have made
/// them.
fn make_scratch(door: &impl Door, scratch: &Path) -> io::Result<()> {
    door.pass("make directory", || DirBuilder::new().recursive(true).mode(0o700).create(scratch))?;
    let mut above =
        scratch.ancestors().skip(1).take(SCRATCH_LEVELS).filter(|dir| !dir.as_os_str().is_empty());
    above.try_for_each(|dir| door.sync("sync directory", &File::open(dir)?))
}

fn read_intent(path: &Path) -> io::Result<Intent> {
    let mut bytes = Vec::new();
    File::open(path)?.take(INTENT_BYTES_MAX).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}
