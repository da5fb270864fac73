//! Clock, unique ids and randomness, the one format in which errors are logged, the rule for logging failures
//! that repeat, and the age of the data behind a response.
//!
//! The first three are traits with a real implementation and a test double, so that every rule built on them
//! can be tested with chosen values.

mod clock;
pub mod data_age;
mod episode;
mod error_chain;
mod ids;
mod jitter;

pub use clock::{Clock, ManualClock, NotATimestamp, SystemClock, Timestamp, TimestampOutOfRange};
pub use episode::{Episode, EpisodeFailure, Recovery};
pub use error_chain::error_chain;
pub use ids::{RandomTokens, SeededTokens, Tokens};
pub use jitter::{FixedJitter, Jitter, RandomJitter};
