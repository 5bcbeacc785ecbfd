//! Arbitrary bytes as the stored parts of a run: an error or a state, never a panic; what decodes says what must happen
//! next, and encodes to parts that decode to the same.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use model::RunState;
use model::encode::{Encoded, Part};

/// Takes a part: its length in two bytes, then the part. None if the length is 0 or nothing is left.
fn take(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let (part, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    *bytes = rest;
    (!part.is_empty()).then(|| part.to_vec())
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes;
    let parts: HashMap<u8, Option<Vec<u8>>> =
        Part::ALL.into_iter().map(|part| (part.code(), take(&mut bytes))).collect();
    if let Ok(Some(state)) = RunState::decode(|part| parts.get(&part.code()).cloned().flatten()) {
        let _ = state.effects();
        let (_, changes) = Encoded::all(&state);
        let again = RunState::decode(|wanted| {
            changes.iter().find(|(part, _)| *part == wanted).and_then(|(_, bytes)| bytes.clone())
        });
        assert_eq!(again, Ok(Some(state)));
    }
});
