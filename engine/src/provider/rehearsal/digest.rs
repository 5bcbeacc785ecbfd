//! Hash and size of a request.
//!
//! Owns the estimate of tokens and the memory of what was hashed before. It must never read a message: the
//! hash of a message comes with it, so a long context costs 32 bytes a message.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use model::JsonText;
use model::message::Block;

use crate::provider::Request;
use crate::tool::ToolSpec;

/// What an estimate takes for one token, in bytes of text.
const TOKEN_BYTES: u64 = 4;

/// What an estimate takes for one picture, in bytes of text.
const IMAGE_BYTES: u64 = 1_600 * TOKEN_BYTES;

/// The most system prompts, and the most lists of tools, whose digests are kept.
const KNOWN_MAX: usize = 64;

/// Tokens of so many bytes of text, by estimate.
pub(super) fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(TOKEN_BYTES)
}

/// Hashes and measures requests.
#[derive(Debug, Default)]
pub(super) struct Digests {
    systems: Known<str>,
    tools: Known<[ToolSpec]>,
}

impl Digests {
    /// The hash of a request: of all that a model would be sent, and of the place of the call in its run.
    pub(super) fn hash(&self, request: &Request) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&request.turn.to_le_bytes()).update(&request.attempt.to_le_bytes());
        for name in [&request.model, &request.thinking] {
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        }
        hasher.update(&[u8::from(request.system.is_some())]);
        if let Some(system) = &request.system {
            hasher.update(&self.systems.digest(system, of_text).hash);
        }
        hasher.update(&self.tools.digest(&request.tools, of_tools).hash);
        for message in &request.messages {
            hasher.update(&message.hash);
        }
        *hasher.finalize().as_bytes()
    }

    /// Tokens of a request, by estimate.
    pub(super) fn input_tokens(&self, request: &Request) -> u64 {
        let system = request.system.as_ref().map_or(0, |system| system.len() as u64);
        let tools = self.tools.digest(&request.tools, of_tools).bytes;
        let blocks = request.messages.iter().flat_map(|prepared| prepared.message.content());
        tokens(system + tools + blocks.map(block_bytes).sum::<u64>())
    }
}

#[derive(Clone, Copy, Debug)]
struct Digest {
    hash: [u8; 32],
    bytes: u64,
}

/// Digests of values that many requests share, known by their place in memory. A weak reference keeps the
/// place from being given to another value.
#[derive(Debug)]
struct Known<T: ?Sized>(Mutex<Vec<(Weak<T>, Digest)>>);

impl<T: ?Sized> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Known<T> {
    fn digest(&self, value: &Arc<T>, make: fn(&T) -> Digest) -> Digest {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |place: &Weak<T>| ptr::addr_eq(place.as_ptr(), Arc::as_ptr(value));
        if let Some((_, digest)) = known.iter().find(|(place, _)| is_same(place)) {
            return *digest;
        }
        let digest = make(value);
        known.retain(|(place, _)| place.strong_count() > 0);
        if known.len() == KNOWN_MAX {
            known.remove(0);
        }
        known.push((Arc::downgrade(value), digest));
        digest
    }
}

fn of_text(text: &str) -> Digest {
    Digest { hash: *blake3::hash(text.as_bytes()).as_bytes(), bytes: text.len() as u64 }
}

/// A model sees name, description and parameters of a tool, and nothing else.
fn of_tools(tools: &[ToolSpec]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = 0;
    for tool in tools {
        let parameters = JsonText::from(&tool.parameters);
        for text in [tool.name.as_str(), tool.description.as_str(), parameters.as_str()] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
            bytes += text.len() as u64;
        }
    }
    Digest { hash: *hasher.finalize().as_bytes(), bytes }
}

fn block_bytes(block: &Block) -> u64 {
    let bytes = match block {
        Block::Text(text) | Block::Thinking { text, signature: _ } => text.len(),
        Block::ToolCall(call) => call.name.len() + call.arguments.as_str().len(),
        Block::Other(value) => value.as_str().len(),
        Block::Image { .. } => return IMAGE_BYTES,
    };
    bytes as u64
}
