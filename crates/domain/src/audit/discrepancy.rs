//! Kinds of discrepancies, each with a stable name for programs.

use std::fmt;

use crate::entry::EntryId;
use crate::record::NotificationId;
use crate::route::RouteKey;

/// Defines the kinds with their names, and the list of all of them.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
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
        }
    };
}

kinds! {
    /// An entry up to the checkpoint has neither record nor malformed row, and retention cannot have deleted
    /// it.
    EntryWithoutOutcome = "entry_without_outcome",
    /// An entry was accepted, and has a malformed row too.
    EntryWithTwoOutcomes = "entry_with_two_outcomes",
    /// An entry conflicts with the record of its idempotency key, and has no malformed row.
    ConflictWithoutRow = "conflict_without_row",
    /// The record of an entry is that of an intent with other content.
    RecordDiffersFromEntry = "record_differs_from_entry",
    /// There is a checkpoint and no stream.
    IntentsStreamAbsent = "intents_stream_absent",
    /// The key of a stream holds something else.
    StreamOfWrongType = "stream_of_wrong_type",
    /// The stream never generated the id of the checkpoint: Redis lost entries, or the stream was recreated.
    CheckpointAfterStream = "checkpoint_after_stream",
    /// The stream begins after the checkpoint: entries in between may have been trimmed before they were
    /// read.
    StreamTrimmedPastCheckpoint = "stream_trimmed_past_checkpoint",
    /// The cached checkpoint is after the durable one: PostgreSQL lost outcomes.
    CachedCheckpointAhead = "cached_checkpoint_ahead",
    /// The cached checkpoint has a higher fence than the durable one: PostgreSQL lost terms.
    CachedFenceAhead = "cached_fence_ahead",
    /// The cached checkpoint cannot be read.
    CachedCheckpointGarbled = "cached_checkpoint_garbled",
    /// The leader's fence is below that of the durable checkpoint: every write of the leader is refused.
    LeaderFenceBelowCheckpoint = "leader_fence_below_checkpoint",
    /// A record has no routes.
    RecordWithoutRoutes = "record_without_routes",
    /// A recipient lacks a route on a channel on which another recipient has one.
    RecordIncomplete = "record_incomplete",
    /// A route is for a recipient whom its record does not name.
    RouteOfNoRecipient = "route_of_no_recipient",
    /// A record was changed after its acceptance.
    RecordChanged = "record_changed",
    /// A row cannot be read.
    UnreadableRow = "unreadable_row",
    /// A route has a next attempt and is terminal, or the reverse.
    ScheduleMismatch = "schedule_mismatch",
    /// A live route is parked at a time that is never reached, so that it is never published.
    RouteWithoutEnd = "route_without_end",
    /// A route has more failed attempts than its budget.
    AttemptsOverBudget = "attempts_over_budget",
    /// A route's id is not that of its channel and recipient.
    RouteIdMismatch = "route_id_mismatch",
    /// A route was changed, and its version is not above that of its creation.
    VersionDidNotRise = "version_did_not_rise",
    /// A terminal route lacks the time at which it ended.
    TerminalWithoutTime = "terminal_without_time",
    /// A published route names no entry.
    PublishedWithoutEntry = "published_without_entry",
    /// A dead letter has no row in `dead_letters`.
    DeadLetterWithoutRow = "dead_letter_without_row",
    /// A row in `dead_letters` belongs to a route that is not a dead letter.
    RowWithoutDeadLetter = "row_without_dead_letter",
    /// A route has no record.
    RouteWithoutRecord = "route_without_record",
    /// A row in `dead_letters` has no route.
    DeadLetterWithoutRoute = "dead_letter_without_route",
    /// The entry of a published route is not in its stream, and was neither trimmed nor deleted.
    PublishedEntryMissing = "published_entry_missing",
    /// Routes are published, and the stream of their channel does not exist.
    OutboundStreamAbsent = "outbound_stream_absent",
    /// An outbound entry belongs to no route, and retention cannot have deleted it.
    OutboundEntryWithoutRoute = "outbound_entry_without_route",
    /// An outbound entry belongs to a route that was never published.
    OutboundEntryNotPublished = "outbound_entry_not_published",
    /// A route has a second entry in its stream.
    DuplicateOutboundEntry = "duplicate_outbound_entry",
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
