//! Large outputs: files in `DIR/blobs`, named by the hash of what they hold.
//!
//! Owns the way of a call's file there. It must never answer before the file is where its name will be looked for after
//! a power loss.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Directories from a call's to the engine's.
const LEVELS: usize = 3;

/// Keeps a file of a call's directory; answers its name, the hash in hexadecimal digits. Keeping it twice is the same as
/// once: the call's own name stays until its directory goes.
pub(super) fn keep(call_dir: &Path, name: &str) -> io::Result<String> {
    let dir = call_dir.ancestors().nth(LEVELS).ok_or(io::ErrorKind::InvalidInput)?;
    let blobs = dir.join("blobs");
    let path = call_dir.join(name);
    let file = File::open(&path)?;
    let hash = blake3::Hasher::new().update_reader(&file)?.finalize().to_hex().to_string();
    file.sync_all()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&blobs)?;
    match std::fs::hard_link(&path, blobs.join(&hash)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy(&path, &blobs, &hash)?,
        Err(error) => return Err(error),
    }
    File::open(&blobs)?.sync_all()?;
    File::open(dir)?.sync_all()?;
    Ok(hash)
}

/// The same where calls are on another disk than blobs.
fn copy(path: &Path, blobs: &Path, hash: &str) -> io::Result<()> {
    let fresh = blobs.join(format!("{hash}.new"));
    std::fs::copy(path, &fresh)?;
    File::open(&fresh)?.sync_all()?;
    std::fs::rename(&fresh, blobs.join(hash))
}
