//! What a provider's words say beyond the kind of a failure.
//!
//! Owns the signals that are read from the whole text, before it is cut to a label. It must never guess a kind: that is
//! the provider's own work.

use serde::{Deserialize, Serialize};

/// What the words of a failure say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// How soon a rate limit is over.
    pub window: RateWindow,
    /// The request alone is larger than what may be asked in a minute: no wait helps.
    pub is_over_allowance: bool,
}

/// How soon a rate limit is over, as far as words say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RateWindow {
    /// Nothing is said: a bare 429 counts as short.
    #[default]
    Unsaid,
    /// A limit by the minute, or a model that cools down.
    Short,
    /// A limit by the day or longer, a quota, or a wait that cannot be read.
    Long,
}

/// Words of limits by the minute.
const SHORT: [&str; 7] =
    ["per minute", "per min", "per-minute", "cooldown", "每分钟", "请求过于频繁", "模型冷却"];
/// Names of limits by the minute, as whole words.
const SHORT_NAMES: [&str; 2] = ["rpm", "tpm"];
/// Words of limits that last.
const LONG: [&str; 9] = [
    "daily",
    "weekly",
    "monthly",
    "per day",
    "per week",
    "per month",
    "usage limit",
    "subscription",
    "quota",
];
/// Words of limits on the tokens of a minute.
const TOKENS_A_MINUTE: [&str; 3] = ["tokens per min", "per-minute token", "per minute token"];
/// Words of a request that will not fit however long one waits.
const TOO_LARGE: [&str; 3] = ["request too large", "request is too large", "must be reduced"];
/// What comes before a wait.
const WAITS: [&str; 4] = ["retry-after", "retry after", "try again in", "retry in"];

impl Said {
    /// What the whole text says.
    pub fn of(text: &str) -> Self {
        let text = text.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
        let is_named = |name: &str| text.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
        let is_short = has(&SHORT) || SHORT_NAMES.iter().any(|name| is_named(name));
        let is_unreadable = wait_in(&text).is_some_and(|wait| wait.is_none());
        let window = match is_short {
            true => RateWindow::Short,
            false if has(&LONG) || is_unreadable => RateWindow::Long,
            false => RateWindow::Unsaid,
        };
        let is_over_allowance = (has(&TOKENS_A_MINUTE) || is_named("tpm")) && has(&TOO_LARGE);
        Self { window, is_over_allowance }
    }
}

/// The wait that a text asks for, in milliseconds: `retry after 20s`, `try again in 6m0s`, `retry-after: 30`.
pub fn retry_after_ms(text: &str) -> Option<u64> {
    wait_in(&text.to_lowercase()).flatten()
}

/// The wait after the first words that announce one; the inner none: it cannot be read.
fn wait_in(text: &str) -> Option<Option<u64>> {
    let rest = WAITS.iter().find_map(|words| text.split_once(words)).map(|(_, rest)| rest)?;
    let rest = rest.trim_start_matches([':', '=', '"', '\'', ' ', '\t']);
    Some(wait_ms(rest))
}

/// Numbers with their units, added up; a number without one is in seconds.
fn wait_ms(mut text: &str) -> Option<u64> {
    let mut total_ms: Option<f64> = None;
    loop {
        let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, rest) = text.split_at(digits);
        let Ok(number) = number.trim_end_matches('.').parse::<f64>() else { break };
        let rest = rest.trim_start();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = rest.split_at(letters);
        let unit_ms = match unit {
            "ms" | "millisecond" | "milliseconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60_000.0,
            "h" | "hour" | "hours" => 3_600_000.0,
            // Words are open: what is no unit that we know counts as seconds.
            _ => 1_000.0,
        };
        total_ms = Some(total_ms.unwrap_or(0.0) + number * unit_ms);
        text = after;
    }
    // A float saturates when it is cast, and no text makes it negative.
    total_ms.map(|ms| ms.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_words() {
        let vectors = [
            ("Please try again in 20s.", Some(20_000)),
            ("Try again in 6m0s", Some(360_000)),
            ("retry-after: 30", Some(30_000)),
            ("Retry after 1.5 min", Some(90_000)),
            ("retry in 250ms", Some(250)),
            ("retry after Wed, 21 Oct 2015 07:28:00 GMT", None),
            ("slow down", None),
        ];
        for (text, expected) in vectors {
            assert_eq!(retry_after_ms(text), expected, "{text}");
        }
    }

    #[test]
    fn a_limit_is_short_by_its_words() {
        use RateWindow::{Long, Short, Unsaid};
        let vectors = [
            ("", Unsaid),
            ("429", Unsaid),
            ("HTTP 429: Too Many Requests", Unsaid),
            ("Rate limit reached on requests per minute", Short),
            ("Rate limit reached for x in organization y on tokens per min (TPM): Limit 10000", Short),
            ("RPM exceeded", Short),
            ("rpmish", Unsaid),
            ("the model is in cooldown", Short),
            ("请求过于频繁", Short),
            ("You exceeded your current quota", Long),
            ("daily limit reached", Long),
            ("subscription usage limit", Long),
            ("quota of requests per minute", Short),
            ("rate limited, retry after tomorrow", Long),
        ];
        for (text, window) in vectors {
            assert_eq!(Said::of(text).window, window, "{text}");
        }
    }

    #[test]
    fn a_request_over_the_allowance_of_a_minute_is_told() {
        let text = "Request too large for x on tokens per min (TPM): Limit 30000, Requested 50000.";
        assert_eq!(Said::of(text), Said { window: RateWindow::Short, is_over_allowance: true });
        assert!(!Said::of("Request too large").is_over_allowance);
        assert!(!Said::of("tokens per min reached").is_over_allowance);
    }
}
