//! Arbitrary bytes as a record, an inbox item, a profile's health or a part of a state: an error or a value, never a
//! panic; and what decodes encodes to something that decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::guard::profiles::Profile;
use model::inbox::Item;
use model::{Record, RunState};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::from_bytes(bytes) {
        assert_eq!(Record::from_bytes(&record.to_bytes()).as_ref(), Ok(&record));
    }
    if let Ok(item) = Item::from_bytes(bytes) {
        assert_eq!(Item::from_bytes(&item.to_bytes()).as_ref(), Ok(&item));
    }
    if let Ok(profile) = Profile::from_bytes(bytes) {
        assert_eq!(Profile::from_bytes(&profile.to_bytes()).as_ref(), Ok(&profile));
    }
    if let Ok(Some(state)) = RunState::decode(|_| Some(bytes.to_vec())) {
        let _ = state.effects();
    }
});
