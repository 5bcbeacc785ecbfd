//! OpenAI's Responses.
//!
//! Owns this protocol: its request, its grammar, its stream. It must never open a connection.

mod check;
mod decode;
mod request;

pub(super) use check::check;
pub(super) use decode::Decoder;
pub(super) use request::{body, has_reasoning};
