//! Warnings about documents that are not in the agreed form, limited in rate.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::WARNING_INTERVAL;

/// The time of the last warning, and the number of users since then.
#[derive(Debug, Default)]
pub(super) struct Warnings(Mutex<(Option<Instant>, usize)>);

impl Warnings {
    /// Records users whose documents are not in the agreed form, and logs a warning if one is due.
    pub(super) fn note(&self, user_ids: &[&str], now: Instant) {
        if let Some((users, user_id)) = self.due(user_ids, now) {
            tracing::warn!(
                users,
                user_id,
                "documents of users are not as agreed; what cannot be used of them counts as none"
            );
        }
    }

    /// The number of users to report and the id of one of them, if a warning is due.
    pub(super) fn due<'a>(&self, user_ids: &[&'a str], now: Instant) -> Option<(usize, &'a str)> {
        let user_id = user_ids.first()?;
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += user_ids.len();
        if state.0.is_some_and(|last| now.duration_since(last) < WARNING_INTERVAL) {
            return None;
        }
        let (_, users) = std::mem::replace(&mut *state, (Some(now), 0));
        Some((users, user_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_counts_the_users_since_the_last_one_and_comes_at_most_once_an_interval() {
        let (warnings, start) = (Warnings::default(), Instant::now());
        assert_eq!(warnings.due(&[], start), None);
        assert_eq!(warnings.due(&["a", "b"], start), Some((2, "a")));
        assert_eq!(warnings.due(&["c"], start + WARNING_INTERVAL / 2), None);
        assert_eq!(warnings.due(&["d"], start + WARNING_INTERVAL), Some((2, "d")));
    }
}
