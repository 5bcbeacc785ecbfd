//! Refusals and what they mean, as a reviewed table.

use std::fmt::Write;

use model::Millis;
use model::message::AssistantMessage;

use super::{assert_reviewed, body, recorded};
use crate::provider::classify::reply;
use crate::provider::http::Headers;

/// Statuses with the bodies that refine them; bodies as the vendors document them, or as servers were seen to
/// send them.
const REFUSALS: &[(u16, &[&str])] = &[
    (302, &[""]),
    (
        400,
        &[
            "",
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: field required"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: roles must alternate between user and assistant"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.0.content.1.image: image exceeds 5 MB maximum"}}"#,
            r#"{"error":{"message":"Unsupported parameter: 'reasoning_effort' is not supported with this model.","type":"invalid_request_error"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#,
            r#"[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]"#,
        ],
    ),
    (
        401,
        &[
            "",
            r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            r#"{"error":{"message":"Your account has been deactivated","code":"account_deactivated"}}"#,
        ],
    ),
    (
        402,
        &[
            r#"{"error":{"message":"Insufficient Balance"}}"#,
            r#"{"error":{"message":"rate limit: too many requests on a free plan"}}"#,
        ],
    ),
    (
        403,
        &[
            r#"{"type":"error","error":{"type":"permission_error","message":"This organization has been disabled."}}"#,
            r#"{"error":{"message":"billing is not active"}}"#,
            "<html>Forbidden</html>",
        ],
    ),
    (
        404,
        &[
            "",
            r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-nope"}}"#,
            r#"{"error":{"message":"session expired"}}"#,
        ],
    ),
    (408, &[""]),
    (410, &["", r#"{"error":{"message":"Session expired"}}"#]),
    (
        413,
        &[
            "",
            r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
        ],
    ),
    (418, &["", "I am a teapot"]),
    (422, &[r#"{"detail":"validation failed"}"#]),
    (
        429,
        &[
            "",
            r#"{"error":{"message":"Rate limit reached for gpt-5, please try again in 20s.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            r#"{"error":{"code":429,"message":"Resource exhausted","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"27s"}]}}"#,
        ],
    ),
    (499, &["", r#"{"error":"overloaded"}"#]),
    (
        500,
        &[
            "",
            r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#,
            r#"{"error":{"code":500,"message":"request (9000 tokens) exceeds the context size","type":"server_error"}}"#,
        ],
    ),
    (502, &["<html>502 Bad Gateway</html>", "proxy says no"]),
    (
        503,
        &[
            "",
            r#"{"error":{"message":"The server is overloaded"}}"#,
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
        ],
    ),
    (504, &["upstream timed out"]),
    (529, &["", r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#]),
];

#[test]
fn every_refusal_has_its_kind() {
    let mut table = String::new();
    for (status, bodies) in REFUSALS {
        for body in *bodies {
            let fault = reply(*status, &Headers::default(), body.as_bytes(), Millis(0));
            let wait = fault.retry_after_ms.map(|wait_ms| format!(" after {wait_ms} ms")).unwrap_or_default();
            writeln!(table, "{status} {body}\n    {}{wait}: {}", fault.kind.name(), fault.words).unwrap();
        }
    }
    assert_reviewed("refusals.txt", &table);
}

#[test]
fn a_recorded_rate_limit_says_how_long_to_wait() {
    let response = recorded("aimock-anthropic-limit");
    let limits = [("retry-after", "1"), ("x-ratelimit-reset-tokens", "6m0s"), ("x-request-id", "req-1")];
    let headers = Headers::of(&limits);
    let fault = reply(429, &headers, &body(&response), Millis(0));
    assert_eq!((fault.kind.name(), fault.retry_after_ms), ("rate_limit", Some(1_000)));
    assert_eq!(fault.words, "Rate limit reached, try again in 2s (HTTP status 429, request req-1)");
}

#[test]
fn words_are_cut_and_bytes_that_are_no_text_do_no_harm() {
    let long = [b"{\"error\":\"".as_slice(), &vec![b'x'; 9_000], b"\"}"].concat();
    let failure = reply(400, &Headers::default(), &long, Millis(0)).into_failure(AssistantMessage::default());
    let words = failure.partial.unwrap().error_message.unwrap();
    assert_eq!(words, format!("{}…", "x".repeat(2_048)));
    let fault = reply(500, &Headers::default(), b"\xff\xfe\x00", Millis(0));
    assert_eq!(fault.words, "\u{fffd}\u{fffd}\0 (HTTP status 500)");
}
