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
/// The number of events that fail in a row before the relay pauses.
const MAX_IN_A_ROW: usize = 20;
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

/// Events whose claim failed alone, with an error that may be the server's. Whether an event is the cause is
/// found by trying: it is, if the claim of another event succeeds and that of the suspect fails again.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// True if another claim has succeeded since, so that the event is tried again.
    events: HashMap<Uuid, bool>,
    /// The number of failures since a claim succeeded.
    in_a_row: usize,
}

impl Suspects {
    /// Notes that the claim of an event failed alone. Returns true if the event is the cause.
    pub(super) fn failed(&mut self, event_id: Uuid) -> bool {
        let is_cause = self.events.remove(&event_id) == Some(true);
        if !is_cause {
            self.events.insert(event_id, false);
            self.in_a_row += 1;
        }
        is_cause
    }

    /// True if so many events failed in a row that the server is probably the cause.
    pub(super) fn are_many(&self) -> bool {
        self.in_a_row > 0 && self.in_a_row.is_multiple_of(MAX_IN_A_ROW)
    }

    /// Notes that events were claimed: the suspects are tried again. Returns true if there are any.
    pub(super) fn others_succeeded(&mut self, claimed: impl Iterator<Item = Uuid>) -> bool {
        self.in_a_row = 0;
        if self.events.is_empty() {
            return false;
        }
        for event_id in claimed {
            self.events.remove(&event_id);
        }
        self.events.values_mut().fold(false, |any, is_tried| any | !std::mem::replace(is_tried, true))
    }

    /// The events that are not tried again before another claim succeeds.
    pub(super) fn event_ids(&self) -> impl Iterator<Item = Uuid> {
        self.events.iter().filter(|(_, is_tried)| !**is_tried).map(|(event_id, _)| *event_id)
    }

    /// Notes the end of the queue. Returns true if no claim has succeeded, so that the server is the cause.
    pub(super) fn end_round(&mut self) -> bool {
        self.in_a_row = 0;
        let is_server = self.event_ids().next().is_some();
        self.events.clear();
        is_server
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

    /// Removes what is to be logged now, as lines with an error and some events: everything if no further
    /// rejection is expected (`ends`) or the first has waited for [`MAX_LOG_DELAY`], otherwise the errors
    /// with a full line.
    pub(super) fn take_due(&mut self, ends: bool, now: Instant) -> Vec<(String, Vec<Uuid>)> {
        let is_due = ends || self.since.is_some_and(|since| now.duration_since(since) >= MAX_LOG_DELAY);
        let due = self.by_error.extract_if(.., |_, event_ids| is_due || event_ids.len() >= IDS_PER_LINE);
        let lines = due.flat_map(|(error, event_ids)| {
            let line = |ids: &[Uuid]| (error.clone(), ids.to_vec());
            event_ids.chunks(IDS_PER_LINE).map(line).collect::<Vec<_>>()
        });
        let lines = lines.collect();
        if is_due {
            self.since = None;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspect_is_the_cause_if_it_fails_again_after_another_event_succeeded() {
        let (mut suspects, [bad, good, other]) = (Suspects::default(), [1, 2, 3].map(Uuid::from_u128));
        assert!(!suspects.failed(bad));
        assert_eq!(suspects.event_ids().collect::<Vec<_>>(), [bad]);
        assert!(suspects.others_succeeded([good].into_iter()));
        assert_eq!(suspects.event_ids().next(), None, "it is tried again");
        assert!(!suspects.failed(other), "it has failed once");
        assert!(suspects.failed(bad));
        assert!(suspects.others_succeeded([good].into_iter()));
        assert!(!suspects.others_succeeded([other].into_iter()), "the last one succeeded, too");
        assert!(!suspects.end_round());
    }

    #[test]
    fn if_every_event_fails_the_server_is_the_cause() {
        let mut suspects = Suspects::default();
        for number in 1..=MAX_IN_A_ROW as u128 {
            assert!(!suspects.are_many());
            assert!(!suspects.failed(Uuid::from_u128(number)));
        }
        assert!(suspects.are_many());
        assert!(suspects.end_round());
        assert!(!suspects.end_round(), "nothing is suspected any more");
        assert!(!suspects.failed(Uuid::from_u128(1)));
    }

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
        (0..50).for_each(|number| rejections.add(Uuid::from_u128(number), "check".to_owned(), now));
        let lines: Vec<usize> = rejections.take_due(true, now).iter().map(|(_, ids)| ids.len()).collect();
        assert_eq!(lines, [20, 20, 10], "each is named");
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
