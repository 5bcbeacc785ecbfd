//! The engine: performs what the model decides, and commits what happened.
//!
//! Owns everything asynchronous: driver, lanes, providers, tools, recovery. It must never decide what follows from an
//! outcome (that is `model`) and never touch the disk of the journal (that is `store`).
//!
//! ```text
//! Engine::builder(dir).config(c).tool(t).provider(name, p).harness(h).open()
//!     engine.submit(job) -> RunHandle { id, events(after), outcome().await, steer, follow_up, cancel, decide }
//!     engine.resume(None)
//! ```
//!
//! A whole program with a tool and a model of its own, `engine/examples/embed.rs`; started again after a crash, it goes
//! on:
//!
//! ```no_run
#![doc = include_str!("../examples/embed.rs")]
//! ```

mod accept;
pub mod batch;
pub mod bench;
mod budgets;
mod builder;
mod clock;
pub mod config;
mod configs;
pub mod control;
mod crash_point;
mod decision;
pub mod doctor;
mod driver;
mod engine;
mod entry;
mod error;
mod event;
mod events;
mod fold;
pub mod gc;
mod handle;
pub mod harness;
mod job;
mod keys;
mod lanes;
mod lives;
mod models;
mod profiles;
pub mod provider;
pub mod query;
mod replay;
mod report;
mod routes;
mod runs;
pub mod salvage;
mod shared;
mod sink;
mod spool;
mod supervisor;
mod suspects;
pub mod tool;
pub mod trial;
mod view;
mod workspaces;

pub use budgets::{BatchCaps, CapReached};
pub use builder::Builder;
pub use clock::{Clock, SystemClock, TimerClock, rfc3339};
pub use config::{Config, data_dir};
pub use driver::Abort;
pub use engine::Engine;
pub use entry::{
    LoopConfig, LoopEnd, agent_loop, agent_loop_continue, check_continuable, run_agent_loop,
    run_agent_loop_continue, run_loop,
};
pub use error::{Error, TranscriptNotContinuable};
pub use event::{AgentEvent, CallView, Place, Stamped};
pub use events::EventReader;
pub use fold::{Dangling, Entry, Fold, Shown};
pub use handle::RunHandle;
pub use harness::Harness;
pub use job::{Job, JobFacts, ModelFacts, ToolLimits};
pub use models::ModelError;
pub use replay::{Difference, Replay, replay};
pub use report::{Found, Note, report_json};
pub use routes::Candidate;
pub use runs::Rest;
pub use sink::EventSink;
pub use supervisor::supervise_if_asked;
pub use view::JournalView;
