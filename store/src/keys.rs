//! The key space of the committed state: which puts may enter it, and how parts of it are named.
//!
//! Owns rules about keys and values, never the values themselves.

use std::ops::Bound;

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Error, Put, RunKey};

/// First byte of the keys that belong to one run.
const RUN_TAG: u8 = b'r';

/// What the keys of one run begin with: `r`, then the run's 16 bytes. `Store::load` returns exactly these, and a purge
/// deletes them; only commits of the run and its inbox may put them.
pub fn run_prefix(run: RunKey) -> [u8; 17] {
    let mut prefix = [RUN_TAG; 17];
    prefix[1..].copy_from_slice(&run.0);
    prefix
}

/// The key is the store's own: records carry such puts, and no scan shows them.
pub fn is_reserved(key: &[u8]) -> bool {
    key.first().is_some_and(|first| *first < 0x20)
}

/// Refuses puts that the state does not take; asked before a commit is linked.
pub(crate) fn admit(puts: &[Put]) -> Result<(), Error> {
    let fits = |what, got, max| if got > max { Err(Error::TooLarge { what, got, max }) } else { Ok(()) };
    puts.iter().try_for_each(|put| {
        fits("a key of the state", put.key.len(), KEY_BYTES_MAX)?;
        fits("a value of the state", put.value.as_ref().map_or(0, Vec::len), VALUE_BYTES_MAX)
    })
}

/// Where a scan of `prefix` begins that goes on after the key `after`.
pub(crate) fn lower_bound<'a>(prefix: &'a [u8], after: Option<&'a [u8]>) -> Bound<&'a [u8]> {
    match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        Some(_) | None => Bound::Included(prefix),
    }
}

/// A counter as `Require::Ceiling` reads it. What is not a counter is as large as one gets: nothing fits
/// under any ceiling then, rather than everything.
pub(crate) fn read_counter(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes))
}

/// What a counter becomes by `add`; none if that is past `max`.
pub(crate) fn add_to_counter(current: u64, add: i64, max: u64) -> Option<u64> {
    let sum = if add < 0 {
        current.saturating_sub(add.unsigned_abs())
    } else {
        current.checked_add(add.unsigned_abs())?
    };
    (sum <= max).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_that_fit_are_admitted_and_larger_ones_name_their_limit() {
        let put = |key, value| [Put { key: vec![b'a'; key], value: Some(vec![0; value]) }];
        assert_eq!(admit(&put(KEY_BYTES_MAX, VALUE_BYTES_MAX)), Ok(()));
        let long_key = Error::TooLarge { what: "a key of the state", got: 1_025, max: 1_024 };
        assert_eq!(admit(&put(KEY_BYTES_MAX + 1, 0)), Err(long_key));
        let large_value = Error::TooLarge { what: "a value of the state", got: 4_097, max: 4_096 };
        assert_eq!(admit(&put(1, VALUE_BYTES_MAX + 1)), Err(large_value));
    }

    #[test]
    fn a_counter_stays_between_zero_and_its_ceiling() {
        assert_eq!(add_to_counter(7, 3, 10), Some(10));
        assert_eq!(add_to_counter(7, 4, 10), None);
        assert_eq!(add_to_counter(7, -3, 10), Some(4));
        assert_eq!(add_to_counter(7, -8, 10), Some(0));
        assert_eq!(add_to_counter(7, -1, 5), None);
        assert_eq!(add_to_counter(u64::MAX, 1, u64::MAX), None);
        assert_eq!(add_to_counter(u64::MAX, i64::MIN, u64::MAX), Some(u64::MAX >> 1));
    }

    #[test]
    fn a_counter_is_eight_bytes_or_absent() {
        assert_eq!(read_counter(None), 0);
        assert_eq!(read_counter(Some(&7u64.to_le_bytes())), 7);
        assert_eq!(read_counter(Some(b"seven")), u64::MAX);
    }
}
