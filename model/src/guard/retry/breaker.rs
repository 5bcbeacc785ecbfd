//! The idle breaker: a run whose calls time out in silence, one after the other, is stopped before it pays for more.
//!
//! Owns one step of the count. It must never be fed anything but the two facts: tokens that arrived without
//! anything to show for them cost money and are no progress.

/// Idle timeouts in a row, without progress, that trip the breaker.
pub const IDLE_BREAKER_MAX: u8 = 5;

/// The count after one outcome.
pub fn idle_breaker(count: u8, is_idle_timeout: bool, has_progress: bool) -> u8 {
    match (is_idle_timeout, has_progress) {
        (true, false) => count.saturating_add(1),
        (true | false, true) => 0,
        (false, false) => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[(bool, bool)]) -> u8 {
        steps.iter().fold(0, |count, step| idle_breaker(count, step.0, step.1))
    }

    #[test]
    fn the_breaker_counts_as_the_reference() {
        let four = [(true, false); 4];
        assert_eq!(after(&four), 4);
        assert_eq!(after(&[(true, false); 5]), IDLE_BREAKER_MAX);
        assert_eq!(after(&[&four[..], &[(false, false), (true, false)]].concat()), IDLE_BREAKER_MAX);
        assert_eq!(after(&[&four[..], &[(true, true), (true, false)]].concat()), 1);
        assert_eq!(after(&[&four[..], &[(false, true)]].concat()), 0);
        assert_eq!(after(&[(true, false); 300]), u8::MAX);
    }
}
