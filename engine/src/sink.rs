//! The awaited event sink of an embedding program.

use async_trait::async_trait;

use crate::event::Stamped;

/// Takes every event of a run, in order, and is awaited each time: the run goes no faster than its sink.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Takes one event. `Err` ends the run as cancelled; no further event is sent.
    async fn emit(&self, event: Stamped) -> Result<(), String>;
}
