//! Keys: fetched for one call, and forgotten with it.
//!
//! Owns the way from where a key is named to the key. It must never store, log or print one.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use model::input::FailureKind;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::fault::Fault;
use crate::config::Profile;

/// How long a command may take to print a key; one that asks a person for a password must be quick too.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes that a command may print.
const KEY_BYTES_MAX: u64 = 16 << 10;

/// A shorter text is not searched for in other texts: it would be found in innocent words.
const REDACTED_BYTES_MIN: usize = 6;

/// A key. It shows itself only to [`Secret::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The key itself, for the header that carries it.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` without the key: servers quote what they refuse.
    pub(super) fn redact(&self, text: String) -> String {
        if self.is_distinct() { text.replace(&self.0, "[key]") } else { text }
    }

    /// True if it can be told from other words.
    pub(super) fn is_distinct(&self) -> bool {
        self.0.len() >= REDACTED_BYTES_MIN
    }
}

/// Fetches the key of an account.
pub(super) async fn fetch(profile: &Profile) -> Result<Secret, Fault> {
    match profile {
        Profile::ApiKeyEnv(name) => match std::env::var(name) {
            Ok(key) if !key.trim().is_empty() => Ok(Secret::new(key.trim())),
            Ok(_) | Err(_) => Err(refused(format!("the variable {name} holds no key; set it"))),
        },
        Profile::ApiKeyCmd(command) => {
            let printed = tokio::time::timeout(COMMAND_TIMEOUT, print(command)).await;
            printed.unwrap_or_else(|_| Err(refused(format!("api_key_cmd took over {COMMAND_TIMEOUT:?}"))))
        }
    }
}

/// True if a key can be looked for there; a command is not run to find out.
pub(super) fn is_there(profile: &Profile) -> bool {
    match profile {
        Profile::ApiKeyEnv(name) => std::env::var(name).is_ok_and(|key| !key.trim().is_empty()),
        Profile::ApiKeyCmd(_) => true,
    }
}

async fn print(command: &str) -> Result<Secret, Fault> {
    let unusable = |words: String| refused(format!("api_key_cmd {words}"));
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| unusable(format!("did not start: {error}")))?;
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(KEY_BYTES_MAX).read_to_end(&mut printed).await;
        read.map_err(|error| unusable(format!("gave no output: {error}")))?;
    }
    let status = child.wait().await.map_err(|error| unusable(format!("was lost: {error}")))?;
    if !status.success() {
        return Err(unusable(format!("ended with {status}")));
    }
    match String::from_utf8(printed) {
        Ok(text) if !text.trim().is_empty() => Ok(Secret::new(text.trim())),
        Ok(_) | Err(_) => Err(unusable("printed no key".to_owned())),
    }
}

fn refused(words: String) -> Fault {
    Fault::new(FailureKind::Auth, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of_command(command: &str) -> Result<String, String> {
        let fetched = fetch(&Profile::ApiKeyCmd(command.to_owned())).await;
        fetched.map(|key| key.reveal().to_owned()).map_err(|fault| fault.words)
    }

    #[tokio::test]
    async fn a_key_is_what_a_command_prints_or_a_variable_holds() {
        assert_eq!(of_command("echo ' k1 '").await, Ok("k1".to_owned()));
        assert_eq!(of_command("true").await, Err("api_key_cmd printed no key".to_owned()));
        assert_eq!(
            of_command("echo secret; exit 3").await,
            Err("api_key_cmd ended with exit status: 3".to_owned())
        );
        let unset = Profile::ApiKeyEnv("SPRAG_TEST_NO_SUCH_KEY".to_owned());
        let words = "the variable SPRAG_TEST_NO_SUCH_KEY holds no key; set it";
        assert_eq!(fetch(&unset).await, Err(Fault::new(FailureKind::Auth, words)));
        assert!(!is_there(&unset));
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = Secret::new("sk-123456");
        assert_eq!(format!("{key:?}"), "Secret(..)");
        assert_eq!(key.redact("bad key sk-123456!".to_owned()), "bad key [key]!");
        assert_eq!(Secret::new("a").redact("a b".to_owned()), "a b");
    }
}
