//! Comparisons of an audit and the discrepancies they report: pure functions of the data that was read.
//!
//! Four comparisons: entries of the intents stream with their outcomes (`entries`), records with their routes
//! and dead letters (`records`), published routes with the outbound streams and the reverse (`outbound`),
//! checkpoints with the stream and with each other (`checkpoint`). Removals by retention, trimming and
//! consumers are by design and not discrepancies; ADR 0038 lists the limits of an audit.

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
pub use outbound::{OutboundName, OutboundVerdict, RouteState, judge_outbound, missing_entry};
pub use records::{AuditedRecord, AuditedRoute, RouteRow, UnreadableRow, judge_record};

use ambient::Timestamp;

use crate::entry::EntryId;
use crate::record::NotificationId;

/// The times up to which retention may have deleted rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetentionCutoffs {
    /// Bound for records, by acceptance time.
    pub records: Timestamp,
    /// Bound for malformed intents, by the time at which they were recorded.
    pub malformed_intents: Timestamp,
}

/// The time in a notification's id: the time of the entry id, or of the UUIDv7. `None` if the id has neither
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
