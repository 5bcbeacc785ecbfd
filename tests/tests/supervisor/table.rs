//! The table of deaths and outcomes.
