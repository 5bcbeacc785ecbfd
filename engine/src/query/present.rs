//! How values look in JSON: ids and hashes as digits, times as RFC 3339, money as decimal dollars.
//!
//! Owns the functions that serde is pointed at.

use std::fmt::Display;

use model::Millis;
use serde::Serializer;

use crate::clock::rfc3339;

pub(super) fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn time<S: Serializer>(at: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*at))
}

pub(super) fn time_or_null<S: Serializer>(at: &Option<Millis>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, serializer),
        None => serializer.serialize_none(),
    }
}

/// Micro-dollars as dollars.
pub(super) fn dollars<S: Serializer>(micros: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*micros as f64 / 1e6)
}
