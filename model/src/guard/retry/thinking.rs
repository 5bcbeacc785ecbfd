//! Thinking levels, in their order.
//!
//! Owns their names. It must never know which model supports which.

use serde::{Deserialize, Serialize};

/// How much a model thinks before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingLevel {
    /// Not at all.
    #[default]
    Off,
    /// Hardly.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as it can.
    XHigh,
}

impl ThinkingLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 6] = [Self::Off, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::XHigh];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
        }
    }

    /// The level of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// The level's bit in a set of levels.
    pub fn bit(self) -> u8 {
        match self {
            Self::Off => 1,
            Self::Minimal => 1 << 1,
            Self::Low => 1 << 2,
            Self::Medium => 1 << 3,
            Self::High => 1 << 4,
            Self::XHigh => 1 << 5,
        }
    }

    /// The next lower level that is not in the set `tried`.
    pub fn next_lower(self, tried: u8) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|level| *level < self && tried & level.bit() == 0)
    }
}

/// A text that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of `off`, `minimal`, `low`, `medium`, `high`, `xhigh`")]
pub struct UnknownLevel;

impl std::str::FromStr for ThinkingLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        Self::named(text).ok_or(UnknownLevel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_lower_level_is_one_that_was_not_tried() {
        use ThinkingLevel as Level;
        assert_eq!(Level::High.next_lower(0), Some(Level::Medium));
        assert_eq!(Level::High.next_lower(Level::Medium.bit() | Level::Low.bit()), Some(Level::Minimal));
        assert_eq!(Level::Minimal.next_lower(Level::Off.bit()), None);
        assert_eq!(Level::Off.next_lower(0), None);
        assert_eq!(Level::ALL.map(|level| Level::named(level.name())), Level::ALL.map(Some));
        let words: Vec<String> = Level::ALL.iter().map(|level| format!("`{}`", level.name())).collect();
        assert_eq!(UnknownLevel.to_string(), format!("expected one of {}", words.join(", ")));
        let serde: Vec<String> =
            Level::ALL.iter().map(|level| serde_json::to_string(level).unwrap()).collect();
        assert_eq!(serde, Level::ALL.map(|level| format!("\"{}\"", level.name())));
    }
}
