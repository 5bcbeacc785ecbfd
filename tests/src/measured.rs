//! Reads what the measurements print: their form, their bounds, single figures.
//!
//! Owns how a bound is written. It must never measure, nor know a page.

/// A line that says whether something is within its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// What was measured.
    pub what: String,
    /// What was found; none where only a yes or no is.
    pub found: Option<f64>,
    /// The words of the bound, such as `at most 2`.
    pub bound: String,
    /// It holds, as it says itself and as its numbers say.
    pub holds: bool,
}

/// The bounds that a report names.
pub fn gates(report: &str) -> Vec<Gate> {
    let marked = |line: &str| {
        let mark = ["holds", "FAILS", "not judged"].into_iter().find(|mark| line.starts_with(mark))?;
        Some(gate(line[mark.len()..].trim(), mark == "holds"))
    };
    report.lines().filter_map(marked).collect()
}

fn gate(words: &str, says_so: bool) -> Gate {
    let (measured, bound) = words.rsplit_once(" (").unwrap_or((words, ""));
    let bound = bound.trim_end_matches(')').to_owned();
    let (what, found) = measured.split_once(": ").unwrap_or((measured, ""));
    let found = found.split(' ').next().and_then(|found| found.parse().ok());
    let limit = |words: &str| bound.strip_prefix(words).and_then(|limit| limit.trim().parse::<f64>().ok());
    let is_within = match found {
        None => bound.is_empty(),
        Some(found) => {
            limit("at most").is_some_and(|limit| found <= limit)
                || limit("less than").is_some_and(|limit| found < limit)
                || limit("at least").is_some_and(|limit| found >= limit)
        }
    };
    Gate { what: what.to_owned(), found, bound, holds: says_so && is_within }
}

/// The words of a report, with `#` for each figure that is not part of a bound; lines of the same form count once. What is
/// not judged has the form of what holds.
pub fn form(report: &str) -> Vec<String> {
    let figure = |word: &str| {
        if word.trim_end_matches([',', ';']).parse::<f64>().is_ok() { "#" } else { word }.to_owned()
    };
    let mut form: Vec<String> = report
        .replace("not judged", "holds")
        .replace("FAILS", "holds")
        .lines()
        .filter(|line| !line.starts_with("```"))
        .map(|line| line.split_whitespace().map(figure).collect::<Vec<_>>().join(" "))
        .collect();
    form.dedup();
    form.retain(|line| !line.is_empty());
    form
}

/// The figure between two pieces of a text, the first time that they stand around one.
pub fn number(text: &str, before: &str, after: &str) -> Option<f64> {
    let starts = text.match_indices(before).map(|(at, _)| at + before.len());
    starts.filter(|at| text.is_char_boundary(*at)).find_map(|at| {
        let digits = text[at..].split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let rest = &text[at + digits.len()..];
        digits.parse().ok().filter(|_| rest.starts_with(after))
    })
}
