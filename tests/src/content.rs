//! What a file holds.
//!
//! Owns bytes by sector: most of a segment is zeros, which cost nothing here.

use std::collections::BTreeMap;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// The bytes of a file: only sectors that are not all zeros are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    len: u64,
    sectors: BTreeMap<u64, [u8; SECTOR]>,
}

impl Content {
    /// The content with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes, |_| true);
        content
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        for (at, sector) in self.pieces() {
            bytes[at as usize..][..sector.len()].copy_from_slice(sector);
        }
        bytes
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sectors that hold something, cut at the end, and where they lie.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.sectors.iter().map(|(number, sector)| {
            let at = number * SECTOR as u64;
            (at, &sector[..SECTOR.min((self.len - at) as usize)])
        })
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.sectors.split_off(&len.div_ceil(SECTOR as u64));
            if let Some(last) = self.sectors.get_mut(&(len / SECTOR as u64)) {
                last[len as usize % SECTOR..].fill(0);
            }
        }
        self.len = len;
    }

    /// Writes the sectors that are kept; they are counted from the first one that the write touches.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], keeps: impl Fn(usize) -> bool) {
        let mut at = 0;
        for nth in 0.. {
            let place = offset + at as u64;
            let within = place as usize % SECTOR;
            let count = (SECTOR - within).min(bytes.len() - at);
            if count == 0 {
                return;
            }
            if keeps(nth) {
                let sector = self.sectors.entry(place / SECTOR as u64).or_insert([0; SECTOR]);
                sector[within..within + count].copy_from_slice(&bytes[at..at + count]);
                self.len = self.len.max(place + count as u64);
            }
            at += count;
        }
    }
}
