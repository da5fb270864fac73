//! The three things a program cannot compute by itself: what time it is, a name nobody else has, and chance.
//!
//! Each is a trait with a real implementation and a test double, so that every rule built on them can be
//! tested with chosen values. Nothing else belongs here.

mod clock;
mod ids;
mod jitter;

pub use clock::{Clock, ManualClock, SystemClock, Timestamp, TimestampOutOfRange};
pub use ids::{RandomTokens, SeededTokens, Tokens};
pub use jitter::{FixedJitter, Jitter, RandomJitter};
