//! Money: US dollars, kept as whole micro-dollars.
//!
//! Owns the exact conversion between decimal text and micro-dollars. It must never pass through a float.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MICROS: u64 = 1_000_000;
const DECIMALS: usize = 6;

/// An amount of US dollars, never negative. Text form and JSON form: a decimal with up to six places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Usd {
    micros: u64,
}

impl Usd {
    /// An amount given in micro-dollars.
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros }
    }

    /// The amount in micro-dollars.
    pub const fn micros(self) -> u64 {
        self.micros
    }
}

impl FromStr for Usd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected dollars with at most {DECIMALS} decimals, like 2.50, got {text}");
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
        let fraction = match fraction.trim_end_matches('0') {
            "" if !fraction.is_empty() => "0",
            significant => significant,
        };
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || fraction.len() > DECIMALS {
            return Err(expected());
        }
        let dollars: u64 = whole.parse().map_err(|_| expected())?;
        let micros: u64 = format!("{fraction:0<DECIMALS$}").parse().map_err(|_| expected())?;
        let total = dollars.checked_mul(MICROS).and_then(|whole| whole.checked_add(micros));
        total.map(Self::from_micros).ok_or_else(expected)
    }
}

impl TryFrom<String> for Usd {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Usd> for String {
    fn from(usd: Usd) -> Self {
        usd.to_string()
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0DECIMALS$}", self.micros % MICROS);
        let fraction = digits.trim_end_matches('0');
        let dollars = self.micros / MICROS;
        if fraction.is_empty() { write!(f, "{dollars}") } else { write!(f, "{dollars}.{fraction}") }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimal_text_is_read_exactly() {
        let cases = [
            ("0", Some(0)),
            ("0.0", Some(0)),
            ("2.5", Some(2_500_000)),
            ("+2.50", Some(2_500_000)),
            ("0.1", Some(100_000)),
            ("0.000001", Some(1)),
            ("0.00000100", Some(1)),
            ("18446744073709.551615", Some(u64::MAX)),
            ("18446744073709.551616", None),
            ("99999999999999999999", None),
            ("0.0000001", None),
            ("-1", None),
            ("-0.0", None),
            ("1e3", None),
            ("inf", None),
            ("nan", None),
            ("1.", None),
            (".5", None),
            ("", None),
            ("1.2.3", None),
        ];
        for (text, micros) in cases {
            assert_eq!(text.parse::<Usd>().ok().map(Usd::micros), micros, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(micros: u64) {
            let usd = Usd::from_micros(micros);
            prop_assert_eq!(usd.to_string().parse(), Ok(usd));
        }
    }
}
