//! Whether a failed call is answered by another profile, another model, or nobody.
//!
//! Owns the reasons and the decision function of failover. It must never know which profile or model comes
//! next: that is asked of the engine at the moment of the failure.

use serde::{Deserialize, Serialize};

use crate::input::FailureKind;

/// Why another profile or model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailoverReason {
    /// The key was refused.
    Auth,
    /// The key was refused for good.
    AuthPermanent,
    /// The account cannot pay.
    Billing,
    /// Too many requests.
    RateLimit,
    /// The provider is overloaded.
    Overloaded,
    /// The call took too long, or its connection broke.
    Timeout,
    /// The provider failed.
    ServerError,
    /// The request was not accepted as it is.
    Format,
    /// No such model.
    ModelNotFound,
    /// The provider's session has ended.
    SessionExpired,
    /// The certificate was not accepted.
    TlsCertificate,
    /// The request is larger than the model's context.
    ContextOverflow,
    /// An answer with nothing visible in it.
    EmptyResponse,
    /// An error without details.
    NoErrorDetails,
    /// An error that fits nothing.
    Unclassified,
    /// Nothing is known.
    Unknown,
}

impl FailoverReason {
    /// Every reason, in declaration order.
    pub const ALL: [Self; 16] = [
        Self::Auth,
        Self::AuthPermanent,
        Self::Billing,
        Self::RateLimit,
        Self::Overloaded,
        Self::Timeout,
        Self::ServerError,
        Self::Format,
        Self::ModelNotFound,
        Self::SessionExpired,
        Self::TlsCertificate,
        Self::ContextOverflow,
        Self::EmptyResponse,
        Self::NoErrorDetails,
        Self::Unclassified,
        Self::Unknown,
    ];

    /// The reason of a kind of failure; none for what no other profile or model would do better.
    pub fn of(kind: FailureKind) -> Option<Self> {
        match kind {
            FailureKind::RateLimit => Some(Self::RateLimit),
            FailureKind::Overloaded => Some(Self::Overloaded),
            FailureKind::ServerError => Some(Self::ServerError),
            FailureKind::Timeout | FailureKind::Idle | FailureKind::Connection => Some(Self::Timeout),
            FailureKind::Auth => Some(Self::Auth),
            FailureKind::AuthPermanent => Some(Self::AuthPermanent),
            FailureKind::Billing => Some(Self::Billing),
            FailureKind::ModelNotFound => Some(Self::ModelNotFound),
            FailureKind::Format => Some(Self::Format),
            FailureKind::ContextOverflow => Some(Self::ContextOverflow),
            FailureKind::Empty | FailureKind::ReasoningOnly => Some(Self::EmptyResponse),
            FailureKind::Silent => Some(Self::NoErrorDetails),
            FailureKind::SessionExpired => Some(Self::SessionExpired),
            FailureKind::TlsCertificate => Some(Self::TlsCertificate),
            FailureKind::Unknown => Some(Self::Unclassified),
            FailureKind::Missing
            | FailureKind::RoleOrdering
            | FailureKind::ImageSize
            | FailureKind::ThinkingUnsupported
            | FailureKind::Script => None,
        }
    }

    /// The HTTP status that stands for the reason in the reference's errors.
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Auth => Some(401),
            Self::AuthPermanent => Some(403),
            Self::Billing => Some(402),
            Self::RateLimit => Some(429),
            Self::Overloaded => Some(503),
            Self::Timeout => Some(408),
            Self::ServerError => Some(500),
            Self::Format => Some(400),
            Self::ModelNotFound => Some(404),
            Self::SessionExpired => Some(410),
            Self::TlsCertificate => Some(502),
            Self::ContextOverflow => Some(413),
            Self::EmptyResponse | Self::NoErrorDetails | Self::Unclassified | Self::Unknown => None,
        }
    }

    /// The name used in records and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::AuthPermanent => "auth_permanent",
            Self::Billing => "billing",
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::Timeout => "timeout",
            Self::ServerError => "server_error",
            Self::Format => "format",
            Self::ModelNotFound => "model_not_found",
            Self::SessionExpired => "session_expired",
            Self::TlsCertificate => "tls_certificate",
            Self::ContextOverflow => "context_overflow",
            Self::EmptyResponse => "empty_response",
            Self::NoErrorDetails => "no_error_details",
            Self::Unclassified => "unclassified",
            Self::Unknown => "unknown",
        }
    }

    /// Another profile or model may do better. An overflow is the context's fault, and what has no status is
    /// no error of the provider.
    fn is_failover_class(self) -> bool {
        self.status().is_some() && self != Self::ContextOverflow
    }
}

/// Where a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No retry is left.
    RetryLimit,
    /// The request could not be handed over.
    Prompt,
    /// The answer ended in an error.
    Assistant,
}

/// What is known of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Why it failed.
    pub reason: Option<FailoverReason>,
    /// Another model is named.
    pub has_fallback: bool,
    /// Another profile was looked for, in vain.
    pub is_rotated: bool,
}

/// What the decision function answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another profile of the same model.
    RotateProfile,
    /// Another model.
    FallbackModel(FailoverReason),
    /// Nobody: the error stands.
    Surface,
    /// It is not for failover to say.
    Continue,
}

/// The decision function of failover.
pub fn verdict(stage: Stage, suspect: Suspect) -> Verdict {
    let Suspect { reason, has_fallback, is_rotated } = suspect;
    let is_failover = reason.is_some_and(FailoverReason::is_failover_class);
    let is_format = reason == Some(FailoverReason::Format);
    let is_tls = reason == Some(FailoverReason::TlsCertificate);
    let is_timeout = reason == Some(FailoverReason::Timeout);
    let fallback = || match has_fallback {
        true => Verdict::FallbackModel(reason.unwrap_or(FailoverReason::Unknown)),
        false => Verdict::Surface,
    };
    match stage {
        Stage::RetryLimit => match reason {
            None | Some(FailoverReason::Format | FailoverReason::SessionExpired) => Verdict::Surface,
            Some(_) if is_timeout => Verdict::Surface,
            Some(_) => fallback(),
        },
        Stage::Prompt if !is_failover || is_format => Verdict::Surface,
        Stage::Prompt if !is_rotated && !is_timeout && !is_tls => Verdict::RotateProfile,
        Stage::Prompt => fallback(),
        Stage::Assistant if is_format => Verdict::Surface,
        Stage::Assistant if is_tls => fallback(),
        Stage::Assistant if !is_failover => Verdict::Continue,
        Stage::Assistant if !is_rotated => Verdict::RotateProfile,
        Stage::Assistant => fallback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_with_a_status_has_the_reference_s() {
        let statuses: Vec<(&str, u16)> =
            FailoverReason::ALL.iter().filter_map(|reason| Some((reason.name(), reason.status()?))).collect();
        let expected = [
            ("auth", 401),
            ("auth_permanent", 403),
            ("billing", 402),
            ("rate_limit", 429),
            ("overloaded", 503),
            ("timeout", 408),
            ("server_error", 500),
            ("format", 400),
            ("model_not_found", 404),
            ("session_expired", 410),
            ("tls_certificate", 502),
            ("context_overflow", 413),
        ];
        assert_eq!(statuses, expected);
    }

    /// The verdicts of a stage over every reason and none, as one word each.
    fn verdicts(stage: Stage, has_fallback: bool, is_rotated: bool) -> String {
        let reasons = FailoverReason::ALL.into_iter().map(Some).chain([None]);
        let word = |reason| match verdict(stage, Suspect { reason, has_fallback, is_rotated }) {
            Verdict::RotateProfile => "rotate",
            Verdict::FallbackModel(_) => "fallback",
            Verdict::Surface => "surface",
            Verdict::Continue => "-",
        };
        reasons.map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_three_stages_decide_as_the_reference() {
        let fallback =
            "fallback fallback fallback fallback fallback fallback fallback surface fallback fallback";
        let rotate = "rotate rotate rotate rotate rotate rotate rotate surface rotate rotate";
        assert_eq!(
            verdicts(Stage::Assistant, true, false),
            format!("{rotate} fallback - - - - - -"),
            "a certificate goes to another model at once"
        );
        assert_eq!(verdicts(Stage::Assistant, true, true), format!("{fallback} fallback - - - - - -"));
        let surface = "surface surface surface surface surface surface surface surface surface surface";
        assert_eq!(verdicts(Stage::Assistant, false, true), format!("{surface} surface - - - - - -"));
        assert_eq!(
            verdicts(Stage::Prompt, true, false),
            "rotate rotate rotate rotate rotate fallback rotate surface rotate rotate fallback surface surface \
             surface surface surface surface"
        );
        assert_eq!(
            verdicts(Stage::RetryLimit, true, false),
            "fallback fallback fallback fallback fallback surface fallback surface fallback surface fallback \
             fallback fallback fallback fallback fallback surface"
        );
        assert_eq!(verdicts(Stage::RetryLimit, false, false), ["surface"; 17].join(" "));
    }
}
