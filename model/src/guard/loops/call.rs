//! What loop detection knows of a call before it runs: two hashes and a kind. Names and arguments stay
//! outside.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::canon::{Canon, Form};
use super::hash::{ActionKey, ToolHash};

/// What a tool declares about itself, as far as detection treats its calls or results in a way of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ToolKind {
    /// Nothing special: the answer's texts and details are its result.
    #[default]
    Plain,
    /// Runs commands and reports their status, exit code and output.
    Exec,
    /// Writes a file and says whether that changed it.
    Write,
    /// Looks after running processes; `poll` and `log` only look.
    Process,
    /// Asks how a command is doing, whatever the arguments.
    CommandStatus,
    /// Sends a message, whatever the arguments.
    Send,
    /// Sends a message if its `action` says so.
    Message,
}

/// What a call is, once its arguments are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CallKind {
    /// Anything else.
    Plain,
    /// Runs a command.
    Exec,
    /// Writes a file.
    Write,
    /// Looks at something that is still going on: repeating it is no loop as long as the answer changes.
    Poll(PollKind),
    /// Sends a message, so ids and times in its result are new each time.
    Send,
}

/// What a poll looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PollKind {
    /// A process's state.
    Poll,
    /// A process's output.
    Log,
    /// A command's status.
    CommandStatus,
}

/// A call as the window keeps and compares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallFacts {
    /// The tool.
    pub tool: ToolHash,
    /// The tool and its arguments: equal for calls that ask for the same.
    pub key: ActionKey,
    /// What kind of call it is.
    pub kind: CallKind,
}

/// The facts of a call of `tool`, which declares `kind`, with the arguments `args`.
pub fn call_facts(tool: &str, args: &Value, kind: ToolKind) -> CallFacts {
    let mut canon = Canon::new(Form::Exact);
    canon.text(tool);
    canon.value(args);
    CallFacts {
        tool: ToolHash::of(tool),
        key: ActionKey::of_hasher(canon.hasher()),
        kind: kind.of_call(args),
    }
}

impl ToolKind {
    /// The kind of the reference's tool called `name`; the caller has resolved aliases.
    pub fn of_reference_name(name: &str) -> Self {
        match name {
            "exec" => Self::Exec,
            "write" => Self::Write,
            "process" => Self::Process,
            "command_status" => Self::CommandStatus,
            "sessions_send" | "conversations_send" | "conversations_turn" => Self::Send,
            "message" => Self::Message,
            // Names are open: any other tool is one of no kind.
            _ => Self::Plain,
        }
    }

    fn of_call(self, args: &Value) -> CallKind {
        let action = args.get("action").and_then(Value::as_str);
        match self {
            Self::Plain => CallKind::Plain,
            Self::Exec => CallKind::Exec,
            Self::Write => CallKind::Write,
            Self::CommandStatus => CallKind::Poll(PollKind::CommandStatus),
            Self::Process => match action {
                Some("poll") => CallKind::Poll(PollKind::Poll),
                Some("log") => CallKind::Poll(PollKind::Log),
                Some(_) | None => CallKind::Plain,
            },
            Self::Send => CallKind::Send,
            Self::Message => match action {
                Some("send" | "broadcast" | "reply" | "thread-reply" | "sendWithEffect") => CallKind::Send,
                Some("sendAttachment" | "upload-file" | "sticker" | "poll") => CallKind::Send,
                Some(_) | None => CallKind::Plain,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(tool: &str, args: &Value) -> CallKind {
        call_facts(tool, args, ToolKind::of_reference_name(tool)).kind
    }

    #[test]
    fn polls_are_named_by_tool_and_exact_action() {
        assert_eq!(kind("command_status", &json!(null)), CallKind::Poll(PollKind::CommandStatus));
        assert_eq!(kind("process", &json!({"action": "poll"})), CallKind::Poll(PollKind::Poll));
        assert_eq!(kind("process", &json!({"action": "log"})), CallKind::Poll(PollKind::Log));
        for args in [
            json!({"action": "Poll"}),
            json!({"action": " poll"}),
            json!({"action": "kill"}),
            json!(["poll"]),
        ] {
            assert_eq!(kind("process", &args), CallKind::Plain);
        }
        assert_eq!(kind("Process", &json!({"action": "poll"})), CallKind::Plain);
    }

    #[test]
    fn sends_are_named_by_tool_and_exact_action() {
        for tool in ["sessions_send", "conversations_send", "conversations_turn"] {
            assert_eq!(kind(tool, &json!({})), CallKind::Send);
        }
        for action in [
            "send",
            "broadcast",
            "reply",
            "thread-reply",
            "sendWithEffect",
            "sendAttachment",
            "upload-file",
            "sticker",
            "poll",
        ] {
            assert_eq!(kind("message", &json!({"action": action})), CallKind::Send);
            assert_eq!(kind("notify", &json!({"action": action})), CallKind::Plain);
        }
        for action in ["read", "Send", "sendwitheffect", "uploadFile", ""] {
            assert_eq!(kind("message", &json!({"action": action})), CallKind::Plain);
        }
        assert_eq!(kind("message", &json!({})), CallKind::Plain);
    }

    #[test]
    fn exec_and_write_go_by_literal_name() {
        assert_eq!(kind("exec", &json!({})), CallKind::Exec);
        assert_eq!(kind("write", &json!({})), CallKind::Write);
        assert_eq!(kind("bash", &json!({})), CallKind::Plain);
        assert_eq!(kind("read", &json!({"action": "poll"})), CallKind::Plain);
    }

    #[test]
    fn a_key_is_the_tool_and_its_arguments() {
        let key = |tool: &str, args: Value| call_facts(tool, &args, ToolKind::Plain).key;
        assert_eq!(key("read", json!({"a": 1, "b": 2})), key("read", json!({"b": 2.0, "a": 1})));
        assert_ne!(key("read", json!({})), key("grep", json!({})));
        assert_ne!(key("read", json!({})), key("read", json!(null)));
        assert_ne!(key("read", json!({"a": null})), key("read", json!({})));
    }
}
