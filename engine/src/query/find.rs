//! Names that a person types: the beginning of a run's id, and calls as `RUN/TURN.N`.
//!
//! Owns the way from such a name to the one thing it means. It must never choose between two.

use model::RunId;
use store::{Store, run_prefix};

use crate::error::Error;
use crate::keys;

/// Candidates that an ambiguous name is answered with.
const CANDIDATES_MAX: usize = 5;

/// The one run whose id begins with `prefix`.
pub fn find_run(store: &dyn Store, prefix: &str) -> Result<RunId, Error> {
    if prefix.is_empty() {
        return Err(Error::Name("no run is named; give the beginning of its id".to_owned()));
    }
    let no_such_run = || Error::NoSuchRun(prefix.to_owned());
    let digits = prefix.to_ascii_lowercase();
    let first: RunId = format!("{digits:0<32}").parse().map_err(|_| no_such_run())?;
    match candidates(store, &digits, first)?.as_slice() {
        [] => Err(no_such_run()),
        [run] => Ok(*run),
        runs => {
            let mut names: Vec<String> = runs.iter().take(CANDIDATES_MAX).map(RunId::to_string).collect();
            if runs.len() > CANDIDATES_MAX {
                names.push("others".to_owned());
            }
            let names = names.join(", ");
            Err(Error::Name(format!("run `{prefix}` may be any of {names}; give more digits of the id")))
        }
    }
}

/// The runs whose ids begin with these digits, at most one more than is shown. `first` is the least such id.
fn candidates(store: &dyn Store, digits: &str, first: RunId) -> Result<Vec<RunId>, Error> {
    let least = run_prefix(keys::run_key(first));
    // What the keys of all such runs begin with: the tag and the whole bytes among the digits.
    let common = least.get(..1 + digits.len() / 2).unwrap_or(&least);
    let mut after = least.to_vec();
    let mut runs = Vec::new();
    while runs.len() <= CANDIDATES_MAX {
        let next = store.scan(common, Some(&after), 1)?;
        let Some(run) = next.first().and_then(|(key, _)| run_of(key)) else { break };
        if !run.to_string().starts_with(digits) {
            break;
        }
        runs.push(run);
        // Greater than every key of this run, less than any of the next.
        after = run_prefix(keys::run_key(run)).to_vec();
        after.push(u8::MAX);
    }
    Ok(runs)
}

fn run_of(key: &[u8]) -> Option<RunId> {
    Some(RunId(key.get(1..17)?.try_into().ok()?))
}

/// The run (a prefix of its id), turn and index in `RUN/TURN.N`.
pub fn parse_call(text: &str) -> Result<(String, u32, u16), Error> {
    let bad = || {
        Error::Name(format!(
            "`{text}` does not name a call; expected RUN/TURN.N, like 3f2a/0.1 (`sprag show` lists them)"
        ))
    };
    let (run, place) = text.split_once('/').ok_or_else(bad)?;
    let (turn, call) = place.split_once('.').ok_or_else(bad)?;
    let is_run = !run.is_empty() && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (is_run, turn.parse(), call.parse()) {
        (true, Ok(turn), Ok(call)) => Ok((run.to_owned(), turn, call)),
        _ => Err(bad()),
    }
}
