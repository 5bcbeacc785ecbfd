//! Masks what changes in a command's output although the failure is the same: times, durations, attempt
//! numbers, process ids. Bare dates, counts and line numbers stay: they may be the difference that matters.

use super::text::{digits, ends_word, is_space, is_word, one_of, word};

/// Finds one kind of volatile text at the start of `rest` and returns what follows it. `is_inside` says that
/// a character of a word stands in front of `rest`. Every shape ends in a digit or a letter.
type Shape = fn(is_inside: bool, rest: &str) -> Option<&str>;

/// Applied in this order, each to what the one before it left.
const SHAPES: [Shape; 5] = [date_and_time, time_of_day, attempt, duration, process_id];

/// Units of a duration, as whole words.
const UNITS: [&str; 10] = ["ns", "us", "ms", "seconds", "second", "minutes", "minute", "hours", "hour", "s"];

/// `text` with `#` in place of everything volatile.
pub(super) fn mask(text: &str) -> String {
    SHAPES.iter().fold(text.to_owned(), |text, shape| mask_shape(&text, *shape))
}

fn mask_shape(text: &str, shape: Shape) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut is_inside = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = shape(is_inside, rest) {
            masked.push('#');
            is_inside = true;
            rest = after;
        } else {
            masked.push(c);
            is_inside = is_word(c);
            rest = rest.strip_prefix(c).unwrap_or_default();
        }
    }
    masked
}

/// `2026-03-04T05:06:07.123456+01:00`; fraction and zone may be missing, a space may stand for the `T`.
fn date_and_time(_: bool, rest: &str) -> Option<&str> {
    let rest = word(digits(rest, 4, 4)?, "-")?;
    let rest = word(digits(rest, 2, 2)?, "-")?;
    let rest = one_of(digits(rest, 2, 2)?, &["T", " "])?;
    let rest = clock(digits(rest, 2, 2)?)?;
    Some(word(rest, "Z").or_else(|| offset(rest)).unwrap_or(rest))
}

/// `5:06:07` or `05:06:07`, perhaps with a fraction.
fn time_of_day(_: bool, rest: &str) -> Option<&str> {
    clock(digits(rest, 1, 2)?)
}

/// `:MM:SS` and up to six digits of a fraction.
fn clock(rest: &str) -> Option<&str> {
    let rest = digits(word(rest, ":")?, 2, 2)?;
    let rest = digits(word(rest, ":")?, 2, 2)?;
    Some(word(rest, ".").and_then(|rest| digits(rest, 1, 6)).unwrap_or(rest))
}

/// `+HH:MM` or `-HH:MM`.
fn offset(rest: &str) -> Option<&str> {
    let rest = digits(one_of(rest, &["+", "-"])?, 2, 2)?;
    digits(word(rest, ":")?, 2, 2)
}

/// `attempt #3`, `retry: 3`.
fn attempt(is_inside: bool, rest: &str) -> Option<&str> {
    numbered(is_inside, rest, &["attempt", "retry"])
}

/// `pid 3`, `ppid=3`.
fn process_id(is_inside: bool, rest: &str) -> Option<&str> {
    numbered(is_inside, rest, &["pid", "ppid"])
}

/// One of `words` as a whole word, separators, digits.
fn numbered<'a>(is_inside: bool, rest: &'a str, words: &[&str]) -> Option<&'a str> {
    if is_inside {
        return None;
    }
    let rest = one_of(rest, words)?;
    if !ends_word(rest) {
        return None;
    }
    digits(rest.trim_start_matches(|c| is_space(c) || matches!(c, '#' | ':' | '=')), 1, usize::MAX)
}

/// `1.5 seconds`: digits, perhaps a decimal part, at most one white space, a unit as a whole word.
fn duration(is_inside: bool, rest: &str) -> Option<&str> {
    if is_inside {
        return None;
    }
    let rest = digits(rest, 1, usize::MAX)?;
    let rest = word(rest, ".").and_then(|rest| digits(rest, 1, usize::MAX)).unwrap_or(rest);
    let rest = rest.strip_prefix(is_space).unwrap_or(rest);
    UNITS.iter().find_map(|unit| word(rest, unit).filter(|rest| ends_word(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(mask(text), expected);
    }

    #[test]
    fn date_with_time_is_masked_with_fraction_and_zone() {
        check("at 2026-03-04T05:06:07Z x", "at # x");
        check("2026-03-04 05:06:07.123456+01:00!", "#!");
        check("2026-03-04t05:06:07.1-01:30", "#");
        check("2026-03-04T05:06:07z", "#");
        check("2026-03-04T05:06:07.1234567", "#7");
        check("2026-03-04T05:06:07.", "#.");
        check("2026-03-04T05:06:07+0100", "#+0100");
        check("x12026-03-04T05:06:07", "x1#");
    }

    #[test]
    fn a_bare_date_stays() {
        check("2026-03-04 boom", "2026-03-04 boom");
        check("2026-03-04_05:06:07", "2026-03-04_#");
    }

    #[test]
    fn time_of_day_is_masked() {
        check("5:06:07 and 05:06:07.25", "# and #");
        check("123:45:67", "1#");
        check("05:06", "05:06");
    }

    #[test]
    fn attempts_are_masked_as_whole_words() {
        check("Attempt 3 failed, retry#4, RETRY :\n= 5", "# failed, #, #");
        check(
            "retries 3, attempts 3, reattempt 3, attempt_3",
            "retries 3, attempts 3, reattempt 3, attempt_3",
        );
        check("attempt three", "attempt three");
    }

    #[test]
    fn durations_need_a_unit_and_word_boundaries() {
        check("3ms 3 ns 3us 1.5s 3 second 3 seconds", "# # # # # #");
        check("3 minute 3 MINUTES 3 hour 3\thours", "# # # #");
        check("x3ms 3ms_total 3  ms 3 days line 3 1.5", "x3ms 3ms_total 3  ms 3 days line 3 1.5");
        check("1.2.3s", "1.#");
        check("(3s)-3s", "(#)-#");
        check("3m 3min 3h", "3m 3min 3h");
        check("é3s", "é#");
    }

    #[test]
    fn process_ids_are_masked_as_whole_words() {
        check("pid 3 ppid=44 PID:#5", "# # #");
        check("xpid 3 pids 3 pid3", "xpid 3 pids 3 pid3");
    }

    #[test]
    fn each_shape_sees_what_the_one_before_it_left() {
        check("pid 05:06:07 9", "#");
        check("attempt 2 seconds", "# seconds");
    }
}
