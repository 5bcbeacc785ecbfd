//! The profiles of one model at one moment: which is asked, and which comes next.
//!
//! Owns the order among profiles and the rules by which one that cools down is asked all the same. It must never change
//! a profile's health.

use super::{Cooling, Health, MINUTE_MS, SECOND_MS, first_reason};
use crate::ids::{Label, Millis};
use crate::input::FailureKind;

/// After so long without a failure or a probe, a profile that cools down is asked once: half-open.
const HALF_OPEN_MS: u64 = 45 * MINUTE_MS;
/// Shortest time between a failure or a probe and the next probe of the same profile, for all runs together.
const PROBE_PAUSE_MS: u64 = 30 * SECOND_MS;
/// A limit that passes is probed only so shortly before it is over.
const PROBE_MARGIN_MS: u64 = 2 * MINUTE_MS;

/// The profiles of one model at one moment, each known by its position in the model's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// Their healths, in the order of the list.
    pub healths: Vec<Health>,
    /// The one that the session uses; it stands before the list. Without a session's: 0.
    pub first: u8,
    /// The model.
    pub model: Label,
    /// The moment.
    pub at: Millis,
}

/// Where a model stands among those that may be asked for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// It is the one that was asked for.
    pub is_requested: bool,
    /// No other follows it.
    pub is_last: bool,
}

/// Who pays for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This profile, which can be used.
    Use(u8),
    /// This profile, although it cools down.
    Probe(u8),
    /// None: all cool down. The first reason by precedence, and the time at which the first can be used again.
    Wait(Cooling),
}

impl Roster {
    /// Who pays for a call: the preferred profile if it can, or else the first of the order that can or may be probed.
    pub fn choose(&self, preferred: u8, place: Place) -> Choice {
        if self.health(preferred).is_some_and(|health| health.is_usable(self.at, &self.model)) {
            return Choice::Use(preferred);
        }
        let mut all: Option<Cooling> = None;
        let mut probe = None;
        for position in self.order() {
            let Some(cooling) = self.cooling(position) else { return Choice::Use(position) };
            let others = all.unwrap_or(cooling);
            all = Some(Cooling {
                reason: first_reason(others.reason, cooling.reason),
                until: others.until.min(cooling.until),
            });
            if probe.is_none() && self.may_probe(position, cooling, place) {
                probe = Some(position);
            }
        }
        match (probe, all) {
            (Some(position), _) => Choice::Probe(position),
            (None, Some(cooling)) => Choice::Wait(cooling),
            // A model without profiles has nobody to wait for.
            (None, None) => Choice::Use(0),
        }
    }

    /// The next profile after `current` that can be used. A run goes through its order once.
    pub fn next(&self, current: u8) -> Option<u8> {
        let after = self.listed().skip_while(|position| *position != current).skip(1);
        after.into_iter().find(|position| self.cooling(*position).is_none())
    }

    /// Every profile: those that can be used in the run's order, then those that cool down, the shortest first.
    pub fn order(&self) -> Vec<u8> {
        let mut order: Vec<u8> = self.listed().collect();
        order.sort_by_key(|position| self.cooling(*position).map(|cooling| cooling.until));
        order
    }

    /// The run's order: the session's profile, then the list.
    fn listed(&self) -> impl Iterator<Item = u8> {
        let count = u8::try_from(self.healths.len()).unwrap_or(u8::MAX);
        let first = self.first.min(count.saturating_sub(1));
        (first..count).take(1).chain((0..count).filter(move |position| *position != first))
    }

    fn health(&self, position: u8) -> Option<&Health> {
        self.healths.get(usize::from(position))
    }

    fn cooling(&self, position: u8) -> Option<Cooling> {
        self.health(position)?.cooling(self.at, &self.model)
    }

    /// A profile that cools down may be asked all the same: it may be well again before its time.
    fn may_probe(&self, position: u8, cooling: Cooling, place: Place) -> bool {
        let quiet_ms = self.health(position).map_or(0, |health| health.quiet_ms(self.at));
        if quiet_ms >= HALF_OPEN_MS {
            return true;
        }
        let is_rested = quiet_ms >= PROBE_PAUSE_MS;
        let is_nearly_over = cooling.until.since(self.at) <= PROBE_MARGIN_MS;
        match cooling.reason {
            FailureKind::Auth | FailureKind::AuthPermanent | FailureKind::SessionExpired => false,
            FailureKind::Billing => place.is_requested && is_rested,
            FailureKind::RateLimit => is_rested && is_nearly_over,
            FailureKind::Overloaded
            | FailureKind::ServerError
            | FailureKind::Timeout
            | FailureKind::Idle
            | FailureKind::Connection
            | FailureKind::ModelNotFound
            | FailureKind::Format
            | FailureKind::ContextOverflow
            | FailureKind::Empty
            | FailureKind::ReasoningOnly
            | FailureKind::Missing
            | FailureKind::Silent
            | FailureKind::RoleOrdering
            | FailureKind::ImageSize
            | FailureKind::ThinkingUnsupported
            | FailureKind::TlsCertificate
            | FailureKind::Script
            // One run's trouble does not stop the others when there is nothing else to ask.
            | FailureKind::Unknown => place.is_last || (is_rested && is_nearly_over),
        }
    }
}
