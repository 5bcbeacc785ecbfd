//! Placeholder
pub struct Rehearsal;
