//! What a run starts from, and what is read from its inbox.
//!
//! Owns the first record of every run. It must never hold a path or a setting that only the engine understands: those
//! travel in `job`.

use serde::{Deserialize, Serialize};

use crate::guard::loops::Window;
use crate::ids::{JsonText, Label, RunId};
use crate::message::Message;
use crate::state::{Limits, Owner, Wants};

/// What a run starts from, known when its lane is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The session's previous run; its transcript comes first.
    pub previous: Option<RunId>,
    /// The previous run's loop window.
    pub window: Option<Window>,
    /// The run goes on from a transcript without a prompt of its own, and a critical tool loop was seen there.
    pub critical_tool_loop_seen: bool,
    /// The transcript so far ends in network content.
    pub is_tainted: bool,
}

/// One message read from the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedItem {
    /// Position in the inbox; for the run's own prompts, index in its submission.
    pub position: u64,
    /// It is a user message, which clears the taint of the turn.
    pub is_user: bool,
    /// It was withdrawn and is not to be injected.
    pub is_withdrawn: bool,
}

/// What is submitted: the first record of every run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The run.
    pub run: RunId,
    /// Its first owner.
    pub owner: Owner,
    /// Key of the session that it belongs to.
    pub session: String,
    /// The prompts, in order. Empty for a continuation.
    pub prompts: Vec<Message>,
    /// Messages that stand before the prompts in a run that starts from a transcript of elsewhere.
    pub base: Vec<Message>,
    /// Name of the model.
    pub model: Label,
    /// Thinking level.
    pub thinking: Label,
    /// What the embedding program takes part in.
    pub wants: Wants,
    /// Caps.
    pub limits: Limits,
    /// The rest of the job, as canonical JSON of the engine: workspace, tools, labels, configuration
    /// snapshot.
    pub job: JsonText,
}
