//! What an audit compares, and what it calls a discrepancy: functions from what was read to what is wrong.
//!
//! Four comparisons: entries of the intents stream with their outcomes (`entries`), records with their routes
//! and dead letters (`records`), published routes with the outbound streams and the reverse (`outbound`),
//! checkpoints with the stream and with each other (`checkpoint`). What retention, trimming and consumers
//! remove by design is no discrepancy; ADR 0038 says what an audit cannot know.

mod checkpoint;
mod discrepancy;
mod entries;
mod figures;
mod outbound;
mod records;

pub use checkpoint::{Checkpoints, judge_checkpoints};
pub use discrepancy::{Discrepancy, DiscrepancyKind, Subject};
pub use entries::{EntryContext, EntryOutcome, EntryTrace, FoundOutcome, MalformedTrace, judge_entry};
pub use figures::{EntryFigures, Figures, OutboundFigures, PublishedFigures, RouteFigures};
pub use outbound::{OutboundName, OutboundVerdict, PublishedRoute, RouteState, judge_outbound};
pub use records::{AuditedRecord, AuditedRoute, RouteRow, UnreadableRow, judge_record};

use ambient::Timestamp;

use crate::entry::EntryId;
use crate::record::NotificationId;

/// When rows may have been deleted by retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetentionCutoffs {
    /// Records that were accepted by then.
    pub records: Timestamp,
    /// Malformed intents that were recorded by then.
    pub malformed_intents: Timestamp,
}

/// The time in a notification's id: of the entry that it came by, or of the UUIDv7. `None` if it has neither
/// form.
pub fn notification_time(id: &NotificationId) -> Option<Timestamp> {
    id.entry().map(EntryId::time).or_else(|| {
        let uuid = uuid::Uuid::try_parse(id.as_str()).ok().filter(|uuid| uuid.get_version_num() == 7)?;
        let millis = uuid.as_u128() >> 80;
        Timestamp::from_millis(i64::try_from(millis).ok()?).ok()
    })
}

#[cfg(test)]
mod tests;
