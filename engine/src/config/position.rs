//! Where a value or a mistake comes from.
//!
//! Owns origins and the way from a byte offset to line and column. It must never guess: a place that is no
//! file has no line.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where the effective value of a key comes from. The order of variants is the order of layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Built in.
    Default,
    /// A file.
    File {
        /// As shown to people: absolute, or as they gave it, relative to the current directory.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// A variable of the environment.
    Env {
        /// Its whole name.
        name: String,
    },
    /// A flag of the command.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env { name } => write!(f, "${name}"),
            Self::Flag => f.write_str("command line"),
        }
    }
}

/// What one layer was read from, while it is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// A file, with its text.
    File { path: &'a Path, text: &'a str },
    /// A variable.
    Env { name: &'a str },
}

impl Source<'_> {
    /// The origin of what stands at `span`.
    pub(super) fn at(&self, span: Range<usize>) -> Origin {
        match *self {
            Source::File { path, text } => {
                let (line, column) = line_and_column(text, span.start);
                Origin::File { path: path.into(), line, column }
            }
            Source::Env { name } => Origin::Env { name: name.into() },
        }
    }
}

/// Line and column, both from 1, of a byte offset; past the end it is the end.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let text = "a = 1\né = 2\n";
        let places: Vec<_> = [0, 4, 6, 9, 13, 99].map(|offset| line_and_column(text, offset)).into();
        assert_eq!(places, [(1, 1), (1, 5), (2, 1), (2, 3), (3, 1), (3, 1)]);
    }
}
