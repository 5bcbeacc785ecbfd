//! What a refused request means.
//!
//! Owns the table from a status and words to a kind of failure. Pure: it never asks a clock or a connection,
//! and what follows from a kind is not its business.

use model::Millis;
use model::input::FailureKind;
use serde_json::Value;

use super::fault::{Fault, beginning};
use super::fields::text;
use super::http::Headers;
use super::retry_after::retry_after_ms;

/// What a refused request means: by its status, refined by the body.
pub(super) fn reply(status: u16, headers: &Headers, body: &[u8], now: Millis) -> Fault {
    let whole = String::from_utf8_lossy(body);
    let json: Value = serde_json::from_str(&whole).unwrap_or(Value::Null);
    let said = Said::of(&json, &whole);
    let kind = of_status(status, &said);
    let status = match headers.request_id() {
        Some(id) => format!("HTTP status {status}, request {id}"),
        None => format!("HTTP status {status}"),
    };
    let words = match said.message.is_empty() {
        true => status,
        false => format!("{} ({status})", said.message),
    };
    let retry_after_ms = retry_after_ms(headers, &json, beginning(&said.message), now);
    Fault { retry_after_ms, ..Fault::new(kind, words) }
}

/// What an error means that comes in the stream, after a status of 200.
pub(super) fn event(value: &Value) -> Fault {
    let said = Said::of(value, "");
    let status = value["error"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let kind = match by_words(&said) {
        Some(kind) => kind,
        None if said.message.is_empty() => FailureKind::Silent,
        None => {
            status.filter(|code| *code >= 400).map_or(FailureKind::ServerError, |code| of_status(code, &said))
        }
    };
    let words = if said.message.is_empty() { said.codes.clone() } else { said.message.clone() };
    let retry_after_ms =
        retry_after_ms(&Headers::default(), value, beginning(&said.message), Millis::default());
    Fault { retry_after_ms, ..Fault::new(kind, words) }
}

/// What a body says.
struct Said {
    /// Its message for people.
    message: String,
    /// Its types and codes, in small letters.
    codes: String,
    /// Both, in small letters, of the message its beginning.
    all: String,
}

impl Said {
    fn of(json: &Value, whole: &str) -> Self {
        // Some vendors wrap the error in a list.
        let json = json.get(0).unwrap_or(json);
        let error = json.get("error").filter(|error| !error.is_null()).unwrap_or(json);
        let message = [text(error, "message"), error.as_str().unwrap_or_default(), text(json, "message")]
            .into_iter()
            .chain([text(json, "detail"), whole.trim()])
            .find(|message| !message.is_empty())
            .unwrap_or_default();
        let codes = ["type", "code", "status"].map(|key| text(error, key)).join(" ").trim().to_lowercase();
        let all = format!("{codes} {}", beginning(message).to_lowercase());
        Self { message: message.to_owned(), codes, all }
    }

    fn has(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.all.contains(word))
    }
}

const OVERFLOW: &[&str] = &[
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "input is too long",
    "input length and `max_tokens` exceed",
    "maximum context",
    "exceed_context_size",
    "request_too_large",
    "too many tokens in the prompt",
    "input token count",
];
const IMAGE: &[&str] =
    &["image exceeds", "image is too large", "image dimensions", "image size", "image_too_large"];
const ROLES: &[&str] = &["roles must alternate", "role ordering", "incorrect role", "must alternate between"];
const THINKING: &[&str] = &[
    "reasoning_effort",
    "reasoning.effort",
    "does not support thinking",
    "thinking is not supported",
    "adaptive thinking is not supported",
    "unsupported thinking",
    "thinking.type",
    "budget_tokens",
];
const BILLING: &[&str] = &[
    "insufficient_quota",
    "exceeded your current quota",
    "credit balance",
    "billing",
    "payment required",
    "insufficient credits",
    "insufficient balance",
    "spending limit",
];
const RATE: &[&str] = &[
    "rate_limit",
    "rate limit",
    "too many requests",
    "resource_exhausted",
    "resource exhausted",
    "throttl",
    "tokens per minute",
    "requests per minute",
];
const OVERLOADED: &[&str] =
    &["overloaded", "over capacity", "at capacity", "server is busy", "model is busy"];
const PERMANENT: &[&str] = &[
    "account has been deactivated",
    "account_deactivated",
    "deactivated_workspace",
    "organization has been disabled",
    "key has been revoked",
    "api_key_revoked",
    "has been banned",
];
const AUTH: &[&str] = &[
    "authentication_error",
    "invalid_api_key",
    "invalid api key",
    "api key not valid",
    "incorrect api key",
    "invalid x-api-key",
    "permission_error",
    "unauthorized",
    "unauthenticated",
    "permission_denied",
];
const NO_MODEL: &[&str] =
    &["model_not_found", "model not found", "no such model", "does not exist or you do not"];
const SESSION: &[&str] = &["session expired", "session_expired", "session has expired"];
const SERVER: &[&str] = &[
    "server_error",
    "api_error",
    "internal server error",
    "internal error",
    "internal_error",
    "bad gateway",
];
const TIMEOUT: &[&str] = &["timeout_error", "timed out", "deadline exceeded", "etimedout", "econnreset"];
const FORMAT: &[&str] = &["invalid_request_error", "invalid request", "invalid_argument", "validation"];

/// The kind that words alone make certain, the most particular first.
fn by_words(said: &Said) -> Option<FailureKind> {
    let table = [
        (OVERFLOW, FailureKind::ContextOverflow),
        (IMAGE, FailureKind::ImageSize),
        (ROLES, FailureKind::RoleOrdering),
        (THINKING, FailureKind::ThinkingUnsupported),
        (PERMANENT, FailureKind::AuthPermanent),
        (BILLING, FailureKind::Billing),
        (RATE, FailureKind::RateLimit),
        (OVERLOADED, FailureKind::Overloaded),
        (AUTH, FailureKind::Auth),
        (NO_MODEL, FailureKind::ModelNotFound),
        (SESSION, FailureKind::SessionExpired),
        (TIMEOUT, FailureKind::Timeout),
        (SERVER, FailureKind::ServerError),
        (FORMAT, FailureKind::Format),
    ];
    table.into_iter().find(|(words, _)| said.has(words)).map(|(_, kind)| kind)
}

fn of_status(status: u16, said: &Said) -> FailureKind {
    use FailureKind as Kind;
    let if_said = |words: &[&str], kind| said.has(words).then_some(kind);
    let refined = match status {
        400 | 422 if said.all.trim().is_empty() => Some(Kind::Silent),
        400 | 422 => by_words(said).or(Some(Kind::Format)),
        401 | 403 => if_said(PERMANENT, Kind::AuthPermanent)
            .or_else(|| if_said(BILLING, Kind::Billing))
            .or(Some(Kind::Auth)),
        402 => if_said(RATE, Kind::RateLimit).or(Some(Kind::Billing)),
        404 => by_words(said).filter(|kind| *kind != Kind::Format).or(Some(Kind::ModelNotFound)),
        408 => Some(Kind::Timeout),
        410 => if_said(SESSION, Kind::SessionExpired)
            .or_else(|| if_said(BILLING, Kind::Billing))
            .or_else(|| if_said(AUTH, Kind::Auth))
            .or(Some(Kind::Timeout)),
        413 => if_said(IMAGE, Kind::ImageSize).or(Some(Kind::ContextOverflow)),
        429 => if_said(BILLING, Kind::Billing).or(Some(Kind::RateLimit)),
        503 | 499 => if_said(OVERLOADED, Kind::Overloaded).or(Some(Kind::Timeout)),
        529 => Some(Kind::Overloaded),
        // Some servers answer 500 to what they do not accept.
        500 | 502 | 504 => by_words(said).filter(|kind| *kind != Kind::Format).or(Some(Kind::Timeout)),
        300..=399 => Some(Kind::Format),
        _ => None,
    };
    refined.or_else(|| by_words(said)).unwrap_or(match status {
        500.. => Kind::Timeout,
        _ if said.all.trim().is_empty() => Kind::Silent,
        _ => Kind::Unknown,
    })
}
