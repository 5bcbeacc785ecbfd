//! Why a batch does not start, or does not go on.
//!
//! Owns the sentences; each names the file and what to do.

use std::io;
use std::path::PathBuf;

use model::RunId;

/// A batch's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] crate::Error),
    /// The file of jobs cannot be read.
    #[error("{file}: {source}; name a file of jobs that can be read", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file that the batch writes cannot be used.
    #[error("{file}: cannot {action}: {source}; mend that and run the same command again, which continues", file = file.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Lines that cannot be run as they are; nothing was started.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Jobs(Vec<super::BadLine>),
    /// Two files that must not be the same are.
    #[error("{0} is the file of jobs; name another with {1}")]
    SameFile(PathBuf, &'static str),
    /// The results file names a run that this store has never had.
    #[error(
        "{file} holds results of another store (run {1}); name another with --results, or the --data they came from",
        file = .0.display()
    )]
    OtherStore(PathBuf, RunId),
    /// The results file holds no result.
    #[error("{file} holds something else than results; name another with --results", file = .0.display())]
    NoResults(PathBuf),
}

impl Error {
    pub(super) fn unreadable(file: &std::path::Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| Self::Unreadable { file, source }
    }

    pub(super) fn file(
        action: &'static str,
        file: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| Self::File { action, file, source }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Engine(error.into())
    }
}
