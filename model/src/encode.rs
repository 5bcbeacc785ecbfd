//! The stored form of the state and of records: postcard inside a versioned envelope.
//!
//! Owns the bytes. Every released version decodes for ever; an unknown version is an error, never a guess.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guard::loops::{Warnings, Window};
use crate::guard::profiles::Profile;
use crate::inbox::Item;
use crate::record::{Moved, RECORD_VERSION, Record};
use crate::state::{Batch, Core, RunState};

/// Version of the state's encoding.
pub const STATE_VERSION: u8 = 1;
/// Version of the encoding of a profile's health.
pub const PROFILE_VERSION: u8 = 1;

/// One part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// See [`RunState::core`].
    Core,
    /// See [`RunState::batch`].
    Batch,
    /// See [`RunState::window`].
    Window,
    /// See [`RunState::warnings`].
    Warnings,
}

impl Part {
    /// Every part, in the order of its code.
    pub const ALL: [Self; 4] = [Self::Core, Self::Batch, Self::Window, Self::Warnings];

    /// The byte that stands for the part in keys.
    pub fn code(self) -> u8 {
        match self {
            Self::Core => b'c',
            Self::Batch => b'b',
            Self::Window => b'w',
            Self::Warnings => b'x',
        }
    }
}

/// Bytes that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error(
        "{what} has version {found}, this program reads up to {supported}; use a sprag that reads version {found}"
    )]
    Newer {
        /// What was decoded.
        what: &'static str,
        /// The version found.
        found: u8,
        /// The newest version that this program reads.
        supported: u8,
    },
    /// Not what the version says.
    #[error("{what} does not decode: {message}")]
    Malformed {
        /// What was decoded.
        what: &'static str,
        /// The decoder's words.
        message: String,
    },
}

/// The encoded parts of a state and their hashes, kept from transition to transition so that a commit costs
/// what it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    hashes: [[u8; 32]; 4],
}

/// A part that a transition changed: its new bytes, or none if it is gone.
pub type Change = (Part, Option<Vec<u8>>);

impl Encoded {
    /// Encodes every part of a state.
    pub fn all(state: &RunState) -> (Self, Vec<Change>) {
        let mut encoded = Self { hashes: [[0; 32]; 4] };
        let changes = Part::ALL.into_iter().map(|part| encoded.encode(state, part)).collect();
        (encoded, changes)
    }

    /// Encodes the parts in which `after` differs from `before`.
    pub fn update(&mut self, before: &RunState, after: &RunState) -> Vec<Change> {
        let mut changes = vec![self.encode(after, Part::Core)];
        if before.batch != after.batch {
            changes.push(self.encode(after, Part::Batch));
        }
        if before.window != after.window {
            changes.push(self.encode(after, Part::Window));
        }
        if before.warnings != after.warnings {
            changes.push(self.encode(after, Part::Warnings));
        }
        changes
    }

    /// Hash of the parts' hashes.
    pub fn state_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for hash in &self.hashes {
            hasher.update(hash);
        }
        *hasher.finalize().as_bytes()
    }

    fn encode(&mut self, state: &RunState, part: Part) -> Change {
        let bytes = match part {
            Part::Core => Some(envelope(STATE_VERSION, &state.core)),
            Part::Batch => state.batch.as_ref().map(|batch| envelope(STATE_VERSION, batch)),
            Part::Window => (!state.window.is_empty()).then(|| envelope(STATE_VERSION, &state.window)),
            Part::Warnings => (!state.warnings.is_empty()).then(|| envelope(STATE_VERSION, &state.warnings)),
        };
        let [core, batch, window, warnings] = &mut self.hashes;
        let slot = match part {
            Part::Core => core,
            Part::Batch => batch,
            Part::Window => window,
            Part::Warnings => warnings,
        };
        *slot = bytes.as_ref().map_or([0; 32], |bytes| *blake3::hash(bytes).as_bytes());
        (part, bytes)
    }
}

impl RunState {
    /// The state from its stored parts; `part` answers the bytes of one, or none if it is not there.
    pub fn decode(part: impl Fn(Part) -> Option<Vec<u8>>) -> Result<Option<Self>, DecodeError> {
        let Some(core) = part(Part::Core) else { return Ok(None) };
        let core: Core = open(STATE_VERSION, "the state of a run", &core)?;
        let batch: Option<Batch> = decode_part(part(Part::Batch), "the batch of a run")?;
        let window: Option<Window> = decode_part(part(Part::Window), "the loop window of a run")?;
        let warnings: Option<Warnings> = decode_part(part(Part::Warnings), "the warnings of a run")?;
        let (window, warnings) = (window.unwrap_or_default(), warnings.unwrap_or_default());
        Ok(Some(Self { core, batch, window, warnings }))
    }
}

fn decode_part<T: DeserializeOwned>(
    bytes: Option<Vec<u8>>,
    what: &'static str,
) -> Result<Option<T>, DecodeError> {
    bytes.map(|bytes| open(STATE_VERSION, what, &bytes)).transpose()
}

impl Record {
    /// The record as the journal's payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        envelope(RECORD_VERSION, self)
    }

    /// The record in a payload.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        open(RECORD_VERSION, "a record", bytes)
    }
}

/// A [`Record::Moved`] by reference: the same bytes, without moving the transition into a record first.
#[derive(Serialize)]
enum RecordRef<'a> {
    #[expect(dead_code, reason = "keeps the variant's number equal to that of `Record`")]
    Submitted,
    Moved(&'a Moved),
}

impl Moved {
    /// The transition as the journal's payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        envelope(RECORD_VERSION, &RecordRef::Moved(self))
    }
}

impl Item {
    /// The item as the journal's payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        envelope(RECORD_VERSION, self)
    }

    /// The item in a payload.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        open(RECORD_VERSION, "an inbox item", bytes)
    }
}

impl Profile {
    /// The profile's health as the store keeps it.
    pub fn to_bytes(&self) -> Vec<u8> {
        envelope(PROFILE_VERSION, self)
    }

    /// The health in a stored value.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        open(PROFILE_VERSION, "the health of a profile", bytes)
    }
}

/// Bytes that most encoded values fit into: a larger one costs another allocation.
const ENVELOPE_BYTES: usize = 512;

/// A value behind its version byte.
fn envelope<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENVELOPE_BYTES);
    bytes.push(version);
    // Encoding to a growing vector fails only for types that postcard cannot hold; the round-trip tests cover
    // all.
    postcard::to_extend(value, bytes).unwrap_or_default()
}

fn open<T: DeserializeOwned>(supported: u8, what: &'static str, bytes: &[u8]) -> Result<T, DecodeError> {
    let malformed = |message: &str| DecodeError::Malformed { what, message: message.to_owned() };
    let (&found, rest) = bytes.split_first().ok_or_else(|| malformed("no bytes"))?;
    if found > supported {
        return Err(DecodeError::Newer { what, found, supported });
    }
    if found == 0 {
        return Err(malformed("version 0"));
    }
    match postcard::take_from_bytes::<T>(rest) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(malformed(&format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(malformed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Control;

    #[test]
    fn bytes_of_another_version_or_shape_are_an_error() {
        let item = Item::Control(Control::Release);
        let bytes = item.to_bytes();
        assert_eq!(Item::from_bytes(&bytes), Ok(item));

        let mut newer = bytes.clone();
        newer[0] = RECORD_VERSION + 1;
        let expected = DecodeError::Newer {
            what: "an inbox item",
            found: RECORD_VERSION + 1,
            supported: RECORD_VERSION,
        };
        assert_eq!(Item::from_bytes(&newer), Err(expected));

        let malformed = |bytes: &[u8]| matches!(Item::from_bytes(bytes), Err(DecodeError::Malformed { .. }));
        let with = |first, rest: &[u8]| [&[first], rest].concat();
        assert!(malformed(&[]));
        assert!(malformed(&with(0, &bytes[1..])));
        assert!(malformed(&bytes[..bytes.len() - 1]));
        assert!(malformed(&[&bytes[..], &[0]].concat()));
    }

    #[test]
    fn no_core_is_no_run() {
        assert_eq!(RunState::decode(|_| None), Ok(None));
    }
}
