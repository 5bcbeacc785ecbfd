//! Guards: pure functions over fields of the state that keep a run from looping, waiting or spending for ever.

pub mod loops;
pub mod retry;
