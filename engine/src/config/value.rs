//! One value as written, read as what its key needs.
//!
//! Owns types, ranges and the texts that say what was expected. It must never quote a string it was given,
//! nor read an amount of money through a float.

use std::ops::RangeInclusive;
use std::path::Path;

use chrono::NaiveDate;
use serde::de::DeserializeOwned;
use serde::de::value::{Error as DecodeError, StrDeserializer};
use toml::de::DeValue;

use super::Usd;

/// Ends of addresses that name an endpoint, and what to leave out of them.
const ENDPOINTS: [(&str, &str); 3] = [
    ("/chat/completions", "/chat/completions"),
    ("/v1/messages", "/messages"),
    ("/v1/responses", "/responses"),
];

/// One value as written, and the directory that relative paths in it start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    pub(super) value: &'a DeValue<'a>,
    pub(super) base: &'a Path,
}

impl Given<'_> {
    /// A string that is not empty.
    pub(super) fn text(&self) -> Result<String, String> {
        let text = self.value.as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| self.expected("a non-empty string"))
    }

    /// A list of strings that are not empty.
    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        let expected = || self.expected("a list of strings, like [\"a\", \"b\"]");
        let items = self.value.as_array().ok_or_else(expected)?;
        let each = items.iter().map(|item| Given { value: item.get_ref(), ..*self }.text());
        each.collect::<Result<_, _>>().map_err(|item| format!("in the list: {item}"))
    }

    pub(super) fn boolean(&self) -> Result<bool, String> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    /// A whole number within `range`.
    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let number = self.value.as_integer().and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| match range.into_inner() {
            (least, u64::MAX) => self.expected(&format!("a whole number of at least {least}")),
            (least, most) => self.expected(&format!("a whole number from {least} to {most}")),
        })
    }

    /// A duration in whole seconds.
    pub(super) fn seconds(&self) -> Result<u64, String> {
        self.whole(0..=super::SECONDS_MAX)
    }

    /// An amount of money, from the digits as written.
    pub(super) fn usd(&self) -> Result<Usd, String> {
        let expected = || self.expected("an amount of dollars, like 2.50");
        match self.value {
            DeValue::Float(float) => float.as_str().parse(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse(),
            DeValue::Integer(_) | DeValue::String(_) | DeValue::Boolean(_) => Err(expected()),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => Err(expected()),
        }
    }

    /// One of the names of the variants of `T`.
    pub(super) fn choice<T: DeserializeOwned>(&self) -> Result<T, String> {
        choice(self.value.as_str().unwrap_or_default())
    }

    /// A day, as a TOML date or a string.
    pub(super) fn day(&self) -> Result<NaiveDate, String> {
        let text = self.value.as_datetime().map(ToString::to_string);
        let text = text.as_deref().or_else(|| self.value.as_str());
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.expected("a day, like \"2026-11-01\""))
    }

    /// A path, made absolute.
    pub(super) fn path(&self) -> Result<String, String> {
        let path = self.base.join(self.text()?);
        path.into_os_string()
            .into_string()
            .map_err(|_| "expected a path below a directory named in UTF-8".into())
    }

    /// The name of a variable of the environment.
    pub(super) fn variable(&self) -> Result<String, String> {
        let is_plain = |name: &String| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.starts_with(|first: char| first.is_ascii_digit())
        };
        let expected = "expected the name of a variable that holds the key, like MY_API_KEY";
        self.text().ok().filter(is_plain).ok_or_else(|| expected.into())
    }

    /// An `http` or `https` address without what may hold a key, for it is kept in a run's snapshot: user, password,
    /// query and fragment.
    pub(super) fn address(&self) -> Result<String, String> {
        let text = self.text()?;
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
        match authority.filter(|authority| !authority.is_empty()) {
            Some(authority) if authority.contains('@') => {
                Err("expected an address without user and password: name the key with `api_key_env`".into())
            }
            Some(_) if text.contains(['?', '#']) => {
                Err("expected an address without a query or fragment: name the key with `api_key_env`".into())
            }
            Some(_) => match ENDPOINTS.iter().find(|(end, _)| text.trim_end_matches('/').ends_with(end)) {
                Some((_, name)) => {
                    Err(format!("the endpoint is added to the address: leave out {name} at its end"))
                }
                None => Ok(text),
            },
            None => Err("expected an address that starts with https:// or http://".into()),
        }
    }

    /// `expected ..., got ...`; numbers are quoted, strings never.
    pub(super) fn expected(&self, what: &str) -> String {
        let got = match self.value {
            DeValue::String(text) if text.is_empty() => "an empty string".into(),
            DeValue::String(_) => "a string".into(),
            DeValue::Integer(integer) => integer.to_string(),
            DeValue::Float(float) => float.to_string(),
            DeValue::Boolean(boolean) => boolean.to_string(),
            DeValue::Datetime(_) => "a date".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        };
        format!("expected {what}, got {got}")
    }
}

/// One of the names of the variants of `T`, spelled as serde spells them.
pub(super) fn choice<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let decoded: Result<T, DecodeError> = T::deserialize(StrDeserializer::new(text));
    decoded.map_err(|error| {
        // serde says "unknown variant `...`, expected ...": the second half stands alone.
        let message = error.to_string();
        message.split_once(", ").map_or(message.clone(), |(_, expected)| expected.to_owned())
    })
}
