//! How far a state is that nobody has open, for who only looks.
//!
//! Owns the copy that is looked at, since sled writes even where it is only read. It must never touch the state itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::place::Place;
use super::{CACHE_BYTES, open_sled, read_applied, unusable};
use crate::Error;
use crate::fs::{RealFs, error};

/// Frames that the state in `DIR/state` holds, so that the journal must have them too; none if the next open would not
/// use this state, or if it does not say. The copy that is looked at is in DIR, and removed again. While a writer is at work
/// the answer may be none.
pub fn frames_known(dir: &Path) -> Result<Option<u64>, Error> {
    let place = Place::new(Arc::new(RealFs), dir);
    if unusable(&place, crate::boot_id()).is_some() {
        return Ok(None);
    }
    let copy = Copy(dir.join(format!("state.copy-{}", std::process::id())));
    copy.take(&place.state()).map_err(|failure| error("copy", &place.state(), &failure))?;
    let opened = open_sled(&Place::new(Arc::new(RealFs), &copy.0), CACHE_BYTES, read_applied);
    Ok(opened.ok().map(|(_, applied)| applied))
}

/// A directory of its own, removed with it.
struct Copy(PathBuf);

impl Copy {
    fn take(&self, state: &Path) -> io::Result<()> {
        let copy = self.0.join("state");
        fs::create_dir_all(&copy)?;
        for entry in fs::read_dir(state)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), copy.join(entry.file_name()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // One that was never made cannot be removed either.
        let _ = fs::remove_dir_all(&self.0);
    }
}
