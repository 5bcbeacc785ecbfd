//! What can be wrong with a configuration, and how it is told.
//!
//! Owns the texts around mistakes. None may quote the value of a string, which may be a secret pasted in the
//! wrong place, unless it is the name of a model or profile.

use std::fmt;

use super::Origin;
use super::unknown::join;

/// One mistake, with its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Where it was made.
    pub at: Origin,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

/// Why there is no configuration, or not what was asked of it. The command line ends with status 2 for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Mistakes in files or variables: all of them, by file and line.
    #[error("{}", listing(.0))]
    Invalid(Vec<Mistake>),
    /// Nothing names a directory for the store.
    #[error("no directory for the store: there is no home directory; give --data DIR or set SPRAG_DATA")]
    NoDataDir,
    /// A run asks for a model that is not configured.
    #[error("model `{model}` is not configured{}", what_next(.model, .nearest.as_deref()))]
    UnknownModel {
        /// The name asked for.
        model: String,
        /// The configured name that is most like it.
        nearest: Option<String>,
    },
    /// A stored snapshot is not one of this version's.
    #[error("configuration snapshot not readable: {reason}; use the version of sprag that started the run")]
    Snapshot {
        /// What the decoder says.
        reason: String,
    },
}

/// `, did you mean ...?`, or nothing.
pub(super) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean `{nearest}`?")).unwrap_or_default()
}

fn what_next(model: &str, nearest: Option<&str>) -> String {
    let table = join("models", model);
    match nearest {
        Some(_) => did_you_mean(nearest),
        None => format!("; add a table [{table}] or use --model rehearsal:FILE"),
    }
}

fn listing(mistakes: &[Mistake]) -> String {
    let lines: String = mistakes.iter().map(|mistake| format!("{mistake}\n")).collect();
    let what = if mistakes.len() == 1 { "this mistake" } else { "these mistakes" };
    format!("{lines}nothing was started: correct {what} and run the command again")
}
