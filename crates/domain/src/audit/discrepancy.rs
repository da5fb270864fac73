//! Kinds of discrepancies, each with a stable name for programs.

use std::fmt;

use crate::entry::EntryId;
use crate::record::NotificationId;
use crate::route::RouteKey;

/// Defines the kinds with their names, causes and remedies, and the list of all of them.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $cause:literal, $remedy:literal;)*) => {
        /// The kind of a discrepancy.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DiscrepancyKind {
            $($(#[$doc])* $kind,)*
        }

        impl DiscrepancyKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The name in the output of an audit.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The usual cause, as a sentence for an operator.
            pub fn cause(self) -> &'static str {
                match self {
                    $(Self::$kind => $cause,)*
                }
            }

            /// The remedy, in one or two sentences. Statements are those of docs/operations.md.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$kind => $remedy,)*
                }
            }
        }
    };
}

kinds! {
    /// An entry up to the checkpoint has neither record nor malformed row, and retention cannot have deleted
    /// it.
    EntryWithoutOutcome = "entry_without_outcome", "PostgreSQL lost its outcome, or the row was deleted by hand.", "Have its producer send the intent again: if it was accepted before, it is a duplicate.";
    /// An entry was accepted, and has a malformed row too.
    EntryWithTwoOutcomes = "entry_with_two_outcomes", "It was rejected in one reading of the stream and accepted in another.", "Nothing to do: it was notified once.";
    /// An entry conflicts with the record of its idempotency key, and has no malformed row.
    ConflictWithoutRow = "conflict_without_row", "Its malformed row was deleted by hand.", "Tell its producer, which has used the key for two intents.";
    /// The record under the idempotency key and id of an entry has other content than the entry.
    RecordDiffersFromEntry = "record_differs_from_entry", "The record was edited, or the stream was recreated and gave out the id again.", "Compare both, and tell the producer.";
    /// There is a checkpoint and no stream.
    IntentsStreamAbsent = "intents_stream_absent", "Redis lost the key, or the service uses another database of Redis than before.", "Restore the key. If that is not possible, do nothing: the next intent creates it.";
    /// The key of a stream holds a value of another type.
    StreamOfWrongType = "stream_of_wrong_type", "Another program writes to the key, so nothing can be appended.", "Rename the key: the next entry creates the stream.";
    /// The stream never generated the id of the checkpoint: Redis lost entries, or the stream was recreated.
    CheckpointAfterStream = "checkpoint_after_stream", "Redis lost its newest entries, or the stream was recreated.", "Intake resumes by itself. Producers of recent intents send them again: what was accepted is a duplicate.";
    /// The stream begins after the checkpoint: entries in between may have been trimmed before they were
    /// read.
    StreamTrimmedPastCheckpoint = "stream_trimmed_past_checkpoint", "Entries were removed before they were read, unless all of them had been read.", "Have what was sent between both ids sent again, and raise the limit of what trims the stream.";
    /// The cached checkpoint is after the durable one: PostgreSQL lost outcomes.
    CachedCheckpointAhead = "cached_checkpoint_ahead", "PostgreSQL was restored to an older state.", "The leader corrects it. Run the audit again, and see Backup and restore for what is missing.";
    /// The cached checkpoint has a higher fence than the durable one: PostgreSQL lost terms.
    CachedFenceAhead = "cached_fence_ahead", "PostgreSQL was restored to an older state.", "The leader corrects it. Run the audit again, and see Backup and restore for what is missing.";
    /// The cached checkpoint cannot be read.
    CachedCheckpointGarbled = "cached_checkpoint_garbled", "Another program wrote the key of the checkpoint.", "The leader overwrites it. Find the program.";
    /// The leader's fence is below that of the durable checkpoint: every write of the leader is refused.
    LeaderFenceBelowCheckpoint = "leader_fence_below_checkpoint", "The lock was restored to an older state, so the leader cannot write.", "It steps down and raises the fence within seconds. Run the audit again.";
    /// A record has no routes.
    RecordWithoutRoutes = "record_without_routes", "Rows were deleted by hand, or restored in part.", "Restore the routes, or delete the record and have the intent sent again.";
    /// A recipient lacks a route on a channel on which another recipient has one.
    RecordIncomplete = "record_incomplete", "Rows were deleted by hand, or restored in part: these recipients are not notified.", "Restore the routes, or have an intent for these recipients sent.";
    /// A route is for a recipient whom its record does not name.
    RouteOfNoRecipient = "route_of_no_recipient", "The row was inserted by hand, or the recipients of its record were edited.", "Correct the record, or delete the route.";
    /// A record was changed after its acceptance.
    RecordChanged = "record_changed", "The row was edited: the service never changes a record.", "Compare it with a backup, and correct it.";
    /// A row cannot be read.
    UnreadableRow = "unreadable_row", "The row was edited to a value that the service never writes, and is left alone.", "Correct the value that the line names.";
    /// A route has a next attempt and is terminal, or the reverse.
    ScheduleMismatch = "schedule_mismatch", "The row was edited: a live route without a next attempt is never published.", "Run statement 1 for a live route, statement 2 for a terminal one.";
    /// A live route is parked at a time that is never reached, so that it is never published.
    RouteWithoutEnd = "route_without_end", "The route was parked by hand, and is never published.", "Run statement 1 once the reason is gone.";
    /// A route has more failed attempts than its budget.
    AttemptsOverBudget = "attempts_over_budget", "The row was edited, or the budget was lowered.", "Run statement 3.";
    /// A route's id is not that of its channel and recipient.
    RouteIdMismatch = "route_id_mismatch", "The row was edited: the id no longer names its channel and recipient.", "Compare it with a backup, and correct it.";
    /// A route was changed, and its version is not above that of its creation.
    VersionDidNotRise = "version_did_not_rise", "The row was edited without raising updated_at, so a publisher may overwrite the change.", "Raise updated_at, which is the version of the route.";
    /// A terminal route lacks the time at which it ended.
    TerminalWithoutTime = "terminal_without_time", "The status was set by hand.", "Run statement 4, which publishes the route again: consumers deduplicate.";
    /// A published route names no entry.
    PublishedWithoutEntry = "published_without_entry", "The status was set by hand: nothing shows that it was published.", "Run statement 4, which publishes the route again: consumers deduplicate.";
    /// A dead letter has no row in `dead_letters`.
    DeadLetterWithoutRow = "dead_letter_without_row", "The row was deleted by hand, so no list has the dead letter.", "Insert the row, or run statement 4.";
    /// A row in `dead_letters` belongs to a route that is not a dead letter.
    RowWithoutDeadLetter = "row_without_dead_letter", "The row was inserted by hand, or the status of the route was set by hand.", "Delete the row from dead_letters.";
    /// A route has no record.
    RouteWithoutRecord = "route_without_record", "The record was deleted by hand, or the rows were restored without foreign keys.", "Restore the record, or delete the route.";
    /// A row in `dead_letters` has no route.
    DeadLetterWithoutRoute = "dead_letter_without_route", "The route was deleted by hand, or the rows were restored without foreign keys.", "Restore the route, or delete the row.";
    /// The entry of a published route is not in its stream, and was neither trimmed nor deleted.
    PublishedEntryMissing = "published_entry_missing", "Redis lost an entry that it had acknowledged, so consumers may not have it.", "After a failover the service appends it again: run the audit again after some minutes. If it stays, see Failover of Redis.";
    /// Routes are published, and the stream of their channel does not exist.
    OutboundStreamAbsent = "outbound_stream_absent", "The key was deleted, or Redis lost it.", "Restore it, or let the next published route create it. See Failover of Redis for what was lost.";
    /// An outbound entry belongs to no route, and retention cannot have deleted it.
    OutboundEntryWithoutRoute = "outbound_entry_without_route", "PostgreSQL lost the record, or another installation writes to the stream.", "Give each installation streams of its own. After a restore of PostgreSQL, nothing: the entry was delivered.";
    /// An outbound entry belongs to a route that was never published.
    OutboundEntryNotPublished = "outbound_entry_not_published", "The status was set by hand, or another program appended the entry.", "Correct the status: consumers may have delivered the entry.";
    /// A route has a second entry in its stream.
    DuplicateOutboundEntry = "duplicate_outbound_entry", "The route was published twice, because its marker expired before the completion was committed.", "Nothing to do: consumers deduplicate. If outages last longer, raise NOTIFICATION_PUBLISH_DEDUPE_TTL.";
}

/// The object of a discrepancy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// A stream as a whole.
    Stream(String),
    /// An entry of a stream.
    Entry {
        /// The key of the stream.
        stream: String,
        /// The id of the entry.
        id: EntryId,
    },
    /// A notification.
    Notification(NotificationId),
    /// A route or its dead letter.
    Route(RouteKey),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(stream) => f.write_str(stream),
            Self::Entry { stream, id } => write!(f, "{stream} {id}"),
            Self::Notification(id) => write!(f, "{id}"),
            Self::Route(key) => write!(f, "{key}"),
        }
    }
}

/// One contradiction that an audit found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discrepancy {
    /// Its kind.
    pub kind: DiscrepancyKind,
    /// Its object.
    pub subject: Subject,
    /// The values that contradict each other, for an operator; never a payload.
    pub detail: String,
}

impl Discrepancy {
    /// Creates a discrepancy.
    pub fn new(kind: DiscrepancyKind, subject: Subject, detail: impl Into<String>) -> Self {
        Self { kind, subject, detail: detail.into() }
    }

    /// True if both have the same kind and subject; the details may differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.subject == other.subject
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_a_cause_and_a_remedy() {
        let names: std::collections::BTreeSet<&str> =
            DiscrepancyKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(names.len(), DiscrepancyKind::ALL.len());
        for kind in DiscrepancyKind::ALL {
            for text in [kind.cause(), kind.remedy()] {
                let is_sentence = text.starts_with(|c: char| c.is_uppercase()) && text.ends_with('.');
                assert!(is_sentence && text.len() < 140, "{}: {text}", kind.as_str());
            }
        }
    }
}
