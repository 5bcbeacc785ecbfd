//! Names that nobody knows, and the known name that was probably meant.
//!
//! Owns the measure of likeness and the spelling of key paths. It must never correct anything by itself.

use super::schema::{self, Row, Shape};

/// What was probably meant by the unknown `key` of a table with `rows`: a key of that table, else the path of
/// a key of exactly that name elsewhere.
pub(super) fn suggestion(key: &str, rows: &[Row]) -> Option<String> {
    let sibling = nearest(key, rows.iter().map(|(known, _)| *known)).map(str::to_owned);
    sibling.or_else(|| elsewhere(key, schema::ROOT, ""))
}

/// The name most like `name`: the shortest one that continues it, else the one with the fewest typing errors,
/// if these are at most a third of the longer name.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let continues = known.clone().filter(|candidate| !name.is_empty() && candidate.starts_with(name));
    continues.min_by_key(|candidate| candidate.len()).or_else(|| {
        known
            .map(|candidate| (typing_errors(name, candidate), candidate))
            .filter(|(errors, candidate)| errors * 3 <= name.len().max(candidate.len()))
            .min_by_key(|(errors, _)| *errors)
            .map(|(_, candidate)| candidate)
    })
}

/// `table.key` as TOML writes it.
pub(super) fn join(table: &str, key: &str) -> String {
    let key = quoted(key);
    if table.is_empty() { key } else { format!("{table}.{key}") }
}

/// A key as TOML writes it: quoted unless it is bare.
pub(crate) fn quoted(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.into() } else { format!("{key:?}") }
}

fn elsewhere(key: &str, rows: &[Row], table: &str) -> Option<String> {
    rows.iter().find_map(|(known, shape)| {
        let path = join(table, known);
        match shape {
            Shape::Value(_) if *known == key => Some(path),
            Shape::Table(rows) => elsewhere(key, rows, &path),
            Shape::Named(rows) => elsewhere(key, rows, &join(&path, "NAME")),
            Shape::Value(_) | Shape::TopLevel | Shape::Later => None,
        }
    })
}

/// Characters to insert, delete, replace or swap with their neighbour to get from `a` to `b` (optimal string
/// alignment). Three rows of the usual table are kept.
fn typing_errors(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_counted() {
        let cases = [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("concurency", "concurrency", 1),
            ("modle", "model", 1),
            ("kitten", "sitting", 3),
            ("é", "e", 1),
        ];
        for (a, b, errors) in cases {
            assert_eq!((typing_errors(a, b), typing_errors(b, a)), (errors, errors), "{a} {b}");
        }
    }

    #[test]
    fn a_suggestion_is_a_sibling_first_then_the_same_key_elsewhere() {
        let cases = [
            ("defautls", Some("defaults")),
            ("model", Some("models")),
            ("max_turns", Some("defaults.max_turns")),
            ("idle_timeout_s", Some("models.NAME.idle_timeout_s")),
            ("cache_read", Some("models.NAME.price.cache_read")),
            ("zzz", None),
            ("", None),
        ];
        for (key, meant) in cases {
            assert_eq!(suggestion(key, schema::ROOT).as_deref(), meant, "{key}");
        }
    }
}
