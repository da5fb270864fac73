//! What became of an intent.

use ambient::Timestamp;

use crate::entry::EntryId;
use crate::malformed::Rejection;
use crate::query::{Counted, MalformedSummary, Waiting};
use crate::record::{NotificationId, Record};
use crate::route::RouteKey;

/// What became of an intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is a notification.
    Accepted {
        /// Which one.
        notification_id: NotificationId,
        /// Since when.
        accepted_at: Timestamp,
    },
    /// It says the same as an intent that was accepted before, and changed nothing.
    Duplicate {
        /// Its entry.
        id: EntryId,
        /// The notification of that intent.
        of: NotificationId,
        /// When that was accepted.
        accepted_at: Timestamp,
    },
    /// Its key belongs to another intent.
    Conflict {
        /// Its entry.
        id: String,
        /// The notification of the other intent; `None` if it is gone.
        with: Option<NotificationId>,
        /// What is stored of it; `None` if that is gone.
        row: Option<MalformedSummary>,
    },
    /// It breaks a rule.
    Malformed(MalformedSummary),
    /// It has no outcome yet.
    Unread {
        /// Its entry.
        id: EntryId,
        /// The unread entries before it.
        ahead: Counted,
        /// What reads them.
        term: TermState,
        /// What will become of it, as far as that can be told.
        expected: Expected,
    },
    /// It is in the stream and was read, and nothing that is stored tells its outcome.
    Forgotten {
        /// Its entry.
        id: EntryId,
        /// The rule that it breaks by the present catalogue.
        broken: Option<Rejection>,
    },
    /// Nothing is known under the id.
    Absent {
        /// The id of the entry that was asked about.
        id: EntryId,
        /// Why.
        absence: Absence,
    },
    /// There is the notification, and not the route.
    NoRoute(RouteKey),
    /// Nothing is known by the name.
    Unknown {
        /// The name.
        name: String,
    },
}

/// What reads the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TermState {
    /// No replica.
    NoLeader,
    /// A replica that waits.
    Waits(Waiting),
    /// A replica.
    Reads,
}

/// What will become of an entry that is not read yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// That is decided when it is read.
    Undecided,
    /// It is a duplicate of the intent that became this notification.
    Duplicate(NotificationId),
    /// Its key belongs to the intent that became this notification.
    Conflict(NotificationId),
    /// It breaks this rule.
    Malformed(Rejection),
}

/// Why there is nothing under the id of an entry. `unread`: it is after the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absence {
    /// The stream begins after it.
    Trimmed {
        /// With this entry; `None` if the stream is empty.
        first: Option<EntryId>,
        /// See [`Absence`].
        unread: bool,
    },
    /// The stream has entries before and after it, and not it.
    Deleted {
        /// See [`Absence`].
        unread: bool,
    },
    /// The stream has not generated the id.
    NotGenerated {
        /// The last one that it generated.
        last_generated: EntryId,
    },
    /// There is no stream.
    NoStream {
        /// See [`Absence`].
        unread: bool,
    },
    /// Redis could not be asked.
    StreamUnavailable {
        /// See [`Absence`].
        unread: bool,
    },
}

impl Fate {
    /// That of the intent that became `record`.
    pub fn accepted(record: &Record) -> Self {
        Self::Accepted {
            notification_id: record.notification_id.clone(),
            accepted_at: record.content.accepted_at,
        }
    }

    /// In a word, as documents spell it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
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

    /// Whether the intent was found.
    pub fn is_found(&self) -> bool {
        !matches!(self, Self::Absent { .. } | Self::NoRoute(_) | Self::Unknown { .. })
    }

    /// The notification that it became, or that has its key.
    pub fn notification(&self) -> Option<&NotificationId> {
        match self {
            Self::Accepted { notification_id, .. } => Some(notification_id),
            Self::Duplicate { of, .. } => Some(of),
            Self::Conflict { with, .. } => with.as_ref(),
            Self::NoRoute(key) => Some(&key.notification_id),
            Self::Unread { expected: Expected::Duplicate(id) | Expected::Conflict(id), .. } => Some(id),
            Self::Malformed(_)
            | Self::Unread { .. }
            | Self::Forgotten { .. }
            | Self::Absent { .. }
            | Self::Unknown { .. } => None,
        }
    }

    /// What is stored of it, if it is malformed.
    pub fn malformed(&self) -> Option<&MalformedSummary> {
        match self {
            Self::Conflict { row, .. } => row.as_ref(),
            Self::Malformed(row) => Some(row),
            _ => None,
        }
    }
}
