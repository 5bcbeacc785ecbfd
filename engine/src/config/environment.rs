//! The surroundings of a command: variables and directories, as values.
//!
//! Owns which variable names which directory. It is the only place that may ask the process; everything else
//! is given an [`Environment`], so no test touches global state.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use super::Error;

/// What the configuration may know of its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables by name; one whose name is not UTF-8 is left out, for none of ours is.
    pub vars: BTreeMap<String, OsString>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// The current directory, absolute.
    pub cwd: PathBuf,
    /// The directory of the machine's own configuration; `/etc`.
    pub etc: PathBuf,
}

impl Environment {
    /// The surroundings of this process. Fails when the current directory is gone.
    pub fn of_process() -> io::Result<Self> {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Ok(Self {
            vars: std::env::vars_os().filter_map(named).collect(),
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            cwd: std::env::current_dir()?,
            etc: "/etc".into(),
        })
    }

    /// The value of `name`; an empty one counts as unset.
    pub fn var(&self, name: &str) -> Option<&OsString> {
        self.vars.get(name).filter(|value| !value.is_empty())
    }

    /// The directory that an XDG variable names, else its place below the home directory. The XDG base
    /// directory specification says that a relative path there is to be ignored.
    pub(super) fn xdg(&self, name: &str, below_home: &str) -> Option<PathBuf> {
        let named = self.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        named.or_else(|| Some(self.home.as_ref()?.join(below_home)))
    }
}

/// The store's directory, absolute: `--data`, else `$SPRAG_DATA`, else `$XDG_STATE_HOME/sprag`, else
/// `~/.local/state/sprag`. It need not exist. Fails when nothing names one and there is no home directory.
pub fn data_dir(flag: Option<PathBuf>, environment: &Environment) -> Result<PathBuf, Error> {
    flag.or_else(|| environment.var("SPRAG_DATA").map(PathBuf::from))
        .map(|path| environment.cwd.join(path))
        .or_else(|| Some(environment.xdg("XDG_STATE_HOME", ".local/state")?.join("sprag")))
        .ok_or(Error::NoDataDir)
}
