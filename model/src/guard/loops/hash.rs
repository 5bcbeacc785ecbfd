//! The identities of loop detection: truncated hashes that stand for names, arguments and results in the
//! state. Only equality has a meaning. None of them can be turned back into what it was made from.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::text;

macro_rules! hashes {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// The first bytes of what `hasher` has been fed.
            pub(super) fn of_hasher(hasher: &blake3::Hasher) -> Self {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&hasher.finalize().as_bytes()[..$bytes]);
                Self(bytes)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{}:", stringify!($name))?;
                self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
            }
        }
    )+};
}

hashes! {
    /// A tool's name, compared literally; aliases are the caller's job.
    ToolHash: 8;
    /// A tool together with its arguments in canonical form.
    ActionKey: 16;
    /// A run.
    RunHash: 8;
    /// A call id as the model gave it.
    CallHash: 8;
    /// What a call led to, as far as it says something about progress.
    ResultHash: 16;
    /// A command's failure with its times, attempt numbers and process ids masked.
    FailureHash: 16;
    /// The missing tool an error speaks of.
    UnknownHash: 8;
    /// What a warning is about.
    WarningKey: 8;
}

impl ToolHash {
    /// The identity of the tool called `name`.
    pub fn of(name: &str) -> Self {
        Self::of_hasher(blake3::Hasher::new().update(name.as_bytes()))
    }
}

impl RunHash {
    /// The identity of the run called `id`, white space around it ignored; `None` if nothing else is left.
    pub fn of(id: &str) -> Option<Self> {
        let id = text::trim(id);
        (!id.is_empty()).then(|| Self::of_hasher(blake3::Hasher::new().update(id.as_bytes())))
    }
}

impl CallHash {
    /// The identity of the call with this `id`; `None` for an empty one, which identifies nothing.
    pub fn of(id: &str) -> Option<Self> {
        (!id.is_empty()).then(|| Self::of_hasher(blake3::Hasher::new().update(id.as_bytes())))
    }
}

impl UnknownHash {
    /// The identity of the missing tool called `name`.
    pub(super) fn of(name: &str) -> Self {
        Self::of_hasher(blake3::Hasher::new().update(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_run_is_no_run_and_an_empty_call_id_is_no_id() {
        assert_eq!(RunHash::of(""), None);
        assert_eq!(RunHash::of(" \t\u{feff}\n"), None);
        assert_eq!(RunHash::of(" r1 "), RunHash::of("r1"));
        assert_ne!(RunHash::of("R1"), RunHash::of("r1"));
        assert_eq!(CallHash::of(""), None);
        assert_ne!(CallHash::of(" "), None);
    }

    #[test]
    fn a_hash_prints_its_kind_and_bytes() {
        assert_eq!(format!("{:?}", ToolHash([0, 1, 2, 3, 4, 5, 6, 255])), "ToolHash:00010203040506ff");
    }
}
