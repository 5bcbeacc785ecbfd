//! What kind of file system a directory is on.
//!
//! Owns the list of those on which a lock or a sync proves nothing. It must never write.

use std::path::Path;

/// File systems that are served over a network, by the kernel's numbers for them.
const NETWORK: [(u64, &str); 9] = [
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "afs"),
    (0x7375_7245, "coda"),
    (0x564C, "ncp"),
];

/// The name of the network file system that a directory is on, or would be once it is made; none if it is local.
pub fn network_file_system(dir: &Path) -> Option<&'static str> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let kind = rustix::fs::statfs(there).ok()?.f_type;
    // The kernel's numbers have 32 bits, which some systems widen with their sign.
    let kind = u64::try_from(kind).unwrap_or_default() & 0xFFFF_FFFF;
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_here_is_local_before_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network_file_system(&dir.path().join("not/yet")), None);
    }
}
