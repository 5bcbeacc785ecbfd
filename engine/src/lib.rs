//! Placeholder.

pub mod config;

pub use config::{Config, data_dir};
