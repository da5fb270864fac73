//! Fates of intents.

use ambient::Timestamp;

use crate::document::Tone;
use crate::entry::EntryId;
use crate::malformed_intent::Rejection;
use crate::query::{Counted, MalformedSummary, RecordedAction, Waiting};
use crate::record::{NotificationId, Record};
use crate::route::RouteKey;

/// The fate of an intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The intent became a notification.
    Accepted {
        /// Id of the notification.
        notification_id: NotificationId,
        /// Time of acceptance.
        accepted_at: Timestamp,
        /// The route that is meant; `None` if the whole notification is.
        route_id: Option<String>,
    },
    /// No intent, but a change that an operator requested.
    Change {
        /// Id of the request.
        request_id: String,
        /// The newest of its actions.
        newest: RecordedAction,
        /// Number of rows that its listed actions changed; capped if there are more actions.
        affected: Counted,
    },
    /// The entry of an outbound stream that belongs to a route.
    Published {
        /// The stream.
        stream: String,
        /// Id of the entry.
        id: EntryId,
        /// The route.
        key: RouteKey,
        /// False if retention has deleted the route.
        exists: bool,
    },
    /// The intent equals one that was accepted before, and changed nothing.
    Duplicate {
        /// Id of its entry.
        id: EntryId,
        /// The notification of the earlier intent.
        of: NotificationId,
        /// Time at which the earlier intent was accepted.
        accepted_at: Timestamp,
    },
    /// The idempotency key belongs to another intent.
    Conflict {
        /// Id of its entry.
        id: String,
        /// The notification of the other intent; `None` if it was deleted.
        with: Option<NotificationId>,
        /// The stored malformed intent; `None` if it was deleted.
        row: Option<MalformedSummary>,
    },
    /// The intent breaks a rule.
    Malformed(MalformedSummary),
    /// The entry has no outcome yet.
    Unread {
        /// Id of the entry.
        id: EntryId,
        /// Number of unread entries before it.
        ahead: Counted,
        /// State of the reader of the stream.
        term: TermState,
        /// The expected outcome, as far as it can be predicted.
        expected: Expected,
    },
    /// The entry is in the stream and was read, but nothing that is stored shows its outcome.
    Forgotten {
        /// Id of the entry.
        id: EntryId,
        /// The rule that the entry breaks under the present catalogue.
        broken: Option<Rejection>,
    },
    /// Nothing was found under the id.
    Absent {
        /// The requested entry id.
        id: EntryId,
        /// The reason.
        absence: Absence,
    },
    /// The notification exists, but the route does not.
    NoRoute(RouteKey),
    /// Nothing was found under the name.
    Unknown {
        /// The requested name.
        name: String,
    },
}

/// The reader of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TermState {
    /// No replica reads it.
    NoLeader,
    /// A replica leads and waits.
    Waits(Waiting),
    /// A replica leads and reads.
    Reads,
}

/// The expected outcome of an unread entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Not predictable: decided when the entry is read.
    Undecided,
    /// A duplicate of the intent that became this notification.
    Duplicate(NotificationId),
    /// A conflict: the key belongs to the intent that became this notification.
    Conflict(NotificationId),
    /// Malformed: the entry breaks this rule.
    Malformed(Rejection),
}

/// The reason why nothing exists under the id of an entry. `unread` is true if the id is after the
/// checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absence {
    /// The stream begins after the id.
    Trimmed {
        /// The first entry of the stream; `None` if the stream is empty.
        first: Option<EntryId>,
        /// See [`Absence`].
        unread: bool,
    },
    /// The stream has entries before and after the id, but not this one.
    Deleted {
        /// See [`Absence`].
        unread: bool,
    },
    /// The stream has not generated the id.
    NotGenerated {
        /// The last id that the stream generated.
        last_generated: EntryId,
    },
    /// The stream does not exist.
    NoStream {
        /// See [`Absence`].
        unread: bool,
    },
    /// Redis is unavailable.
    StreamUnavailable {
        /// See [`Absence`].
        unread: bool,
    },
}

impl Fate {
    /// The fate of the intent that became `record`.
    pub fn accepted(record: &Record) -> Self {
        Self::Accepted {
            notification_id: record.notification_id.clone(),
            accepted_at: record.content.accepted_at,
            route_id: None,
        }
    }

    /// The name of the fate in documents, one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Change { .. } => "change",
            Self::Published { .. } => "published",
            Self::Duplicate { .. } => "duplicate",
            Self::Conflict { .. } => "conflict",
            Self::Malformed(_) => "malformed",
            Self::Unread { .. } => "unread",
            Self::Forgotten { .. } => "forgotten",
            Self::Absent { absence, .. } => match absence {
                Absence::Trimmed { .. } => "trimmed",
                Absence::Deleted { .. } => "deleted",
                Absence::NotGenerated { .. } | Absence::NoStream { .. } => "unknown",
                Absence::StreamUnavailable { .. } => "stream_unavailable",
            },
            Self::NoRoute(_) => "no_route",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// True if the intent was found.
    pub fn is_found(&self) -> bool {
        !matches!(self, Self::Absent { .. } | Self::NoRoute(_) | Self::Unknown { .. })
    }

    /// The notification that the intent became, or that has its key.
    pub fn notification(&self) -> Option<&NotificationId> {
        match self {
            Self::Accepted { notification_id, .. } => Some(notification_id),
            Self::Duplicate { of, .. } => Some(of),
            Self::Conflict { with, .. } => with.as_ref(),
            Self::NoRoute(key) | Self::Published { key, exists: true, .. } => Some(&key.notification_id),
            Self::Unread { expected: Expected::Duplicate(id) | Expected::Conflict(id), .. } => Some(id),
            Self::Malformed(_)
            | Self::Change { .. }
            | Self::Published { .. }
            | Self::Unread { .. }
            | Self::Forgotten { .. }
            | Self::Absent { .. }
            | Self::Unknown { .. } => None,
        }
    }

    /// The route that is meant, by its id within the notification.
    pub fn route_id(&self) -> Option<&str> {
        match self {
            Self::Accepted { route_id, .. } => route_id.as_deref(),
            Self::Published { key, .. } => Some(&key.route_id),
            _ => None,
        }
    }

    /// The request of an operator, if that is what was found.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Change { request_id, .. } => Some(request_id),
            _ => None,
        }
    }

    /// The quality of the fate.
    pub fn tone(&self) -> Tone {
        match self {
            Self::Accepted { .. } | Self::Change { .. } | Self::Duplicate { .. } | Self::Published { .. } => {
                Tone::Good
            }
            Self::Unread { .. } | Self::Forgotten { .. } => Tone::Warning,
            Self::Conflict { .. }
            | Self::Malformed(_)
            | Self::Absent { .. }
            | Self::NoRoute(_)
            | Self::Unknown { .. } => Tone::Bad,
        }
    }

    /// The stored malformed intent, if there is one.
    pub fn malformed(&self) -> Option<&MalformedSummary> {
        match self {
            Self::Conflict { row, .. } => row.as_ref(),
            Self::Malformed(row) => Some(row),
            _ => None,
        }
    }
}
