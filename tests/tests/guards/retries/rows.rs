//! The branches as a table: when each is taken, what is done, and what a batch needs beside its rehearsal to show it.

use model::guard::retry::ThinkingLevel;
use model::input::Hook;

/// One branch.
pub(crate) struct Row {
    /// Its name.
    pub(crate) branch: &'static str,
    /// Its condition, for a person.
    pub(crate) when: &'static str,
    /// What is done, for a person.
    pub(crate) then: &'static str,
    /// What a batch needs beside the rehearsal, for a person; empty for nothing.
    pub(crate) needs: &'static str,
    /// The same for the test.
    pub(crate) setup: Setup,
}

/// What a batch needs beside a rehearsal.
pub(crate) struct Setup {
    pub(crate) hook: Option<Hook>,
    pub(crate) summary: Option<Result<&'static str, &'static str>>,
    pub(crate) fallback: &'static [&'static str],
    /// Profiles of the model, each with a command that prints its key.
    pub(crate) profiles: u8,
    pub(crate) context_window: Option<u64>,
    pub(crate) thinking: Option<ThinkingLevel>,
}

const PLAIN: Setup =
    Setup { hook: None, summary: None, fallback: &[], profiles: 0, context_window: None, thinking: None };
const SUMMARISED: Setup = Setup { summary: Some(Ok("it was about this")), ..PLAIN };

const fn row(branch: &'static str, when: &'static str, then: &'static str) -> Row {
    Row { branch, when, then, needs: "", setup: PLAIN }
}

impl Row {
    const fn with(self, needs: &'static str, setup: Setup) -> Self {
        Self { branch: self.branch, when: self.when, then: self.then, needs, setup }
    }
}

/// Every branch, in the order in which they are looked at.
pub(crate) const ROWS: &[Row] = &[
    row("hook_block", "the hook `before_agent_run` refuses the run, or fails", "ends, blocked")
        .with("a hook `before_agent_run` that blocks", Setup { hook: Some(Hook::BeforeAgentRun), ..PLAIN }),
    row(
        "compaction_loop_persisted",
        "the first 3 outcomes after a compaction are one and the same (tool, arguments, result)",
        "ends, failed; what still runs is cancelled",
    )
    .with("a harness that makes summaries", SUMMARISED),
    row("local_fault", "`script`: the fault is on this side", "ends, failed; never asks anybody else"),
    row(
        "idle_breaker",
        "`idle`, and it is the 5th without progress in a row",
        "as `retry_limit`",
    )
    .with("5 profiles", Setup { profiles: 5, ..PLAIN }),
    row(
        "timeout_compaction",
        "`timeout` or `idle`, more than 65 % of the context window used, fewer than 2 such compactions, summaries can \
         be made",
        "a summary, then the same call; if none can be made, the same call",
    )
    .with(
        "a harness that makes summaries and `context_window = 20`",
        Setup { context_window: Some(20), ..SUMMARISED },
    ),
    row(
        "request_too_large",
        "`rate_limit` or `context_overflow` whose words say that the request alone is larger than the tokens of a minute",
        "ends, blocked",
    ),
    row(
        "overflow_compaction",
        "`context_overflow`, fewer than 3 such compactions, summaries can be made",
        "a summary, then the same call",
    )
    .with("a harness that makes summaries", SUMMARISED),
    row(
        "overflow_truncation",
        "`context_overflow`, or no summary could be made; a tool result in the context has more than 16 KiB; not tried \
         before",
        "the same call, with the middle of such results left out of this and every later request",
    )
    .with("a file `large.txt` of 40 KB in the workspace", PLAIN),
    row("compaction_failure", "`context_overflow`, and no summary could be made", "ends, blocked")
        .with("a harness whose summaries fail", Setup { summary: Some(Err("no words")), ..PLAIN }),
    row("context_overflow", "`context_overflow`", "ends, blocked"),
    row(
        "auth_refresh",
        "`auth`, the key can be fetched anew, and it was not fetched anew for this call",
        "the same call with the key fetched anew; the profile stays",
    )
    .with("a profile with `api_key_cmd`", Setup { profiles: 1, ..PLAIN }),
    row("role_ordering", "`role_ordering`", "ends, blocked"),
    row("image_size", "`image_size`", "ends, blocked"),
    row("format", "`format`: the request is wrong, and would be anywhere", "ends, failed"),
    row(
        "thinking_fallback",
        "`thinking_unsupported`, and a lower level was not tried with this profile",
        "the same call with the next lower level",
    )
    .with("`thinking = \"high\"`", Setup { thinking: Some(ThinkingLevel::High), ..PLAIN }),
    row(
        "passing_retry",
        "`connection`, `server_error`, `overloaded` or `timeout`, fewer than 3 in a row waited for",
        "the same call after 2, 4, 8 s",
    ),
    row(
        "transport_drop",
        "`connection` after a settled call batch, nothing visible arrived, fewer than 2 such",
        "the same call at once: it goes on from the committed results",
    ),
    row(
        "silent_retry",
        "`silent` or unclassified, nothing visible arrived, no side effects in the run, fewer than 3 such",
        "the same call at once",
    ),
    row("silent_failover", "`silent` or unclassified, the 3 retries made, another model is named", "the next model")
        .with("`fallback = [\"spare\"]`", Setup { fallback: &["spare"], ..PLAIN }),
    row(
        "same_model_rate_limit",
        "`rate_limit` that is soon over, no profile was changed for one, fewer than 3 in a row waited for",
        "the same call after 10, 20, 30 s, or what the provider asks for, at most 60 s",
    ),
    row(
        "profile_rotation",
        "a failure that another key may mend, and another profile is not cooling down; not for a connection that broke \
         before the first byte, nor for `tls_certificate`; with another model named, once for `rate_limit` and once for \
         `overloaded`",
        "the same call with the next profile; the thinking level asked for first",
    )
    .with("2 profiles", Setup { profiles: 2, ..PLAIN }),
    row("same_model_idle", "`idle`, nothing visible arrived, no other model is named, not done before", "the same call"),
    row(
        "model_fallback",
        "a failure that another model may mend, and one is named",
        "the next model; all counters but the charges start anew",
    )
    .with("`fallback = [\"spare\"]`", Setup { fallback: &["spare"], ..PLAIN }),
    row(
        "overload_chain",
        "`overloaded`, nothing visible arrived, no further model is named, none was given up for another reason, fewer \
         than 10 such",
        "the list of models from its beginning, after 2.5 s, doubling to 30 s",
    ),
    row(
        "reasoning_only",
        "`reasoning_only`, no side effects in the run, no error among the last results, fewer than 2 such",
        "the same call, told to give the visible answer",
    ),
    row("missing", "`missing`, not done before", "the same call"),
    row(
        "empty",
        "`empty`, no side effects in the run, no error among the last results, not done before",
        "the same call, told to give the visible answer",
    ),
    row(
        "compaction_continuation",
        "no answer that can be read, a summary made since the last one, no side effects in the run, no error among the \
         last results, not done before",
        "the same call, told to go on from the summary",
    )
    .with("a harness that makes summaries", SUMMARISED),
    row(
        "incomplete_turn",
        "no answer that can be read, or `silent` or unclassified with nothing visible",
        "ends, failed; after side effects the words say to verify what was done",
    ),
    row("surfaced", "any other failure", "ends, blocked"),
    row("finalize_revision", "the hook `before_finalize` asks for one, fewer than 3 were made", "one more turn")
        .with("a hook `before_finalize` that asks for more", Setup { hook: Some(Hook::BeforeFinalize), ..PLAIN }),
    row("success", "the answer can be used", "the run goes on"),
    row(
        "retry_limit",
        "a retry was decided, and no charge is left",
        "the next model, unless the newest reason to ask elsewhere is none, `timeout`, `format` or `session_expired`; \
         else ends, blocked",
    ),
];
