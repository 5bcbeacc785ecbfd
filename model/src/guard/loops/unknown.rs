//! Recognises, in an error's text, the complaint that a tool does not exist, and which one. Never looks at
//! results.

use super::text::{is_space, one_of, some, trim, word};

/// The missing tool that `error` speaks of, in lower case: `unknown tool: NAME`, else `tool NAME not found`
/// or `tool NAME is not available`, anywhere in the text, in any case, the name quoted or not.
pub fn unknown_tool_name(error: &str) -> Option<String> {
    let text = trim(error);
    find(text, called_unknown).or_else(|| find(text, called_missing)).map(str::to_ascii_lowercase)
}

/// The name at the first place of `text` where `shape` fits.
fn find<'a>(text: &'a str, shape: fn(&'a str) -> Option<&'a str>) -> Option<&'a str> {
    text.char_indices().find_map(|(at, _)| shape(text.get(at..)?))
}

/// `unknown tool`, colons or white space, perhaps a quote, the name.
fn called_unknown(rest: &str) -> Option<&str> {
    let rest = word(rest, "unknown tool")?;
    let rest = some(rest, |c| c == ':' || is_space(c))?;
    let (name, _) = name(after_quote(rest))?;
    Some(name)
}

/// `tool`, white space, the name perhaps in quotes, white space, `not found` or `is not available`.
fn called_missing(rest: &str) -> Option<&str> {
    let rest = some(word(rest, "tool")?, is_space)?;
    let (name, rest) = name(after_quote(rest))?;
    let rest = some(after_quote(rest), is_space)?;
    one_of(rest, &["not found", "is not available"])?;
    Some(name)
}

fn after_quote(rest: &str) -> &str {
    rest.strip_prefix(['\'', '"']).unwrap_or(rest)
}

/// The longest name at `rest`, and what follows it.
fn name(rest: &str) -> Option<(&str, &str)> {
    let tail = some(rest, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))?;
    Some((rest.get(..rest.len() - tail.len())?, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: &str, expected: Option<&str>) {
        assert_eq!(unknown_tool_name(error).as_deref(), expected, "{error:?}");
    }

    #[test]
    fn unknown_tool_needs_one_separator_and_takes_the_longest_name() {
        check("Unknown tool: frob", Some("frob"));
        check("error: UNKNOWN TOOL\t\n:: 'Frob_1.x-y' is bad", Some("frob_1.x-y"));
        check("unknown tool \"frob\"", Some("frob"));
        check("Unknown tool: frob.", Some("frob."));
        check("munknown tool frob", Some("frob"));
        check("unknown toolfrob", None);
        check("unknown tools: frob", None);
        check("unknown  tool: frob", None);
        check("unknown tool: @@@", None);
        check("unknown tool: '\"frob", None);
        check("unknown tool: éfrob", None);
        check("unknown tool:\u{a0}frob", Some("frob"));
        check("unknown tool", None);
    }

    #[test]
    fn a_missing_tool_is_named_between_tool_and_the_complaint() {
        check("Tool frob not found", Some("frob"));
        check("Tool \"frob\"\n not found", Some("frob"));
        check("tool 'frob is not available here", Some("frob"));
        check("mytool frob not found", Some("frob"));
        check("tool frob notfound", None);
        check("tool frob was not found", None);
        check("tool frob isn't available", None);
        check("tool \"frob baz\" not found", None);
        check("tool a not here, tool b not found", Some("b"));
        check("TOOL FROB IS NOT AVAILABLE", Some("frob"));
    }

    #[test]
    fn the_first_shape_wins_wherever_it_stands() {
        check("tool a not found; unknown tool b", Some("b"));
        check("unknown tool @, tool a not found", Some("a"));
        check("unknown tool a, unknown tool b", Some("a"));
        check("permission denied", None);
    }
}
