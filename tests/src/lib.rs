//! What the suites share: a disk whose power fails, and the world outside of the engine that survives it.
//!
//! Owns the means, not the claims: what must hold is said in `tests/tests`.

pub mod chronicle;
pub mod content;
pub mod disk;
pub mod documented;
pub mod fuse;
pub mod harness;
pub mod image;
pub mod life;
pub mod measured;
pub mod moment;
pub mod past;
pub mod peers;
pub mod power;
pub mod scenario;
pub mod silent;
pub mod stores;
pub mod tools;
pub mod world;
