//! Tests of the tools in a workspace of their own.

mod crash;
mod files;
mod search;

use std::path::{Path, PathBuf};

use model::{RunId, ToolResult};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::builtin::builtin;
use super::validate::Validator;
use super::{CallContext, Preparation};

/// A workspace beside a file that no tool may see.
struct World {
    dir: tempfile::TempDir,
    output_bytes_max: usize,
}

impl World {
    fn new(files: &[(&str, &str)]) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap(), output_bytes_max: 1 << 20 };
        std::fs::create_dir(world.root()).unwrap();
        std::fs::write(world.dir.path().join("secret"), "outside").unwrap();
        for (path, content) in files {
            world.put(path, content);
        }
        world
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn content(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    /// Names in a directory of the workspace, sorted.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn call(&self, args: Value) -> CallContext {
        CallContext {
            run: RunId([7; 16]),
            call_id: "c1".into(),
            idempotency_key: "07070707/3.0".into(),
            args,
            workspace: self.root(),
            scratch: Some(self.dir.path().join("data/calls/3.0")),
            output_bytes_max: self.output_bytes_max,
            output_spool_bytes_max: 64 << 20,
            timeout_s: 0,
            epoch: 1,
            is_of_other_boot: false,
            cancel: CancellationToken::new(),
            updates: mpsc::channel(1).0,
        }
    }

    /// What a model's call comes to: prepared, validated, run.
    fn run(&self, tool: &str, args: Value) -> Result<ToolResult, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let named = builtin(tool).unwrap();
        let args = match named.prepare(args)? {
            Preparation::Args(args) => args,
            Preparation::Immediate(result) => return Ok(result),
        };
        let args = Validator::new(&named.spec().parameters).unwrap().check(tool, &args)?;
        runtime.block_on(named.run(self.call(args)))
    }

    fn text(&self, tool: &str, args: Value) -> String {
        self.run(tool, args).unwrap().joined_text()
    }

    fn refusal(&self, tool: &str, args: Value) -> String {
        self.run(tool, args).unwrap_err()
    }
}
