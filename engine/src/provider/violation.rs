//! Why a request is not sent.
//!
//! Owns the faults that a provider would find in a request. One that is found here is ours, costs nothing,
//! and says where it is.

use model::input::FailureKind;

use super::fault::Fault;

/// What a provider would not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("it holds no messages")]
    NoMessages,
    #[error("message {at} is out of turn")]
    RoleOrder { at: usize },
    #[error("message {at} has an empty block")]
    EmptyBlock { at: usize },
    #[error("message {at} has a block that does not belong there")]
    MisplacedBlock { at: usize },
    #[error("message {at} has a misplaced or unsigned thinking block")]
    Thinking { at: usize },
    #[error("message {at} has a picture that is not accepted")]
    Picture { at: usize },
    #[error("call id `{id}` is not accepted or not unique")]
    CallId { id: String },
    #[error("call `{id}` has no result")]
    Unanswered { id: String },
    #[error("result `{id}` answers no call before it")]
    StrayResult { id: String },
    #[error("the arguments of call `{id}` are no object")]
    Arguments { id: String },
    #[error("tool name `{name}` is not accepted or not unique")]
    ToolName { name: String },
    #[error("{count} tools; {most} are accepted")]
    TooManyTools { count: usize, most: usize },
    #[error(
        "this model cannot be made to call a tool while it thinks; set tool_choice = \"auto\" or \
         thinking = \"off\""
    )]
    ForcedWhileThinking,
    #[error("{bytes} bytes; {most} are accepted")]
    TooLarge { bytes: usize, most: usize },
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        let kind = match &violation {
            Violation::TooLarge { .. } => FailureKind::ContextOverflow,
            Violation::ForcedWhileThinking => FailureKind::ThinkingUnsupported,
            Violation::NoMessages
            | Violation::RoleOrder { .. }
            | Violation::EmptyBlock { .. }
            | Violation::MisplacedBlock { .. }
            | Violation::Thinking { .. }
            | Violation::Picture { .. }
            | Violation::CallId { .. }
            | Violation::Unanswered { .. }
            | Violation::StrayResult { .. }
            | Violation::Arguments { .. }
            | Violation::ToolName { .. }
            | Violation::TooManyTools { .. } => FailureKind::Format,
        };
        Self::new(kind, format!("the request was not sent: {violation}"))
    }
}
