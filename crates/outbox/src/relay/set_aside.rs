//! Events whose change the table rejects, because of a constraint or a trigger of the producer. The relay
//! continues without them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::marks::IDS_PER_LINE;

/// The pause before the first retry of such an event; each further pause is twice as long.
const MIN_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
/// The most events that are set aside.
const MAX_SET_ASIDE: usize = 5_000;
/// The longest time for which a rejected event waits for others of its log line.
const MAX_LOG_DELAY: Duration = Duration::from_secs(1);

/// The events that are set aside, each with the end and the length of its pause.
#[derive(Debug, Default)]
pub(super) struct SetAside(HashMap<Uuid, (Instant, Duration)>);

impl SetAside {
    /// Sets an event aside and returns the pause; `None` if there are too many.
    pub(super) fn add(&mut self, event_id: Uuid, now: Instant) -> Option<Duration> {
        // An event that was not rejected again for a whole pause starts with the shortest one.
        self.0.retain(|_, (until, pause)| now < *until + *pause);
        let pause = self.0.get(&event_id).map_or(MIN_PAUSE, |(_, pause)| (*pause * 2).min(MAX_PAUSE));
        if self.0.len() >= MAX_SET_ASIDE && !self.0.contains_key(&event_id) {
            return None;
        }
        self.0.insert(event_id, (now + pause, pause));
        Some(pause)
    }

    /// Returns the events that are set aside now.
    pub(super) fn event_ids(&self, now: Instant) -> Vec<Uuid> {
        self.0.iter().filter(|(_, (until, _))| now < *until).map(|(id, _)| *id).collect()
    }
}

/// Events whose claim was rejected and that are not in the log yet. One line names several, because a new
/// constraint may reject thousands.
#[derive(Debug, Default)]
pub(super) struct UnloggedRejections {
    by_error: BTreeMap<String, Vec<Uuid>>,
    since: Option<Instant>,
}

impl UnloggedRejections {
    pub(super) fn add(&mut self, event_id: Uuid, error: String, now: Instant) {
        self.since.get_or_insert(now);
        self.by_error.entry(error).or_default().push(event_id);
    }

    /// Removes what is to be logged now, as error and events: everything if no further rejection is expected
    /// (`ends`) or the first has waited for [`MAX_LOG_DELAY`], otherwise the errors with a full line.
    pub(super) fn take_due(&mut self, ends: bool, now: Instant) -> Vec<(String, Vec<Uuid>)> {
        if ends || self.since.is_some_and(|since| now.duration_since(since) >= MAX_LOG_DELAY) {
            self.since = None;
            return std::mem::take(&mut self.by_error).into_iter().collect();
        }
        self.by_error.extract_if(.., |_, event_ids| event_ids.len() >= IDS_PER_LINE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_logged_in_full_lines_or_after_a_second_or_at_the_end() {
        let (mut rejections, now) = (UnloggedRejections::default(), Instant::now());
        let ids: Vec<Uuid> = (0..IDS_PER_LINE as u128).map(Uuid::from_u128).collect();
        rejections.add(Uuid::from_u128(100), "other".to_owned(), now);
        for id in &ids {
            assert_eq!(rejections.take_due(false, now), []);
            rejections.add(*id, "check".to_owned(), now);
        }
        assert_eq!(rejections.take_due(false, now), [("check".to_owned(), ids)]);
        let other = [("other".to_owned(), vec![Uuid::from_u128(100)])];
        assert_eq!(rejections.take_due(false, now + MAX_LOG_DELAY), other);
        rejections.add(Uuid::from_u128(100), "other".to_owned(), now);
        assert_eq!(rejections.take_due(true, now), other);
        assert_eq!(rejections.take_due(true, now), []);
    }

    #[test]
    fn an_event_is_tried_again_after_a_pause_that_doubles_while_it_is_refused() {
        let (mut set_aside, id) = (SetAside::default(), Uuid::from_u128(1));
        let mut now = Instant::now();
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pause = set_aside.add(id, now).expect("there is room");
            assert_eq!(pause, Duration::from_secs(60 * minutes));
            assert_eq!(set_aside.event_ids(now), [id]);
            now += pause;
            assert!(set_aside.event_ids(now).is_empty());
        }
        now += MAX_PAUSE;
        assert_eq!(set_aside.add(id, now), Some(MIN_PAUSE), "it was not refused for long enough");
    }

    #[test]
    fn so_many_are_set_aside_and_no_more() {
        let (mut set_aside, now) = (SetAside::default(), Instant::now());
        for number in 0..MAX_SET_ASIDE as u128 {
            assert!(set_aside.add(Uuid::from_u128(number), now).is_some());
        }
        assert_eq!(set_aside.add(Uuid::from_u128(u128::MAX), now), None);
        assert!(set_aside.add(Uuid::from_u128(0), now).is_some(), "it is one of them");
    }
}
