//! The time since which no replica leads, as far as a replica has observed it.
//!
//! After a crash the lock contains the end of the last term. After an orderly stop it does not, so each
//! replica remembers its own observations.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ambient::Timestamp;

/// The longest time between two observations that count as continuous: in a longer one a term may have begun
/// and ended.
const MAX_LOOK_GAP: Duration = Duration::from_secs(30);

/// The present period without a leader, as observed by this replica; empty while a replica leads.
#[derive(Debug, Default)]
pub struct Leaderless(Mutex<Option<Seen>>);

/// The first and the last of consecutive observations without a leader.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Timestamp,
    last: Timestamp,
}

impl Leaderless {
    /// Creates an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records an observation at `now`. Returns the earliest time since which no leader has been observed.
    pub fn look(&self, has_leader: bool, now: Timestamp) -> Option<Timestamp> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.filter(|seen| now.saturating_since(seen.last) <= MAX_LOOK_GAP);
        let first = before.map_or(now, |seen| seen.first);
        *seen = (!has_leader).then_some(Seen { first, last: now });
        seen.map(|seen| seen.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_leader_counts_from_the_first_look_that_found_none_unless_a_leader_or_a_long_pause_came_between() {
        let looks = Leaderless::new();
        let at = |seconds| Timestamp::UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, has_leader, expected) in [
            (0, true, None),
            (10, false, Some(10)),
            (20, false, Some(10)),
            (50, false, Some(10)),
            (81, false, Some(81)),
            (90, true, None),
            (95, false, Some(95)),
        ] {
            assert_eq!(looks.look(has_leader, at(seconds)), expected.map(at), "{seconds}");
        }
    }
}
