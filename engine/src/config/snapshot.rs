//! The name of a snapshot.
//!
//! Owns how settings are named by what they say: equal settings have one name, on any machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a snapshot: blake3 of its bytes, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotHash([u8; 32]);

impl SnapshotHash {
    /// The name of these bytes.
    pub fn of(snapshot: &[u8]) -> Self {
        Self(*blake3::hash(snapshot).as_bytes())
    }

    /// The bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for SnapshotHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl From<SnapshotHash> for String {
    fn from(hash: SnapshotHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for SnapshotHash {
    type Error = blake3::HexError;

    fn try_from(digits: String) -> Result<Self, Self::Error> {
        blake3::Hash::from_hex(digits).map(|hash| Self(*hash.as_bytes()))
    }
}
