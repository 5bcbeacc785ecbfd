//! The guards: pure functions that stop what would otherwise never stop. They decide from what they are given
//! and never do anything themselves.

pub mod budget;
pub mod crashes;
pub mod loops;
pub mod profiles;
pub mod retry;
