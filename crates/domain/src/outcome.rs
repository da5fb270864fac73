//! The outcome of an intent: a record with its routes, nothing new, or a malformed row.

use std::sync::Arc;

use crate::malformed_intent::{FailureCode, MalformedIntent};
use crate::record::Record;
use crate::route::{LiveRoute, NewRoute, Start, Version};

/// A new record and its routes, to be committed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acceptance {
    /// The record.
    pub record: Record,
    /// All its routes.
    pub routes: Vec<NewRoute>,
}

impl Acceptance {
    /// Returns the pending routes in their state right after the commit, for publishing without reading them
    /// back.
    pub fn live_routes(&self) -> impl Iterator<Item = LiveRoute> + '_ {
        self.routes.iter().filter_map(|route| match route.start {
            Start::Skipped(_) => None,
            Start::Pending { due } => Some(LiveRoute {
                replaces: None,
                key: route.key.clone(),
                version: Version::read(self.record.content.accepted_at),
                channel: route.channel,
                recipient_ref: route.recipient_ref.clone(),
                resolved_email: route.resolved_email.clone(),
                resolved_locale: route.resolved_locale.clone(),
                attempt_count: 0,
                max_attempts: route.max_attempts,
                next_attempt_at: due,
                content: Arc::clone(&self.record.content),
            }),
        })
    }
}

/// The outcome of one entry.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// A new record.
    Accepted(Acceptance),
    /// The same intent has used the key: nothing is written.
    Duplicate,
    /// Another intent has used the key.
    Conflict(MalformedIntent),
    /// The entry breaks a rule.
    Malformed(MalformedIntent),
}

impl Outcome {
    /// `accepted`, `duplicate`, `conflict` or `malformed`, for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "accepted",
            Self::Duplicate => "duplicate",
            Self::Conflict(_) => "conflict",
            Self::Malformed(_) => "malformed",
        }
    }

    /// Returns the record and routes of an accepted intent.
    pub fn acceptance(&self) -> Option<&Acceptance> {
        match self {
            Self::Accepted(acceptance) => Some(acceptance),
            Self::Duplicate | Self::Conflict(_) | Self::Malformed(_) => None,
        }
    }

    /// Returns the row for `malformed_intents`, if there is one.
    pub fn malformed_row(&self) -> Option<&MalformedIntent> {
        match self {
            Self::Conflict(row) | Self::Malformed(row) => Some(row),
            Self::Accepted(_) | Self::Duplicate => None,
        }
    }

    /// Returns the code in that row, if there is one.
    pub fn failure_code(&self) -> Option<FailureCode> {
        self.malformed_row().map(|row| row.rejection.code)
    }
}
