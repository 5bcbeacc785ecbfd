//! How long to wait before a call is made again, in milliseconds.
//!
//! Owns the delays and nothing about when they are due. It must never look at a clock.

/// First wait after a passing failure; it doubles: 2, 4, 8 s.
const PASSING_BASE_MS: u64 = 2_000;
/// Wait after a rate limit, for each retry so far and one more: 10, 20, 30 s.
const RATE_LIMIT_STEP_MS: u64 = 10_000;
/// Longest wait after a rate limit. A provider that asks for more is not waited for.
pub(super) const RATE_LIMIT_WAIT_MAX_MS: u64 = 60_000;
/// First wait before an overloaded chain of models is asked again; it doubles.
const OVERLOAD_BASE_MS: u64 = 2_500;
/// Longest wait before an overloaded chain is asked again.
const OVERLOAD_WAIT_MAX_MS: u64 = 30_000;

/// The wait after a passing failure, with so many retries made before.
pub fn passing_ms(made: u8) -> u64 {
    doubled(PASSING_BASE_MS, made)
}

/// The wait before the same model is asked again after a rate limit, with so many such retries made before:
/// `max(min(60 s, 10 s * (made + 1)), min(60 s, retry_after))`.
pub fn same_model_rate_limit_ms(made: u8, retry_after_ms: Option<u64>) -> u64 {
    let own_ms = RATE_LIMIT_STEP_MS * (u64::from(made) + 1);
    let asked_ms = retry_after_ms.unwrap_or(0);
    own_ms.min(RATE_LIMIT_WAIT_MAX_MS).max(asked_ms.min(RATE_LIMIT_WAIT_MAX_MS))
}

/// The wait before a chain of models that are all overloaded is asked again, with so many such retries made
/// before.
pub fn overload_chain_ms(made: u8) -> u64 {
    doubled(OVERLOAD_BASE_MS, made).min(OVERLOAD_WAIT_MAX_MS)
}

/// `base` doubled so many times; far beyond any cap at 16.
fn doubled(base_ms: u64, times: u8) -> u64 {
    base_ms << times.min(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_waits_as_the_reference() {
        let vectors = [
            (0, None, 10),
            (1, None, 20),
            (2, None, 30),
            (0, Some(45), 45),
            (9, None, 60),
            (0, Some(90), 60),
        ];
        for (made, retry_after_s, wait_s) in vectors {
            let wait_ms = same_model_rate_limit_ms(made, retry_after_s.map(|s: u64| s * 1_000));
            assert_eq!(wait_ms, wait_s * 1_000, "{made} made, {retry_after_s:?}");
        }
    }

    #[test]
    fn the_other_waits_double() {
        assert_eq!([0, 1, 2].map(passing_ms), [2_000, 4_000, 8_000]);
        assert_eq!(
            [0, 1, 2, 3, 4, 9, 255].map(overload_chain_ms),
            [2_500, 5_000, 10_000, 20_000, 30_000, 30_000, 30_000]
        );
    }
}
