//! What commands wrote, made durable before their results count.
//!
//! Owns the one sync of a call batch, for those who set `durable_workspace`. Without it a command is as durable as it
//! made itself.

use model::input::RecoveryClass;
use model::state::CallStatus;
use model::{Fact, Phase};

use super::Driver;

impl Driver {
    /// Syncs the file system of the workspace if `fact` brings the last result of a batch with commands.
    pub(super) async fn sync_workspace(&mut self, fact: &Fact) {
        if !self.kept.durable_workspace || !self.is_last_of_commands(fact) {
            return;
        }
        let Some(workspace) = self.facts.workspace.clone() else { return };
        let synced = tokio::task::spawn_blocking(move || {
            let dir = std::fs::File::open(&workspace)?;
            std::io::Result::Ok(rustix::fs::syncfs(dir)?)
        });
        // A workspace that is gone, or a disk that fails, is no reason to lose a result: the commit meets the disk too.
        if let Ok(Err(error)) = synced.await {
            tracing::warn!(run = %self.run, %error, "the workspace could not be synced");
        }
    }

    fn is_last_of_commands(&self, fact: &Fact) -> bool {
        let (Fact::ToolReturned { call, .. } | Fact::ToolUnknown { call, .. }) = fact else { return false };
        let (Phase::ExecuteTools { .. }, Some(batch)) = (&self.state.core.phase, &self.state.batch) else {
            return false;
        };
        let is_under_way = |status| matches!(status, CallStatus::Started | CallStatus::Planned(_));
        let is_last =
            (0u16..).zip(&batch.calls).all(|(index, other)| index == *call || !is_under_way(other.status));
        let is_command =
            |call: &model::state::Call| call.class == RecoveryClass::Adoptable && call.marks.is_started();
        is_last && batch.calls.iter().any(is_command)
    }
}
