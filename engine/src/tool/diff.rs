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
    let lines: Vec<&str> = old.split_inclusive('\n').collect();
    let mut starts = vec![0];
    starts.extend(lines.iter().scan(0, |at, line| {
        *at += line.len();
        Some(*at)
    }));
    let mut out = String::new();
    let mut shift = 0;
    for (range, group) in groups(&starts, splices) {
        let bytes = start_of(&starts, range.start)..start_of(&starts, range.end);
        let new = spliced(old, bytes, group);
        let new: Vec<&str> = new.split_inclusive('\n').collect();
        hunk(&mut out, &lines, range.clone(), &new, shift);
        shift += new.len() as i64 - range.len() as i64;
    }
    if out.is_empty() { out } else { format!("--- {path}\n+++ {path}\n{out}") }
}

/// The splices that share a hunk, with the lines that they touch.
fn groups<'a>(starts: &[usize], splices: &'a [Splice]) -> Vec<(Range<usize>, &'a [Splice])> {
    let count = starts.len().saturating_sub(1);
    let line = |at: usize| starts.partition_point(|&start| start <= at).saturating_sub(1).min(count);
    // A line that only lends its end to the range is touched too: what follows joins it.
    let touched = |splice: &Splice| line(splice.range.start)..(line(splice.range.end) + 1).min(count);
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

fn start_of(starts: &[usize], line: usize) -> usize {
    starts.get(line).or(starts.last()).copied().unwrap_or(0)
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
}
