//! Questions about runs.
