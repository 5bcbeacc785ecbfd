//! Names that a provider accepts for calls and tools.
//!
//! Owns the mapping from what another provider, or a model, made up. It is a function of the transcript
//! alone, in its order: a longer transcript maps its beginning as before.

use std::collections::HashSet;

/// The most bytes of an id: the least that any protocol accepts.
pub(super) const ID_BYTES_MAX: usize = 40;

/// The most bytes of a tool's name.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Ids of the calls of one conversation.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    taken: HashSet<String>,
    calls: u64,
}

impl CallIds {
    /// The id of the next call, whose own is `id`: the same if it is accepted and free.
    pub(super) fn next(&mut self, id: &str) -> String {
        self.calls += 1;
        let mut mapped = id.to_owned();
        let mut tries = 0u64;
        while mapped.len() > ID_BYTES_MAX || !is_plain(&mapped) || self.taken.contains(&mapped) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.calls.to_le_bytes()).update(&tries.to_le_bytes()).update(id.as_bytes());
            mapped = format!("call_{}", &hasher.finalize().to_hex()[..24]);
            tries += 1;
        }
        self.taken.insert(mapped.clone());
        mapped
    }
}

/// A tool's name as every protocol accepts it; a model may have called what has another one.
pub(super) fn tool_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let name: String = name.chars().take(NAME_BYTES_MAX).map(plain).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Letters, digits, `_` and `-`, and at least one of them.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_id_stays_and_another_is_mapped_the_same_way_every_time() {
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let ids = ["toolu_01", "call_1", "call_1", "a~2", "", &long];
        let map = || {
            let mut known = CallIds::default();
            ids.map(|id| known.next(id))
        };
        let mapped = map();
        assert_eq!(mapped, map());
        assert_eq!(mapped[..2], ids[..2]);
        let different: HashSet<&String> = mapped.iter().collect();
        assert_eq!(different.len(), ids.len());
        assert!(mapped.iter().all(|id| is_plain(id) && id.len() <= ID_BYTES_MAX), "{mapped:?}");
    }

    #[test]
    fn a_tool_name_is_made_plain() {
        assert_eq!(["read", "a b/ł", ""].map(tool_name), ["read", "a_b__", "unnamed"].map(str::to_owned));
        assert_eq!(tool_name(&"n".repeat(99)).len(), NAME_BYTES_MAX);
    }
}
