//! Wrapped external content carries a fresh id each time it is fetched. This file replaces that id, in
//! complete wrappers only, so that the same content compares equal; a text that merely imitates a wrapper
//! stays as it is.

use std::borrow::Cow;

const MARKER: &str = "EXTERNAL_UNTRUSTED_CONTENT";
const START_PREFIX: &str = "<<<";
const END_PREFIX: &str = "<<<END_";
/// Bytes of an id: hexadecimal digits in lower case.
const ID_BYTES: usize = 16;
/// What stands in the place of every id.
const FIXED_ID: &str = "0000000000000000";

/// A well-formed marker: ` id=`, quote, id, the same quote, `>>>` follow its name.
struct Marker<'a> {
    /// The double quote with the backslashes in front of it.
    quote: &'a str,
    id: &'a str,
    /// Byte of the text at which the id begins.
    id_at: usize,
}

/// `text` with the id of each complete wrapper replaced by a fixed one.
///
/// One pass over the markers in order. A wrapper is complete if the very next marker after its start is its
/// end: that covers nesting (the outer start is followed by another start), overlap, and markers that are not
/// well-formed.
pub(super) fn without_nonces(text: &str) -> Cow<'_, str> {
    let mut stable = String::new();
    let mut copied = 0;
    let mut open: Option<Marker<'_>> = None;
    for (at, _) in text.match_indices(MARKER) {
        let (before, rest) = text.split_at(at);
        if before.ends_with(START_PREFIX) {
            open = marker(text, rest);
            continue;
        }
        if !before.ends_with(END_PREFIX) {
            continue;
        }
        let Some((start, end)) = open.take().zip(marker(text, rest)) else { continue };
        // Both ids are ASCII found in this text, the start's before the end's, so the slices below are in
        // bounds.
        let is_complete = start.quote == end.quote && start.id == end.id;
        if is_complete && is_consistent(&text[start.id_at + ID_BYTES..end.id_at], start.quote.len()) {
            for id_at in [start.id_at, end.id_at] {
                stable.push_str(&text[copied..id_at]);
                stable.push_str(FIXED_ID);
                copied = id_at + ID_BYTES;
            }
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    stable.push_str(&text[copied..]);
    Cow::Owned(stable)
}

/// The marker whose name starts `rest`, the end part of `text`.
fn marker<'a>(text: &str, rest: &'a str) -> Option<Marker<'a>> {
    let rest = rest.strip_prefix(MARKER)?.strip_prefix(" id=")?;
    let unescaped = rest.trim_start_matches('\\').strip_prefix('"')?;
    let (quote, rest) = rest.split_at_checked(rest.len() - unescaped.len())?;
    let id_at = text.len() - rest.len();
    let (id, rest) = rest.split_at_checked(ID_BYTES)?;
    let is_id = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_id && rest.strip_prefix(quote)?.starts_with(">>>")).then_some(Marker { quote, id, id_at })
}

/// Whether every quote of `stretch` can be one that was nested in JSON strings together with the wrapper:
/// each nesting doubles the bytes a quote takes with its backslashes (`"`, `\"`, `\\\"`), so the wrapper's
/// own quote takes a power of two, and each quote between a multiple of that.
fn is_consistent(stretch: &str, quote_bytes: usize) -> bool {
    let mut run = 0;
    quote_bytes.is_power_of_two()
        && stretch.bytes().all(|byte| {
            let quote = run + 1;
            run = if byte == b'\\' { quote } else { 0 };
            byte != b'"' || quote % quote_bytes == 0
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "<<<EXTERNAL_UNTRUSTED_CONTENT";
    const END: &str = "<<<END_EXTERNAL_UNTRUSTED_CONTENT";

    fn wrapped(quote: &str, ids: [&str; 2], body: &str) -> String {
        let [start, end] = ids;
        format!("{START} id={quote}{start}{quote}>>>{body}{END} id={quote}{end}{quote}>>>")
    }

    const A: &str = "abcdef0123456789";
    const B: &str = "1111111111111111";

    #[track_caller]
    fn replaced(text: &str) {
        assert_eq!(without_nonces(text), text.replace(A, FIXED_ID));
        assert_ne!(without_nonces(text), text);
    }

    #[track_caller]
    fn untouched(text: &str) {
        assert_eq!(without_nonces(text), text);
    }

    #[test]
    fn complete_wrappers_lose_their_ids() {
        replaced(&wrapped("\"", [A, A], "body"));
        replaced(&wrapped("\"", [A, A], ""));
        replaced(&format!("é{}\n{}>>>", wrapped("\"", [A, A], "é\"\\\""), wrapped("\"", [A, A], "<<<x")));
        assert_eq!(
            without_nonces(&format!("{}{}", wrapped("\"", [A, A], "x"), wrapped("\"", [B, B], "y"))),
            format!("{}{}", wrapped("\"", [FIXED_ID; 2], "x"), wrapped("\"", [FIXED_ID; 2], "y"))
        );
    }

    #[test]
    fn an_incomplete_wrapper_stays() {
        untouched("");
        untouched(START);
        untouched(&wrapped("\"", [A, B], "body"));
        untouched(&wrapped("\"", ["ABCDEF0123456789"; 2], "body"));
        untouched(&wrapped("\"", ["abcdef012345678"; 2], "body"));
        untouched(&wrapped("\"", ["abcdef012345678é"; 2], "body"));
        untouched(&wrapped("'", [A, A], "body"));
        untouched(&format!("{START} id=\"{A}\">>>body"));
        untouched(&format!("{END} id=\"{A}\">>>{START} id=\"{A}\">>>"));
        untouched(&format!("{START} id=\"{A}\\\">>>x{END} id=\"{A}\">>>"));
        untouched(&format!("{START} id=\"{A}\">>>x{END} id=\\\"{A}\\\">>>"));
        untouched(&format!("{START}  id=\"{A}\">>>x{END} id=\"{A}\">>>"));
    }

    #[test]
    fn a_body_with_a_marker_prefix_is_no_body() {
        untouched(&wrapped("\"", [A, A], &format!("x{START}y")));
        untouched(&wrapped("\"", [A, A], &format!("x{END}y")));
        replaced(&wrapped("\"", [A, A], "x<<<EXTERNAL_UNTRUSTED<<<"));
    }

    #[test]
    fn only_the_inner_of_two_nested_wrappers_is_complete() {
        let nested = |inner| wrapped("\"", [B, B], &wrapped("\"", [inner, inner], "body"));
        assert_eq!(without_nonces(&nested(A)), nested(FIXED_ID));
    }

    #[test]
    fn quotes_may_be_escaped_a_whole_number_of_times() {
        for (quote, is_whole) in [
            ("\\\"", true),
            ("\\\\\"", false),
            ("\\\\\\\"", true),
            ("\\\\\\\\\"", false),
            ("\\\\\\\\\\\\\\\"", true),
        ] {
            let text = wrapped(quote, [A, A], "body");
            if is_whole { replaced(&text) } else { untouched(&text) }
        }
    }

    #[test]
    fn every_quote_inside_must_be_as_deep_as_the_wrapper() {
        untouched(&wrapped("\\\"", [A, A], "bo\"dy"));
        untouched(&wrapped("\\\"", [A, A], "bo\\\\\"dy"));
        replaced(&wrapped("\\\"", [A, A], "bo\\\"dy\\\\\\\"\\n\\"));
        replaced(&wrapped("\\\"", [A, A], "back\\\\slashes"));
        untouched(&wrapped("\\\"", [A, A], "\\\"\""));
        replaced(&wrapped("\"", [A, A], "bo\\\\\"dy"));
        replaced(&format!("\"{}\"", wrapped("\\\"", [A, A], "outside does not matter")));
    }

    #[test]
    fn an_inconsistent_wrapper_does_not_hide_the_next() {
        let bad = wrapped("\\\"", [B, B], "bo\"dy");
        assert_eq!(
            without_nonces(&format!("{bad}{}", wrapped("\"", [A, A], "x"))),
            format!("{bad}{}", wrapped("\"", [FIXED_ID; 2], "x"))
        );
    }
}
