//! A unified diff of replacements whose places are known.
//!
//! Owns the hunks. It must never search for the changes: they are given.

use std::fmt::Write as _;
use std::ops::Range;

/// Lines around a change that are shown.
const CONTEXT: usize = 3;

/// A text that takes the place of a range of bytes of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Splice {
    /// The bytes that go.
    pub(super) range: Range<usize>,
    /// What comes.
    pub(super) text: String,
}

/// The part `within` of `old` after the splices, which are in it, in order and apart.
pub(super) fn spliced(old: &str, within: Range<usize>, splices: &[Splice]) -> String {
    let mut new = String::new();
    let mut at = within.start;
    for splice in splices {
        new.push_str(old.get(at..splice.range.start).unwrap_or(""));
        new.push_str(&splice.text);
        at = splice.range.end;
    }
    new.push_str(old.get(at..within.end).unwrap_or(""));
    new
}

/// The unified diff of `old` and what the splices make of it; empty if they change nothing.
pub(super) fn diff(path: &str, old: &str, splices: &[Splice]) -> String {
    let lines = Lines::new(old);
    let mut out = String::new();
    let mut shift = 0;
    for (range, group) in groups(&lines, splices) {
        let new = spliced(old, lines.start(range.start)..lines.start(range.end), group);
        let new: Vec<&str> = new.split_inclusive('\n').collect();
        hunk(&mut out, &lines.whole, range.clone(), &new, shift);
        shift += new.len() as i64 - range.len() as i64;
    }
    if out.is_empty() { out } else { format!("--- {path}\n+++ {path}\n{out}") }
}

/// The lines of a text and where they are.
struct Lines<'a> {
    /// The lines with their endings; the last may have none.
    whole: Vec<&'a str>,
    /// Where the lines that have an ending end.
    ends: Vec<usize>,
    bytes: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        Self { whole: text.split_inclusive('\n').collect(), ends, bytes: text.len() }
    }

    /// The line that a byte is in; one past the last at the end of a text whose last line has an ending.
    fn at(&self, byte: usize) -> usize {
        self.ends.partition_point(|&end| end <= byte)
    }

    fn start(&self, line: usize) -> usize {
        line.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(self.bytes))
    }
}

/// The splices that share a hunk, with the lines that they touch.
fn groups<'a>(lines: &Lines<'_>, splices: &'a [Splice]) -> Vec<(Range<usize>, &'a [Splice])> {
    // A line that only lends its end to the range is touched too: what follows joins it.
    let touched = |splice: &Splice| {
        lines.at(splice.range.start)..(lines.at(splice.range.end) + 1).min(lines.whole.len())
    };
    let mut groups = Vec::new();
    let mut rest = splices;
    while let Some(first) = rest.first() {
        let mut range = touched(first);
        let mut length = 1;
        while let Some(next) =
            rest.get(length).map(touched).filter(|next| next.start <= range.end + 2 * CONTEXT)
        {
            range.end = range.end.max(next.end);
            length += 1;
        }
        let (group, others) = rest.split_at(length);
        groups.push((range, group));
        rest = others;
    }
    groups
}

/// Writes the hunk in which the lines `range` of `old` become `new`, without what both start and end with.
fn hunk(out: &mut String, old: &[&str], range: Range<usize>, new: &[&str], shift: i64) {
    let gone = old.get(range.clone()).unwrap_or(&[]);
    let same = gone.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (gone, come) = (gone.get(same..).unwrap_or(&[]), new.get(same..).unwrap_or(&[]));
    let same_after = gone.iter().rev().zip(come.iter().rev()).take_while(|(a, b)| a == b).count();
    let gone = gone.get(..gone.len() - same_after).unwrap_or(&[]);
    let come = come.get(..come.len() - same_after).unwrap_or(&[]);
    if gone.is_empty() && come.is_empty() {
        return;
    }
    let start = range.start + same;
    let first = start.saturating_sub(CONTEXT);
    let end = start + gone.len();
    let before = old.get(first..start).unwrap_or(&[]);
    let after = old.get(end..(end + CONTEXT).min(old.len())).unwrap_or(&[]);
    let around = before.len() + after.len();
    let (old_count, new_count) = (around + gone.len(), around + come.len());
    let place = |count: usize, shift: i64| first as i64 + shift + i64::from(count > 0);
    let _ =
        writeln!(out, "@@ -{},{old_count} +{},{new_count} @@", place(old_count, 0), place(new_count, shift));
    for (sign, lines) in [(' ', before), ('-', gone), ('+', come), (' ', after)] {
        for line in lines {
            let _ = writeln!(out, "{sign}{}", line.trim_end_matches(['\n', '\r']));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splice(old: &str, from: &str, to: &str) -> Splice {
        let start = old.find(from).unwrap();
        Splice { range: start..start + from.len(), text: to.to_owned() }
    }

    #[test]
    fn hunks_have_context_and_join_when_near() {
        let old: String = (1..=30).map(|n| format!("line {n:02}\n")).collect();
        let splices = [
            splice(&old, "line 02", "two"),
            splice(&old, "line 05\nline 06\n", ""),
            splice(&old, "line 25", "line 25\nmore"),
        ];
        let expected = "\
--- f
+++ f
@@ -1,9 +1,7 @@
 line 01
-line 02
-line 03
-line 04
-line 05
-line 06
+two
+line 03
+line 04
 line 07
 line 08
 line 09
@@ -23,6 +21,7 @@
 line 23
 line 24
 line 25
+more
 line 26
 line 27
 line 28
";
        assert_eq!(diff("f", &old, &splices), expected);
    }

    #[test]
    fn ends_of_the_file() {
        let one = |old: &str, from: &str, to: &str| diff("f", old, &[splice(old, from, to)]);
        assert_eq!(one("a", "a", "b"), "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n+b\n");
        assert_eq!(one("a\nb\n", "b\n", ""), "--- f\n+++ f\n@@ -1,2 +1,1 @@\n a\n-b\n");
        assert_eq!(one("a\nb\n", "\nb", "b"), "--- f\n+++ f\n@@ -1,2 +1,1 @@\n-a\n-b\n+ab\n");
        assert_eq!(one("a\n", "a\n", ""), "--- f\n+++ f\n@@ -1,1 +0,0 @@\n-a\n");
        assert_eq!(one("a\n", "a", "a"), "");
        assert_eq!(one("a\r\nb\r\n", "b", "c"), "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n");
    }

    /// The lines that `diff` makes of the lines of `old`, checked against every line that it repeats.
    fn applied(old: &str, diff: &str) -> Vec<String> {
        let old: Vec<&str> = old.lines().collect();
        let mut new: Vec<String> = Vec::new();
        let mut at = 0;
        for line in diff.lines().skip(2) {
            let (sign, text) = line.split_at(1);
            if sign == "@" {
                let numbers: Vec<usize> = line
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|number| number.parse().ok())
                    .collect();
                let start = numbers[0] - usize::from(numbers[1] > 0);
                new.extend(old[at..start].iter().map(|&line| line.to_owned()));
                at = start;
                assert_eq!(numbers[2] - usize::from(numbers[3] > 0), new.len());
                continue;
            }
            if sign != "+" {
                assert_eq!(old[at], text);
                at += 1;
            }
            if sign != "-" {
                new.push(text.to_owned());
            }
        }
        new.extend(old[at..].iter().map(|&line| line.to_owned()));
        new
    }

    proptest::proptest! {
        #[test]
        fn a_diff_turns_the_old_lines_into_the_new(
            old in "[ab\n]{0,60}",
            cuts in proptest::collection::vec((0..=60_usize, "[ab\n]{0,6}"), 0..4),
            lengths in proptest::collection::vec(0..6_usize, 4),
        ) {
            let mut cuts = cuts;
            cuts.sort();
            let mut splices: Vec<Splice> = Vec::new();
            for ((start, text), length) in cuts.into_iter().zip(lengths) {
                let start = start.max(splices.last().map_or(0, |last| last.range.end));
                if start <= old.len() {
                    splices.push(Splice { range: start..(start + length).min(old.len()), text });
                }
            }
            let new = spliced(&old, 0..old.len(), &splices);
            let new: Vec<String> = new.lines().map(str::to_owned).collect();
            assert_eq!(applied(&old, &diff("f", &old, &splices)), new);
        }
    }
}
