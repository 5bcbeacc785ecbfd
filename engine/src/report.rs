//! What a resume found and did: the report that it prints.
//!
//! Owns a list of facts for a person. It must never decide anything.

use std::sync::Mutex;

use model::RunId;
use serde_json::{Value, json};

use crate::runs::lock;

/// What was found of a run or of one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// The run goes on.
    Resumed,
    /// A call that had not run was started.
    Started,
    /// A call was still running and is waited for.
    Adopted,
    /// The result of a call was found.
    Collected,
    /// A model call or a tool call is made again.
    Repeated,
    /// Nobody knows what became of a call.
    Unknown,
    /// The run needs a person.
    Parked,
}

impl Found {
    /// Every kind, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::Resumed,
        Self::Started,
        Self::Adopted,
        Self::Collected,
        Self::Repeated,
        Self::Unknown,
        Self::Parked,
    ];

    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resumed => "resumed",
            Self::Started => "started",
            Self::Adopted => "adopted",
            Self::Collected => "collected",
            Self::Repeated => "repeated",
            Self::Unknown => "unknown",
            Self::Parked => "parked",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The run.
    pub run: RunId,
    /// Turn and index of the call, if it is about one.
    pub call: Option<(u32, u16)>,
    /// What was found.
    pub found: Found,
    /// Why, in a few words.
    pub reason: String,
}

/// The report of one engine.
#[derive(Debug, Default)]
pub(crate) struct Report {
    notes: Mutex<Vec<Note>>,
}

/// Lines that a report keeps; beyond it only the counts of runs matter to a person.
const NOTES_MAX: usize = 100_000;

impl Report {
    pub(crate) fn note(&self, run: RunId, call: Option<(u32, u16)>, found: Found, reason: &str) {
        let mut notes = lock(&self.notes);
        if notes.len() < NOTES_MAX {
            notes.push(Note { run, call, found, reason: reason.to_owned() });
        }
    }

    /// The lines from `first` on.
    pub(crate) fn since(&self, first: usize) -> Vec<Note> {
        lock(&self.notes).get(first..).unwrap_or_default().to_vec()
    }
}

/// The report as `resume --json` prints it.
pub fn report_json(notes: &[Note]) -> Value {
    let mut out = json!({});
    for found in Found::ALL {
        out[found.name()] = notes
            .iter()
            .filter(|note| note.found == found)
            .map(|note| {
                let call = note.call.map(|(turn, call)| format!("{}/{turn}.{call}", note.run));
                json!({ "run": note.run.to_string(), "call": call, "reason": note.reason })
            })
            .collect();
    }
    out
}
