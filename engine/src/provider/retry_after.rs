//! How long a provider asks to wait, in every spelling.
//!
//! Owns the spellings and which of them counts. It must never wait.

use chrono::{DateTime, Utc};
use model::Millis;
use serde_json::Value;

use super::http::Headers;

/// A longer wait is told as this one: a week.
const WAIT_MAX_MS: u64 = 7 * 24 * 3_600_000;

/// A number from here on is a time since 1970 in seconds, from the next on in milliseconds, and not a wait.
const EPOCH_SECONDS_MIN: f64 = 1e9;
const EPOCH_MILLIS_MIN: f64 = 1e12;

/// Limits that vendors report: how much is left, and when it is whole again.
const WINDOWS: [(&str, &str); 7] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
];

/// Words before a wait in a message for people.
const CUES: [&str; 4] = ["try again in ", "retry after ", "retry in ", "wait "];

/// The wait in milliseconds that a refused request is told: by a header made for it, else in the body, else
/// until the limits that are used up are whole again. `now` is the time by our clock; the server's own counts
/// if it tells it.
pub(super) fn retry_after_ms(headers: &Headers, body: &Value, words: &str, now: Millis) -> Option<u64> {
    let now = headers.get("date").and_then(http_date).unwrap_or(now);
    let header = headers.get("retry-after-ms").and_then(|text| number(text.trim()));
    let header = header.or_else(|| wait(headers.get("retry-after")?, now));
    header
        .or_else(|| in_body(body, now))
        .or_else(|| in_words(words))
        .or_else(|| until_reset(headers, now))
        .map(|wait_ms| (wait_ms.ceil().clamp(0.0, WAIT_MAX_MS as f64)) as u64)
}

/// A wait in one of its spellings, in milliseconds: seconds, a span with units, a date, a time since 1970.
fn wait(text: &str, now: Millis) -> Option<f64> {
    let text = text.trim();
    let until = |at: Millis| (at.0 - now.0).max(0) as f64;
    match number(text) {
        Some(at) if at >= EPOCH_MILLIS_MIN => Some(until(Millis(at as i64))),
        Some(at) if at >= EPOCH_SECONDS_MIN => Some(until(Millis((at * 1e3) as i64))),
        Some(seconds) => Some(seconds * 1e3),
        None => span(text)
            .or_else(|| http_date(text).map(until))
            .or_else(|| Some(until(Millis(DateTime::parse_from_rfc3339(text).ok()?.timestamp_millis())))),
    }
}

/// A span like `1h2m3.5s`, `120ms` or `20 seconds`, in milliseconds.
fn span(text: &str) -> Option<f64> {
    let mut rest = text.trim_end_matches('.');
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (amount, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit_ms = match unit {
            "ms" | "millisecond" | "milliseconds" => 1.0,
            "s" | "sec" | "secs" | "second" | "seconds" => 1e3,
            "m" | "min" | "mins" | "minute" | "minutes" => 60e3,
            "h" | "hour" | "hours" => 3_600e3,
            "d" | "day" | "days" => 86_400e3,
            _ => return None,
        };
        total += number(amount)? * unit_ms;
        rest = after.trim_start();
    }
    (!text.is_empty()).then_some(total)
}

/// A plain decimal number that is not negative.
fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain)
}

/// A date as HTTP writes it.
fn http_date(text: &str) -> Option<Millis> {
    let at: DateTime<Utc> = DateTime::parse_from_rfc2822(text.trim()).ok()?.into();
    Some(Millis(at.timestamp_millis()))
}

/// Fields that bodies have for it.
fn in_body(body: &Value, now: Millis) -> Option<f64> {
    let error = body.get("error").unwrap_or(&Value::Null);
    let spelled = |value: &Value| match value {
        Value::Number(seconds) => seconds.as_f64().map(|seconds| seconds * 1e3),
        Value::String(text) => wait(text, now),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let named = [body, error, &error["metadata"]].into_iter().find_map(|place| {
        let millis = place.get("retry_after_ms").and_then(Value::as_f64);
        millis.or_else(|| spelled(place.get("retry_after")?))
    });
    named.or_else(|| {
        let details = error.get("details")?.as_array()?;
        details.iter().find_map(|detail| spelled(detail.get("retryDelay")?))
    })
}

/// A wait in a sentence: the longest beginning of what follows the cue that is a span.
fn in_words(words: &str) -> Option<f64> {
    let words = words.to_ascii_lowercase();
    CUES.iter().find_map(|cue| {
        let (_, after) = words.split_once(cue)?;
        let tokens: Vec<&str> = after.split_whitespace().take(6).collect();
        (1..=tokens.len())
            .rev()
            .find_map(|count| span(tokens[..count].join(" ").trim_end_matches([',', ';', ')'])))
    })
}

/// Until every limit that is used up is whole again. Without a word on what is left, the longest counts.
fn until_reset(headers: &Headers, now: Millis) -> Option<f64> {
    let resets = WINDOWS.iter().filter_map(|(left, reset)| {
        let is_used_up = headers.get(left).is_none_or(|left| left.trim() == "0");
        wait(headers.get(reset)?, now).filter(|_| is_used_up)
    });
    resets.reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 2026-11-01T00:00:00Z.
    const NOW: Millis = Millis(1_793_491_200_000);

    #[test]
    fn every_spelling_of_a_header_is_read() {
        type Given<'a> = &'a [(&'a str, &'a str)];
        let cases: &[(Given<'_>, Option<u64>)] = &[
            (&[], None),
            (&[("retry-after", "20")], Some(20_000)),
            (&[("retry-after", " 1.5 ")], Some(1_500)),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after", "7s")], Some(7_000)),
            (&[("retry-after", "Sun, 01 Nov 2026 00:01:00 GMT")], Some(60_000)),
            (&[("retry-after", "Sat, 31 Oct 2026 00:01:00 GMT")], Some(0)),
            (
                &[
                    ("date", "Sun, 01 Nov 2026 00:00:30 GMT"),
                    ("retry-after", "Sun, 01 Nov 2026 00:01:00 GMT"),
                ],
                Some(30_000),
            ),
            (&[("retry-after", "1793491205")], Some(5_000)),
            (&[("retry-after", "-3")], None),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "99999999")], Some(WAIT_MAX_MS)),
            (&[("retry-after-ms", "1500.2"), ("retry-after", "2")], Some(1_501)),
            (&[("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-reset-tokens", "6m0s")], Some(360_000)),
            (
                &[
                    ("x-ratelimit-remaining-requests", "0"),
                    ("x-ratelimit-reset-requests", "120ms"),
                    ("x-ratelimit-remaining-tokens", "9"),
                    ("x-ratelimit-reset-tokens", "1h2m3s"),
                ],
                Some(120),
            ),
            (&[("x-ratelimit-reset", "1793491202000")], Some(2_000)),
            (&[("anthropic-ratelimit-tokens-reset", "2026-11-01T00:00:09Z")], Some(9_000)),
        ];
        for (headers, expected) in cases {
            let headers = Headers::of(headers);
            assert_eq!(retry_after_ms(&headers, &Value::Null, "", NOW), *expected, "{headers:?}");
        }
    }

    #[test]
    fn every_spelling_of_a_body_is_read() {
        let cases = [
            (json!({}), "Please try again in 20s. Visit the page", Some(20_000)),
            (json!({}), "Rate limit reached; try again in 1m2.5s.", Some(62_500)),
            (json!({}), "please retry after 30 seconds.", Some(30_000)),
            (json!({}), "Please wait 2 minutes and 3 seconds", Some(120_000)),
            (json!({}), "try again in 250ms", Some(250)),
            (json!({}), "try again in a while", None),
            (json!({ "retry_after": 3 }), "", Some(3_000)),
            (json!({ "error": { "metadata": { "retry_after_ms": 70 } } }), "", Some(70)),
            (json!({ "error": { "details": [{}, { "retryDelay": "27s" }] } }), "", Some(27_000)),
        ];
        for (body, words, expected) in cases {
            assert_eq!(retry_after_ms(&Headers::default(), &body, words, NOW), expected, "{body} {words}");
        }
    }
}
