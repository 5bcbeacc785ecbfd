//! A file system of one file, which this process serves to the kernel.
//!
//! Owns as much of the protocol of `/dev/fuse` (linux/fuse.h) as that takes. What the file holds is its [`Content`]'s.
//! It must never answer a write or a sync before its content has seen it.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Name of the one file.
pub const FILE: &str = "disk";
/// The device that file systems are served through.
pub const DEVICE: &str = "/dev/fuse";

/// The version of the protocol that is spoken here; the kernel speaks every older one than its own.
const VERSION: [u32; 2] = [7, 31];
/// Bytes of the largest write: what 32 pages hold, the most that a server gets without asking for more.
const WRITE_BYTES_MAX: u32 = 128 << 10;
/// Bytes of the largest request, its head included.
const REQUEST_BYTES_MAX: usize = 256 << 10;
const REQUEST_HEAD_BYTES: usize = 40;
const WRITE_HEAD_BYTES: usize = 40;
const INIT_BYTES: usize = 64;
const STATFS_BYTES: usize = 80;
/// The kernel must keep no pages of the file: each write and each read comes here.
const DIRECT_IO: u32 = 1;
const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;
const DIR_MODE: u32 = 0o040_700;
const FILE_MODE: u32 = 0o100_600;

/// What the one file holds.
pub trait Content: Send + 'static {
    /// Its length in bytes, which never changes.
    fn bytes(&self) -> u64;
    /// `len` bytes from `offset`.
    fn read(&mut self, offset: u64, len: usize) -> Vec<u8>;
    /// Takes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]);
    /// Everything written before is durable once this returns.
    fn sync(&mut self);
}

/// Nothing.
impl Content for () {
    fn bytes(&self) -> u64 {
        0
    }
    fn read(&mut self, _: u64, _: usize) -> Vec<u8> {
        Vec::new()
    }
    fn write(&mut self, _: u64, _: &[u8]) {}
    fn sync(&mut self) {}
}

/// A mounted file system of one file, until dropped.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
}

impl Mounted {
    /// Mounts at `point` under the name that `kind` is in the mount table (`fuse.something`). Needs root.
    pub fn new(point: &Path, kind: &str, content: impl Content) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open(DEVICE)?;
        let fd = device.as_raw_fd();
        let options = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"))?;
        mount("tests", point, kind, MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
        // It ends with the mount: nothing can be read from the device afterwards.
        thread::spawn(move || serve(device, content));
        Ok(Self { point: point.to_owned() })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Who has been unmounted by somebody else is unmounted.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}

fn serve(mut device: File, mut content: impl Content) {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    loop {
        let count = match device.read(&mut buffer) {
            Ok(count) => count,
            // A request that was interrupted before it was read.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::NOENT)) => {
                continue;
            }
            Err(_) => return,
        };
        let request = Request { bytes: &buffer[..count] };
        let (error, body) = match answer(&request, &mut content) {
            Some(Ok(body)) => (0, body),
            Some(Err(error)) => (-error.raw_os_error(), Vec::new()),
            None => continue,
        };
        let mut out = ((16 + body.len()) as u32).to_le_bytes().to_vec();
        out.extend(error.to_le_bytes());
        out.extend(request.u64(8).to_le_bytes());
        out.extend(body);
        // Nobody waits any more for an answer that the kernel does not take.
        let _ = device.write(&out);
    }
}

/// One request: its head, what it asks, and what it brings.
struct Request<'a> {
    bytes: &'a [u8],
}

impl Request<'_> {
    fn u32(&self, at: usize) -> u32 {
        self.bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn node(&self) -> u64 {
        self.u64(16)
    }
}

/// What a request asks for.
mod ask {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The answer to a request; none if it wants none.
fn answer(request: &Request<'_>, content: &mut impl Content) -> Option<Result<Vec<u8>, Errno>> {
    let body = REQUEST_HEAD_BYTES;
    Some(Ok(match request.u32(4) {
        ask::FORGET | ask::INTERRUPT | ask::BATCH_FORGET => return None,
        ask::INIT => init(),
        ask::LOOKUP if request.bytes[body..] == *format!("{FILE}\0").as_bytes() => entry(content),
        ask::LOOKUP => return Some(Err(Errno::NOENT)),
        // Nothing about the file can be set.
        ask::GETATTR | ask::SETATTR => [vec![0; 16], attributes(request.node(), content)].concat(),
        ask::OPEN | ask::OPENDIR => [vec![0; 8], DIRECT_IO.to_le_bytes().to_vec(), vec![0; 4]].concat(),
        ask::READ => content.read(request.u64(body + 8), request.u32(body + 16) as usize),
        ask::WRITE => {
            let bytes = &request.bytes[body + WRITE_HEAD_BYTES..];
            content.write(request.u64(body + 8), bytes);
            [(bytes.len() as u32).to_le_bytes(), [0; 4]].concat()
        }
        ask::FSYNC => {
            content.sync();
            Vec::new()
        }
        ask::STATFS => vec![0; STATFS_BYTES],
        // There is nothing to let go, and a listing is empty.
        ask::RELEASE | ask::RELEASEDIR | ask::FLUSH | ask::READDIR | ask::ACCESS | ask::DESTROY => Vec::new(),
        // Above all: no space can be given back or be promised, so the kernel writes zeros instead.
        _ => return Some(Err(Errno::NOSYS)),
    }))
}

fn init() -> Vec<u8> {
    let mut out = Vec::new();
    // Version, read-ahead, flags, background requests, largest write.
    for word in [VERSION[0], VERSION[1], 0, 0, 0, WRITE_BYTES_MAX] {
        out.extend(word.to_le_bytes());
    }
    out.resize(INIT_BYTES, 0);
    out
}

/// The one file, as found by its name; the kernel may keep none of it.
fn entry(content: &impl Content) -> Vec<u8> {
    let mut out = FILE_NODE.to_le_bytes().to_vec();
    out.resize(40, 0);
    out.extend(attributes(FILE_NODE, content));
    out
}

fn attributes(node: u64, content: &impl Content) -> Vec<u8> {
    let (mode, bytes) = if node == ROOT_NODE { (DIR_MODE, 0) } else { (FILE_MODE, content.bytes()) };
    let mut out = Vec::new();
    // Number, length, sectors, three times.
    for long in [node, bytes, bytes / 512, 0, 0, 0] {
        out.extend(long.to_le_bytes());
    }
    // Nanoseconds of the times, mode, links, owner, group, device, block size, flags.
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0_u32] {
        out.extend(word.to_le_bytes());
    }
    out
}
