//! Where the socket is, in few enough bytes for a socket address.
//!
//! Owns the way around the limit of `sun_path`. It must never leave a path that outlives its directory's descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The most bytes of a path in a socket address: `sun_path` has 108, one of them ends it (unix(7)).
const PATH_BYTES_MAX: usize = 107;

/// A path for `bind` or `connect`, valid as long as this lives.
pub(super) struct Address {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Address {
    /// The address of `name` in `dir`. A path that is too long goes through a descriptor of the directory.
    pub(super) fn new(dir: &Path, name: &str) -> io::Result<Self> {
        let path = dir.join(name);
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self { path, _directory: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(dir, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()));
        Ok(Self { path, _directory: Some(directory) })
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
