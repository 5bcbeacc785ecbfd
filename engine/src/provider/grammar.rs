//! What the grammars of all protocols have in common.
//!
//! Owns the checks that are made of a request's JSON as it will be sent. It must never know how the request
//! was made.

use std::collections::HashSet;

use serde_json::Value;

use super::call_ids::{ID_BYTES_MAX, NAME_BYTES_MAX, is_plain};
use super::conversation::{PICTURE_BYTES_MAX, PICTURES};
use super::fields::text;
use super::violation::Violation;

/// The most tools of one request.
const TOOLS_MAX: usize = 128;

/// Calls and results, in the order of a request.
#[derive(Debug, Default)]
pub(super) struct Calls<'a> {
    seen: HashSet<&'a str>,
    open: Vec<&'a str>,
}

impl<'a> Calls<'a> {
    /// A call, whose id must be new.
    pub(super) fn call(&mut self, id: &'a str, name: &str) -> Result<(), Violation> {
        let is_accepted = is_plain(id) && id.len() <= ID_BYTES_MAX;
        if !is_accepted || !self.seen.insert(id) {
            return Err(Violation::CallId { id: id.to_owned() });
        }
        tool_name(name)?;
        self.open.push(id);
        Ok(())
    }

    /// A result, whose call must be open.
    pub(super) fn result(&mut self, id: &str) -> Result<(), Violation> {
        let stray = || Violation::StrayResult { id: id.to_owned() };
        let place = self.open.iter().position(|open| *open == id).ok_or_else(stray)?;
        self.open.remove(place);
        Ok(())
    }

    /// Everything but a result follows: no call may be open.
    pub(super) fn settled(&self) -> Result<(), Violation> {
        self.open.first().map_or(Ok(()), |id| Err(Violation::Unanswered { id: (*id).to_owned() }))
    }
}

/// The tools of a request, by name.
pub(super) fn tools<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Violation> {
    let mut seen = HashSet::new();
    for name in names {
        tool_name(name)?;
        if !seen.insert(name) {
            return Err(Violation::ToolName { name: name.to_owned() });
        }
    }
    let count = seen.len();
    if count > TOOLS_MAX { Err(Violation::TooManyTools { count, most: TOOLS_MAX }) } else { Ok(()) }
}

fn tool_name(name: &str) -> Result<(), Violation> {
    let is_accepted = is_plain(name) && name.len() <= NAME_BYTES_MAX;
    if is_accepted { Ok(()) } else { Err(Violation::ToolName { name: name.to_owned() }) }
}

/// The text of message `at`, which must not be blank.
pub(super) fn prose(text: &str, at: usize) -> Result<(), Violation> {
    if text.trim().is_empty() { Err(Violation::EmptyBlock { at }) } else { Ok(()) }
}

/// The arguments of a call as text, which must be an object.
pub(super) fn arguments(text: &str, id: &str) -> Result<(), Violation> {
    let is_object = serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    if is_object { Ok(()) } else { Err(Violation::Arguments { id: id.to_owned() }) }
}

/// A picture of message `at`.
pub(super) fn picture(media_type: &str, data: &str, at: usize) -> Result<(), Violation> {
    let is_accepted = PICTURES.contains(&media_type) && !data.is_empty() && data.len() <= PICTURE_BYTES_MAX;
    if is_accepted { Ok(()) } else { Err(Violation::Picture { at }) }
}

/// A picture of message `at` as a `data:` address.
pub(super) fn picture_url(url: &str, at: usize) -> Result<(), Violation> {
    let halves = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (media_type, data) = halves.ok_or(Violation::Picture { at })?;
    picture(media_type, data, at)
}

/// The role of a message.
pub(super) fn role(message: &Value) -> &str {
    text(message, "role")
}
