//! The loop's state between passes.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::chunk::Outcomes;
use super::claimed::Claimed;
use super::comparison::Comparing;
use super::marks::{Marks, list_ids};
use super::scan::QueueScan;
use super::set_aside::{SetAside, Suspects, UnloggedRejections};
use crate::{Event, OutboxError};

/// The time for which claims give up soon after one that took too long.
pub(super) const HURRIED_FOR: Duration = Duration::from_secs(10);
/// The duration of a claim from which on the table counts as slow: the limit of hurried claims.
const SLOW_CLAIM: Duration = Duration::from_millis(250);
/// The time for which claims of a slow table are not hurried.
const PATIENT_FOR: Duration = Duration::from_secs(60);

/// The loop's state between passes.
pub(super) struct LoopState {
    pub(super) scan: QueueScan,
    pub(super) marks: Marks,
    pub(super) marks_tried: Instant,
    /// The events claimed while the previous claim was published, whose marks are made with this claim's
    /// publication.
    pub(super) ahead: Option<Claimed>,
    /// True if the last claim could not get its lock.
    pub(super) was_locked: bool,
    /// The largest number of events of the next claim.
    pub(super) limit: u32,
    /// True if the next claim skips events that were reaped, because the last one took some.
    pub(super) passes_reaped: bool,
    /// The position of such claims.
    pub(super) fresh_scan: QueueScan,
    pub(super) set_aside: SetAside,
    pub(super) suspects: Suspects,
    /// The last error of a suspect.
    pub(super) unclear: Option<OutboxError>,
    /// The time until which claims give up soon.
    pub(super) hurried_until: Option<Instant>,
    /// The time until which claims have their usual time nevertheless: hurried ones failed in a row, or the
    /// table is slow for every event.
    pub(super) patient_until: Option<Instant>,
    pub(super) rejections: UnloggedRejections,
    /// The comparison of DELIVERED events with the publisher's entries.
    pub(super) comparing: Comparing,
    /// True if the next pass checks for due events before it claims.
    pub(super) looks_first: bool,
}

impl LoopState {
    pub(super) fn new(now: Instant, batch_size: u32) -> Self {
        Self {
            scan: QueueScan::new(now),
            limit: batch_size,
            passes_reaped: false,
            fresh_scan: QueueScan::new(now),
            set_aside: SetAside::default(),
            suspects: Suspects::default(),
            unclear: None,
            hurried_until: None,
            patient_until: None,
            rejections: UnloggedRejections::default(),
            marks: Marks::default(),
            marks_tried: now,
            ahead: None,
            was_locked: false,
            comparing: Comparing::default(),
            looks_first: true,
        }
    }

    /// The events that are not claimed now.
    pub(super) fn excepted(&self, now: Instant) -> Vec<Uuid> {
        self.set_aside.event_ids(now).into_iter().chain(self.suspects.event_ids()).collect()
    }

    pub(super) fn hurries(&self, now: Instant) -> bool {
        let is_before = |until: Option<Instant>| until.is_some_and(|until| now < until);
        is_before(self.hurried_until) && !is_before(self.patient_until)
    }

    /// Notes that a claim that began at `begun` found these events: the server serves others than the
    /// suspects.
    pub(super) fn claimed(&mut self, events: &[Event], begun: Instant) {
        if !events.is_empty() {
            if begun.elapsed() > SLOW_CLAIM {
                self.patient_until = Some(Instant::now() + PATIENT_FOR);
            }
            if self.suspects.others_succeeded(events.iter().map(|event| event.event_id)) {
                self.scan = QueueScan::new(Instant::now());
            }
        }
    }

    /// Gives the next claims their usual time if the last ones were hurried.
    pub(super) fn be_patient(&mut self, now: Instant) {
        if self.hurries(now) {
            self.patient_until = Some(now + HURRIED_FOR);
        }
    }

    /// Notes that nothing more is due. Fails if claims have failed and none has succeeded.
    pub(super) fn end_round(&mut self) -> Result<(), OutboxError> {
        let (events, error) = (self.suspected(), self.unclear.take());
        match (self.suspects.end_round(), error) {
            (true, Some(error)) => {
                let now = Instant::now();
                self.be_patient(now);
                (self.scan, self.looks_first) = (QueueScan::new(now), false);
                Err(OutboxError::NoneClaimed { events, source: error.into() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn suspected(&self) -> String {
        list_ids(self.suspects.event_ids())
    }

    /// Adds the events claimed ahead to the next marks, to be released.
    pub(super) fn release_ahead(&mut self) {
        if let Some(claimed) = self.ahead.take() {
            let released = claimed.events.iter().map(|event| event.event_id).collect();
            self.marks.add(claimed.token, claimed.lease_end, Outcomes { released, ..Outcomes::default() });
        }
    }
}
