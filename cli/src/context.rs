//! What every command starts from: the directory, the configuration, who owns the store.
//!
//! Owns the choice between an owner at work and the journal on disk. It must never open the store for a reader.

use std::fs::FileType;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::config::{Config, Environment, Overrides};
use engine::control::{Client, Request};
use engine::query::quoted;
use engine::{JournalView, data_dir};
use serde::Serialize;
use serde_json::Value;
use store::{MemoryStore, Store};

use crate::arguments::Globals;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::count;

/// Where a command works.
pub(crate) struct Context {
    environment: Environment,
    dir: PathBuf,
    /// The directory was named on the command line, so a command that follows must name it too.
    is_dir_named: bool,
    config_file: Option<PathBuf>,
}

/// What the configuration of a command is made of.
pub(crate) struct Layers {
    environment: Environment,
    file: Option<PathBuf>,
    flags: Overrides,
}

impl Layers {
    /// The configuration as the files say it now.
    pub(crate) fn load(&self) -> Result<Config, engine::config::Error> {
        Ok(engine::config::load(&self.environment, self.file.as_deref(), &self.flags)?.config)
    }

    /// True if the files can be read again. A pipe tells what it holds once, and whoever opens one may wait for ever.
    pub(crate) fn can_be_read_again(&self) -> bool {
        let is_waiting = |kind: FileType| !kind.is_file() && !kind.is_dir();
        self.files().iter().all(|file| file.metadata().map_or(true, |found| !is_waiting(found.file_type())))
    }

    /// The files, whether they are there or not.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        engine::config::files(&self.environment, self.file.as_deref())
    }

    /// A file's name as a person gave it: relative if it is below the current directory.
    pub(crate) fn name<'a>(&self, file: &'a Path) -> &'a Path {
        file.strip_prefix(&self.environment.cwd).unwrap_or(file)
    }
}

impl Context {
    pub(crate) fn new(globals: Globals) -> Result<Self, Failure> {
        let environment = Environment::of_process().map_err(|error| {
            Failure::usage(format!("the current directory is gone ({error}); change to one that exists"))
        })?;
        let is_dir_named = globals.data.is_some();
        let dir = data_dir(globals.data, &environment)?;
        Ok(Self { environment, dir, is_dir_named, config_file: globals.config })
    }

    /// The store's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The current directory.
    pub(crate) fn cwd(&self) -> &Path {
        &self.environment.cwd
    }

    /// A variable of the environment that names a file.
    pub(crate) fn file_variable(&self, name: &str) -> Option<PathBuf> {
        self.environment.var(name).map(|file| self.environment.cwd.join(file))
    }

    /// The configuration, with what flags say.
    pub(crate) fn config(&self, flags: &Overrides) -> Result<Config, Failure> {
        Ok(engine::config::load(&self.environment, self.config_file.as_deref(), flags)?.config)
    }

    /// What the configuration is made of, for whoever reads it again.
    pub(crate) fn layers(&self, flags: Overrides) -> Layers {
        Layers { environment: self.environment.clone(), file: self.config_file.clone(), flags }
    }

    /// A command to type next, for the same directory and configuration.
    pub(crate) fn next(&self, command: &str) -> String {
        let mut words = vec!["sprag".to_owned()];
        let mut name = |flag: &str, path: &Path| {
            words.extend([flag.to_owned(), quoted(&path.display().to_string())]);
        };
        if self.is_dir_named {
            name("--data", &self.dir);
        }
        if let Some(file) = &self.config_file {
            name("--config", &self.environment.cwd.join(file));
        }
        words.push(command.to_owned());
        words.join(" ")
    }

    /// A command that the engine names, for the same directory and configuration.
    pub(crate) fn same_dir(&self, command: &str) -> String {
        command.strip_prefix("sprag ").map_or_else(|| command.to_owned(), |rest| self.next(rest))
    }

    /// The process that owns the directory, if one listens there.
    pub(crate) fn owner(&self) -> Result<Option<Client>, Failure> {
        Ok(Client::connect(&self.dir)?)
    }

    /// The journal on disk, read alone: no lock, no write.
    pub(crate) fn journal(&self) -> Result<Arc<dyn Store>, Failure> {
        if self.has_journal()? {
            let view = JournalView::open(&self.dir)?;
            if let Some(remains) = view.remains().filter(|remains| remains.is_damaged()) {
                let left_out = match remains.torn().len() {
                    0 => "the journal is damaged".to_owned(),
                    torn => format!("{} left out", count(torn as u64, "damaged run")),
                };
                let next = self.next("doctor");
                let _ = writeln!(io::stderr(), "{left_out}; `{next}` says what can be saved");
            }
            Ok(Arc::new(view))
        } else {
            Ok(Arc::new(MemoryStore::new()))
        }
    }

    /// True if there is a journal; a directory that no run was ever started in has none. One that has a state has lost
    /// it.
    pub(crate) fn has_journal(&self) -> Result<bool, Failure> {
        let journal = self.dir.join("journal");
        let has_journal = journal.try_exists().map_err(|error| {
            let message =
                format!("{} cannot be read ({error}); choose another with --data", journal.display());
            Failure::new(Status::Store, message)
        })?;
        if !has_journal && self.dir.join("state").exists() {
            let dir = self.dir.display();
            let message =
                format!("{dir} has a state and no journal: data is missing; restore it from a copy");
            return Err(Failure::new(Status::Store, message));
        }
        Ok(has_journal)
    }

    /// Answers a question from the owner, or from the journal if there is none, as JSON either way.
    pub(crate) fn ask<T: Serialize>(
        &self,
        request: &Request,
        from_journal: impl FnOnce(&dyn Store) -> Result<T, engine::Error>,
    ) -> Result<Value, Failure> {
        if let Some(mut owner) = self.owner()? {
            return Ok(owner.ask(request)?);
        }
        let answer = from_journal(&*self.journal()?)?;
        serde_json::to_value(answer).map_err(|error| io::Error::other(error).into())
    }

    /// The command's output.
    pub(crate) fn output(&self) -> Output {
        Output::new()
    }
}

/// Runs a future to its end on a runtime of the command's own.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new(Status::Internal, format!("the runtime does not start: {error}; free some threads"))
    })?;
    let ended = runtime.block_on(future);
    // What still runs on other threads has nothing left to say.
    runtime.shutdown_background();
    ended
}
