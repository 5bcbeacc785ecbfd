//! Small parsers over text. Each takes what is left and returns what is left after it, or `None`; none of
//! them backtracks. White space, words and digits mean here what they mean in ECMAScript, because the rules
//! were written there.

/// White space: Unicode's, with the byte order mark and without U+0085.
pub(super) fn is_space(c: char) -> bool {
    (c.is_whitespace() && c != '\u{85}') || c == '\u{feff}'
}

/// `text` without white space at its ends.
pub(super) fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// A character of a word: ASCII letter, digit or underscore.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// No word starts or goes on at `rest`.
pub(super) fn ends_word(rest: &str) -> bool {
    !rest.starts_with(is_word)
}

/// After `word`, in any ASCII case.
pub(super) fn word<'a>(rest: &'a str, word: &str) -> Option<&'a str> {
    let (head, tail) = rest.split_at_checked(word.len())?;
    head.eq_ignore_ascii_case(word).then_some(tail)
}

/// After the first of `words` that is there, in any ASCII case.
pub(super) fn one_of<'a>(rest: &'a str, words: &[&str]) -> Option<&'a str> {
    words.iter().find_map(|candidate| word(rest, candidate))
}

/// After at least `min` and at most `max` ASCII digits, as many as there are.
pub(super) fn digits(rest: &str, min: usize, max: usize) -> Option<&str> {
    let count = rest.bytes().take(max).take_while(u8::is_ascii_digit).count();
    if count < min { None } else { rest.get(count..) }
}

/// After one or more characters that `wanted` accepts, as many as there are.
pub(super) fn some(rest: &str, wanted: impl Fn(char) -> bool) -> Option<&str> {
    let tail = rest.trim_start_matches(wanted);
    (tail.len() < rest.len()).then_some(tail)
}
