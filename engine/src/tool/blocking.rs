//! The frame around a tool that works on files: off the async threads, capped, cancellable.
//!
//! Owns how such a tool is started. It must never let a failure of the tool become one of the engine.

use model::ToolResult;
use serde::de::DeserializeOwned;

use super::CallContext;
use super::output::capped;

/// The text of a call that was cancelled.
pub(super) const ABORTED: &str = "Operation aborted";

/// Runs `body` on a thread that may block, and cuts its texts to what the call allows.
pub(super) async fn blocking(
    call: CallContext,
    body: impl FnOnce(&CallContext) -> Result<ToolResult, String> + Send + 'static,
) -> Result<ToolResult, String> {
    let run = move || {
        refuse_if_cancelled(&call)?;
        body(&call).map(|result| capped(result, call.output_bytes_max))
    };
    let joined = tokio::task::spawn_blocking(run).await;
    joined.unwrap_or_else(|error| Err(format!("the tool failed within itself: {error}")))
}

/// The call's arguments as the tool's own type.
pub(super) fn arguments<T: DeserializeOwned>(call: &CallContext) -> Result<T, String> {
    T::deserialize(&call.args).map_err(|error| format!("the arguments do not fit the tool: {error}"))
}

/// An error once the call is cancelled; loops ask between their steps.
pub(super) fn refuse_if_cancelled(call: &CallContext) -> Result<(), String> {
    if call.cancel.is_cancelled() { Err(ABORTED.to_owned()) } else { Ok(()) }
}
