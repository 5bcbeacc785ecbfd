//! What must not be guessed, and what names this boot of the machine.
//!
//! Owns the only reading of the system's randomness. Nothing of it may decide what a commit becomes.

use std::fs::{File, read_to_string};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::frame::SALT;

/// Where the system's random bytes are read.
pub(crate) const RANDOM: &str = "/dev/urandom";

/// Salts that cannot be guessed: a keyed hash of a counter, with a new key for each open.
pub(crate) struct Salts {
    key: [u8; 32],
    count: AtomicU64,
}

impl Salts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { key: random()?, count: AtomicU64::new(0) })
    }

    pub(crate) fn next(&self) -> [u8; SALT] {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::keyed_hash(&self.key, &count.to_le_bytes());
        let mut salt = [0; SALT];
        salt.copy_from_slice(&hash.as_bytes()[..SALT]);
        salt
    }
}

/// The kernel's name for this boot. Where it tells none, a random one: equal to no other, so nothing is
/// trusted.
pub fn boot_id() -> [u8; 16] {
    let text = read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    parse(&text).or_else(|| random().ok()).unwrap_or_default()
}

/// A UUID's sixteen bytes.
fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_parsed_or_refused() {
        let bytes =
            [0x0f, 0x40, 0xf7, 0x61, 0x9f, 0xd4, 0x61, 0xb8, 0x46, 0x1b, 0x0b, 0xc6, 0xf4, 0x9a, 0xba, 0xd8];
        assert_eq!(parse("0f40f761-9fd4-61b8-461b-0bc6f49abad8\n"), Some(bytes));
        assert_eq!((parse(""), parse("0f40f761")), (None, None));
    }
}
