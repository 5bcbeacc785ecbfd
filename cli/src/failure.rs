//! Why a command could not do its work.
//!
//! Owns the sentence and the status of a failure. Whatever the layers below say ends up here, once.

use std::io;

use engine::batch;
use engine::control::{ClientError, Kind};

use crate::status::Status;

/// A command's failure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// To be said on stderr.
    Said {
        /// The exit status.
        status: Status,
        /// The sentence, with the next step.
        message: String,
    },
    /// Stored bytes have changed.
    Damaged {
        /// Where, with the next step.
        message: String,
    },
    /// Nobody reads the output any more; the command ends without a word.
    ClosedPipe,
}

impl Failure {
    /// A failure with its sentence.
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self::Said { status, message: message.into() }
    }

    /// The same for a command that looks for damage: finding it is its answer.
    pub(crate) fn while_checking(self) -> Self {
        match self {
            Self::Damaged { message } => Self::new(Status::Damage, message),
            Self::Said { .. } | Self::ClosedPipe => self,
        }
    }

    /// The sentence alone.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Said { message, .. } | Self::Damaged { message } => message,
            Self::ClosedPipe => "nobody reads the output",
        }
    }

    /// A command line that cannot be meant.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::Usage, message)
    }
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        let status = Status::of_kind(Kind::of(&error));
        let message = error.to_string();
        let engine::Error::Store(error) = error else { return Self::new(status, message) };
        if let store::Error::Damaged { .. } = error {
            return Self::Damaged { message: format!("{message}; `sprag doctor` says what can be saved") };
        }
        let is_of_disk = matches!(error, store::Error::Io { .. });
        let next =
            if is_of_disk { "; look at the disk, or choose another directory with --data" } else { "" };
        Self::new(status, format!("{message}{next}"))
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        engine::Error::from(error).into()
    }
}

impl From<engine::config::Error> for Failure {
    fn from(error: engine::config::Error) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<batch::Error> for Failure {
    fn from(error: batch::Error) -> Self {
        match error {
            batch::Error::Engine(error) => error.into(),
            batch::Error::File { .. } => Self::new(Status::Failed, error.to_string()),
            batch::Error::Jobs(_)
            | batch::Error::Unreadable { .. }
            | batch::Error::SameFile(..)
            | batch::Error::OtherStore(..)
            | batch::Error::NoResults(_) => Self::usage(error.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(refusal) => Self::new(Status::of_kind(refusal.kind), refusal.message),
            ClientError::Output(error) => error.into(),
            lost @ ClientError::Lost { .. } => Self::new(Status::Store, lost.to_string()),
        }
    }
}

/// Of the command's own input and output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::new(Status::Failed, format!("the output cannot be written: {error}"))
    }
}
