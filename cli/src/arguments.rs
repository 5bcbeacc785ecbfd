//! The command line.
//!
//! Owns the flags of all commands and how single values are read; each command has its own flags in its own file.

use std::path::PathBuf;

use clap::{Args, Parser};
use tracing_subscriber::filter::LevelFilter;

use crate::command::Command;

/// Runs LLM agents as a durable state machine: what was committed survives a kill, and a resume goes on from there.
#[derive(Debug, Parser)]
#[command(name = "sprag", version, max_term_width = 100, after_help = EXAMPLE)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLE: &str = "\
Example:
  echo '{\"turns\":[{\"text\":\"Hello!\"}]}' > hello.json
  sprag run --model rehearsal:hello.json 'Say hello'";

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct Globals {
    /// Directory of the store [default: $SPRAG_DATA, else $XDG_STATE_HOME/sprag, else ~/.local/state/sprag]
    #[arg(long, global = true, help_heading = "Global options", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Configuration file, read after the usual ones
    #[arg(long, global = true, help_heading = "Global options", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What is logged to stderr: off, error, warn, info, debug or trace
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "LEVEL",
        default_value = "warn"
    )]
    pub(crate) log: LevelFilter,
}

/// A duration such as `90`, `90s`, `15m`, `48h` or `7d`, in seconds. 0 is no limit.
pub(crate) fn duration_s(text: &str) -> Result<u64, String> {
    let bad = || format!("expected a duration like 90s, 15m, 48h or 7d (0 for none), got `{text}`");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let seconds = number.checked_mul(unit_s).ok_or_else(bad)?;
    let most = engine::config::SECONDS_MAX;
    if seconds > most { Err(format!("{text} is too long; at most {most} seconds")) } else { Ok(seconds) }
}

/// `k=v`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("expected NAME=VALUE, got `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let cases =
            [("0", Some(0)), ("90", Some(90)), ("90s", Some(90)), ("15m", Some(900)), ("48h", Some(172_800))];
        for (text, seconds) in cases {
            assert_eq!(duration_s(text).ok(), seconds, "{text}");
        }
        for text in ["", "h", "-1", "1.5h", "2w", "9999999d", "99999999999999999999"] {
            assert!(duration_s(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
