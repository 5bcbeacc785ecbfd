//! Health of profiles: which account can pay for a model call now.
//!
//! Owns the cooldowns of one profile, what starts them and what ends them; [`Roster`] is the choice among the
//! profiles of a model. It must never see a key, nor decide whether a call is made again: that is the retry
//! guard's.

mod roster;
#[cfg(test)]
mod tests;

pub use roster::{Choice, Place, Roster};

use serde::{Deserialize, Serialize};

use crate::ids::{Label, Millis};
use crate::input::{Failure, FailureKind};

/// Models for which one profile keeps a cooldown of their own; the one that ends first makes room for one more.
pub const MODELS_MAX: usize = 8;
/// Profiles that a model may have.
pub const PROFILES_MAX: usize = 32;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// Cooldown after the first, the second and every further ordinary failure.
const ORDINARY_MS: [u64; 3] = [30 * SECOND_MS, 60 * SECOND_MS, 5 * MINUTE_MS];
/// First and longest time for which a profile that cannot pay is disabled; it doubles.
const BILLING_MS: [u64; 2] = [5 * HOUR_MS, 24 * HOUR_MS];
/// First and longest time for which a profile whose key was refused for good is disabled; it doubles.
const AUTH_PERMANENT_MS: [u64; 2] = [10 * MINUTE_MS, 60 * MINUTE_MS];
/// A failure counts for so long.
const FAILURE_WINDOW_MS: u64 = 24 * HOUR_MS;
/// A provider that asks to wait longer than this speaks of the account's limit and not of the moment.
const SHORT_WAIT_MS: u64 = 60 * SECOND_MS;
/// Longest time for which a provider's own word blocks a profile: limits are counted by the week at most.
const BLOCKED_MS_MAX: u64 = 7 * 24 * HOUR_MS;

/// A profile and its health, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Its name.
    pub name: Label,
    /// Its health.
    pub health: Health,
}

/// What is remembered of one profile's failures; the default is a profile with none. It is bounded: at most
/// [`MODELS_MAX`] models have an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Failures of every kind that marks.
    pub errors: u8,
    /// Times that the account could not pay.
    pub billing: u8,
    /// Times that the key was refused for good.
    pub auth_permanent: u8,
    /// When it was marked last.
    pub failed_at: Option<Millis>,
    /// When it was asked last although it cooled down.
    pub probed_at: Option<Millis>,
    /// Cooldown after an ordinary failure, for every model.
    pub ordinary: Option<Cooling>,
    /// Disabled: it cannot pay, or its key was refused for good.
    pub disabled: Option<Cooling>,
    /// Blocked by the provider's own word.
    pub blocked: Option<Cooling>,
    /// Cooldowns of single models.
    pub models: Vec<ModelCooling>,
}

/// A cooldown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooling {
    /// The failure that started it.
    pub reason: FailureKind,
    /// It is over at this time.
    pub until: Millis,
}

/// A cooldown of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCooling {
    /// The model.
    pub model: Label,
    /// The cooldown.
    pub cooling: Cooling,
}

/// What a failure says of the profile that paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Nothing: the call, the model or the provider is to blame.
    None,
    /// It cools down, for the model that was asked.
    OneModel,
    /// It cools down, for every model.
    EveryModel,
    /// It cannot pay.
    Billing,
    /// Its key is refused for good.
    AuthPermanent,
}

/// The kinds that mark a profile. Of several at once the first one is told.
const PRECEDENCE: [FailureKind; 11] = [
    FailureKind::AuthPermanent,
    FailureKind::Auth,
    FailureKind::SessionExpired,
    FailureKind::Billing,
    FailureKind::ModelNotFound,
    FailureKind::Timeout,
    FailureKind::Idle,
    FailureKind::Connection,
    FailureKind::RateLimit,
    FailureKind::Silent,
    FailureKind::Unknown,
];

impl Cooling {
    fn is_active(&self, at: Millis) -> bool {
        at < self.until
    }
}

impl Health {
    /// Notes a failure of a call that this profile paid for; false if it says nothing of the profile. `had_started`:
    /// the provider had begun to answer.
    pub fn mark(&mut self, failure: &Failure, had_started: bool, at: Millis, model: &Label) -> bool {
        let reason = failure.kind;
        let weight = weight(reason, had_started);
        if weight == Weight::None {
            return false;
        }
        self.forget_ended(at);
        self.failed_at = Some(at);
        self.errors = self.errors.saturating_add(1);
        let wait_ms = failure.retry_after_ms.filter(|wait_ms| *wait_ms > SHORT_WAIT_MS);
        match (weight, wait_ms) {
            (Weight::None, _) => {}
            (Weight::OneModel, Some(wait_ms)) if reason == FailureKind::RateLimit => {
                begin(&mut self.blocked, reason, at.plus(wait_ms.min(BLOCKED_MS_MAX)));
            }
            (Weight::OneModel, _) => self.cool_model(model, reason, at),
            (Weight::EveryModel, _) => begin(&mut self.ordinary, reason, at.plus(ordinary_ms(self.errors))),
            (Weight::Billing, _) => {
                self.billing = self.billing.saturating_add(1);
                begin(&mut self.disabled, reason, at.plus(doubled_ms(BILLING_MS, self.billing)));
            }
            (Weight::AuthPermanent, _) => {
                self.auth_permanent = self.auth_permanent.saturating_add(1);
                let ms = doubled_ms(AUTH_PERMANENT_MS, self.auth_permanent);
                begin(&mut self.disabled, reason, at.plus(ms));
            }
        }
        true
    }

    /// Notes an answer that this profile paid for; false if nothing was to be cleared. An answer speaks for the
    /// account and for its own model: another model's cooldown holds on.
    pub fn mark_good(&mut self, at: Millis, model: &Label) -> bool {
        let mut models = self.models.clone();
        models.retain(|other| other.model != *model && other.cooling.is_active(at));
        let failed_at = self.failed_at.filter(|_| !models.is_empty());
        let good = Self { models, failed_at, ..Self::default() };
        let is_changed = *self != good;
        *self = good;
        is_changed
    }

    /// Notes that it is asked although it cools down.
    pub fn mark_probed(&mut self, at: Millis) {
        self.probed_at = Some(at);
    }

    /// The cooldown that keeps it from paying for a model: the first reason by precedence, and the time at which the
    /// last of its cooldowns is over. None: it can be used.
    pub fn cooling(&self, at: Millis, model: &Label) -> Option<Cooling> {
        let of_model = self.models.iter().filter(|entry| entry.model == *model).map(|entry| entry.cooling);
        [self.ordinary, self.disabled, self.blocked]
            .into_iter()
            .flatten()
            .chain(of_model)
            .filter(|cooling| cooling.is_active(at))
            .reduce(|a, b| Cooling { reason: first_reason(a.reason, b.reason), until: a.until.max(b.until) })
    }

    /// It can pay for a model.
    pub fn is_usable(&self, at: Millis, model: &Label) -> bool {
        self.cooling(at, model).is_none()
    }

    /// Milliseconds since it was marked, or asked although it cooled down.
    fn quiet_ms(&self, at: Millis) -> u64 {
        self.failed_at.max(self.probed_at).map_or(u64::MAX, |newest| at.since(newest))
    }

    fn cool_model(&mut self, model: &Label, reason: FailureKind, at: Millis) {
        if self.models.iter().any(|entry| entry.model == *model) {
            return;
        }
        if self.models.len() >= MODELS_MAX
            && let Some((first, _)) =
                self.models.iter().enumerate().min_by_key(|(_, entry)| entry.cooling.until)
        {
            self.models.remove(first);
        }
        let cooling = Cooling { reason, until: at.plus(ordinary_ms(self.errors)) };
        self.models.push(ModelCooling { model: model.clone(), cooling });
    }

    /// Cooldowns that are over go. With the last of them, or when the newest failure is too old, the counters start
    /// again.
    fn forget_ended(&mut self, at: Millis) {
        for cooling in [&mut self.ordinary, &mut self.disabled, &mut self.blocked] {
            *cooling = cooling.filter(|cooling| cooling.is_active(at));
        }
        self.models.retain(|entry| entry.cooling.is_active(at));
        let is_cooling =
            self.ordinary.or(self.disabled).or(self.blocked).is_some() || !self.models.is_empty();
        let is_old = self.failed_at.is_some_and(|failed_at| at.since(failed_at) > FAILURE_WINDOW_MS);
        if is_old || !is_cooling {
            (self.errors, self.billing, self.auth_permanent) = (0, 0, 0);
        }
    }
}

/// Starts a cooldown. One that is active is never extended.
fn begin(slot: &mut Option<Cooling>, reason: FailureKind, until: Millis) {
    slot.get_or_insert(Cooling { reason, until });
}

/// The cooldown after so many failures.
fn ordinary_ms(errors: u8) -> u64 {
    let [first, second, further] = ORDINARY_MS;
    match errors {
        0 | 1 => first,
        2 => second,
        3.. => further,
    }
}

/// `first`, doubled with every further failure, at most `longest`.
fn doubled_ms([first, longest]: [u64; 2], count: u8) -> u64 {
    let doublings = u32::from(count.saturating_sub(1));
    first.saturating_mul(2u64.saturating_pow(doublings)).min(longest)
}

fn weight(kind: FailureKind, had_started: bool) -> Weight {
    match kind {
        FailureKind::RateLimit => Weight::OneModel,
        // A provider that never began may not have been reached at all.
        FailureKind::Timeout | FailureKind::Idle | FailureKind::Connection => {
            if had_started {
                Weight::OneModel
            } else {
                Weight::None
            }
        }
        FailureKind::Billing => Weight::Billing,
        FailureKind::AuthPermanent => Weight::AuthPermanent,
        FailureKind::Auth
        | FailureKind::SessionExpired
        | FailureKind::ModelNotFound
        | FailureKind::Silent
        | FailureKind::Unknown => Weight::EveryModel,
        FailureKind::Overloaded
        | FailureKind::ServerError
        | FailureKind::TlsCertificate
        | FailureKind::ContextOverflow
        | FailureKind::Format
        | FailureKind::Empty
        | FailureKind::ReasoningOnly
        | FailureKind::Missing
        | FailureKind::RoleOrdering
        | FailureKind::ImageSize
        | FailureKind::ThinkingUnsupported
        | FailureKind::Script => Weight::None,
    }
}

/// The one of two reasons that is told.
fn first_reason(a: FailureKind, b: FailureKind) -> FailureKind {
    let rank = |kind| PRECEDENCE.iter().position(|known| *known == kind).unwrap_or(PRECEDENCE.len());
    if rank(b) < rank(a) { b } else { a }
}
