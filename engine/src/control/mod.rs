//! The control socket: how another process talks to the one that owns a directory.
//!
//! Owns `DIR/control.sock`: its address, its protocol, the owner's side and the other side. It must never decide
//! anything: a question is one of [`crate::query`], an act is one of [`crate::RunHandle`].
//!
//! One JSON value a line, both ways. A client says [`Request::Hello`] first; each request gets one [`Reply`], before
//! which a request for events gets any number of them.

mod act;
mod address;
mod client;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use act::Act;
pub use client::{Client, ClientError};
pub use protocol::{Kind, Left, PROTOCOL, REQUEST_BYTES_MAX, Refusal, Reply, Request, Welcome};
pub use server::{CLIENTS_MAX, Server};

/// The socket's name in DIR.
pub const SOCKET: &str = "control.sock";
