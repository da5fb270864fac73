//! Counts of an audit.

use serde::Serialize;

use super::{EntryOutcome, OutboundVerdict, RouteRow};
use crate::republish::EntryState;
use crate::route::RouteStatus;

/// Counts of all examined objects, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Entries of the intents stream.
    pub entries: EntryFigures,
    /// Records.
    pub records: u64,
    /// Routes of these records.
    pub routes: RouteFigures,
    /// Entries of published routes, by their state in the streams.
    pub published: PublishedFigures,
    /// Entries of the outbound streams.
    pub outbound: OutboundFigures,
    /// Discrepancies.
    pub discrepancies: u64,
}

/// Entries of the intents stream, by outcome. Entries with a discrepancy are not counted here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "the outcomes of EntryOutcome")]
pub struct EntryFigures {
    pub accepted: u64,
    pub duplicate: u64,
    pub conflict: u64,
    pub malformed: u64,
    pub not_read: u64,
    pub expired: u64,
    pub not_compared: u64,
}

impl EntryFigures {
    /// Counts one entry.
    pub fn add(&mut self, outcome: EntryOutcome) {
        let counter = match outcome {
            EntryOutcome::Accepted => &mut self.accepted,
            EntryOutcome::Duplicate => &mut self.duplicate,
            EntryOutcome::Conflict => &mut self.conflict,
            EntryOutcome::Malformed => &mut self.malformed,
            EntryOutcome::NotRead => &mut self.not_read,
            EntryOutcome::Expired => &mut self.expired,
            EntryOutcome::NotCompared => &mut self.not_compared,
        };
        *counter += 1;
    }
}

impl EntryFigures {
    /// The sum of all outcomes.
    pub fn sum(&self) -> u64 {
        let Self { accepted, duplicate, conflict, malformed, not_read, expired, not_compared } = self;
        accepted + duplicate + conflict + malformed + not_read + expired + not_compared
    }
}

impl OutboundFigures {
    /// The sum of all verdicts.
    pub fn sum(&self) -> u64 {
        let Self { published, uncommitted, expired, other } = self;
        published + uncommitted + expired + other
    }
}

/// Routes by status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteFigures {
    /// Counts in the order of [`RouteStatus::ALL`].
    by_status: [u64; RouteStatus::ALL.len()],
    /// Live routes that are far overdue.
    pub stuck: u64,
}

impl RouteFigures {
    /// Counts one route; ignores a row that could not be read.
    pub fn add(&mut self, row: &RouteRow, is_stuck: bool) {
        if let RouteRow::Read(route) = row {
            let place = RouteStatus::ALL.iter().position(|status| *status == route.status);
            // Cannot fail: the list has every status.
            self.by_status[place.expect("a status")] += 1;
            self.stuck += u64::from(is_stuck);
        }
    }

    /// The statuses with their counts.
    pub fn by_status(&self) -> impl Iterator<Item = (RouteStatus, u64)> + '_ {
        RouteStatus::ALL.into_iter().zip(self.by_status)
    }
}

/// Entries of published routes, by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PublishedFigures {
    /// Present in the stream.
    pub present: u64,
    /// Trimmed from the stream.
    pub trimmed: u64,
    /// Deleted by a consumer.
    pub deleted: u64,
    /// The stream does not exist.
    pub no_stream: u64,
}

impl PublishedFigures {
    /// Counts one entry. A lost entry is a discrepancy and is not counted here.
    pub fn add(&mut self, state: EntryState) {
        match state {
            EntryState::Present => self.present += 1,
            EntryState::Trimmed => self.trimmed += 1,
            EntryState::Deleted => self.deleted += 1,
            EntryState::NoStream => self.no_stream += 1,
            EntryState::Missing | EntryState::Lost => {}
        }
    }

    /// Adds the counts of another page.
    pub fn join(&mut self, other: Self) {
        self.present += other.present;
        self.trimmed += other.trimmed;
        self.deleted += other.deleted;
        self.no_stream += other.no_stream;
    }
}

/// Entries of the outbound streams, by verdict. Entries with a discrepancy are not counted here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OutboundFigures {
    /// Entries that their published routes name.
    pub published: u64,
    /// Entries of routes whose completion is not committed.
    pub uncommitted: u64,
    /// Entries of routes that retention may have deleted.
    pub expired: u64,
    /// Entries that this service did not write, or that are not readable as such.
    pub other: u64,
}

impl OutboundFigures {
    /// Counts one entry.
    pub fn add(&mut self, verdict: &OutboundVerdict) {
        match verdict {
            OutboundVerdict::Published => self.published += 1,
            OutboundVerdict::Uncommitted => self.uncommitted += 1,
            OutboundVerdict::Expired => self.expired += 1,
            OutboundVerdict::Other => self.other += 1,
            OutboundVerdict::Wrong(_) => {}
        }
    }
}
