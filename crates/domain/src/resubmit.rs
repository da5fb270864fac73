//! Resubmitting malformed intents: their fields are appended to the intents stream again, unchanged, as a new
//! entry (ADR 0065).
//!
//! The outcome of a resubmitted intent is that of the new entry. An intent that was in conflict would be in
//! conflict again, and one whose fields were not kept whole cannot be appended as it was: both are refused.
//! Intents that are refused over HTTP leave no row, so every row is an entry of a stream.

mod outcome;

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::document::{counted_form, one_of};
use crate::malformed_intent::{FailureCode, MalformedKey};
use crate::operations::PLAN_IDS;
use crate::query::{Counted, MalformedFilter, MalformedSummary};

pub use outcome::ResubmittedOutcome;

/// The name in `operator_actions.action`.
pub const RESUBMIT_ACTION: &str = "resubmit_malformed_intents";
/// The most malformed intents that one request selects, and the most ids that it may name.
pub const MAX_INTENTS_PER_REQUEST: usize = 10_000;
/// The most intents that are appended before their rows are marked, in one transaction.
pub const CHUNK_INTENTS: usize = 100;
/// The time after which a request by HTTP or from the console ends between two chunks; another one continues.
pub const MAX_REQUEST_TIME: Duration = Duration::from_secs(4);

/// The malformed intents that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResubmitSelection {
    /// Those of the intents stream with these entry ids, at most [`MAX_INTENTS_PER_REQUEST`].
    Ids(Vec<String>),
    /// Those that the list shows and that were not resubmitted yet.
    Filter(MalformedFilter),
}

/// The reason for which an intent is not resubmitted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// Its key belongs to another intent.
    Conflict,
    /// Not all of its fields were kept, or they were erased.
    NotWhole,
    /// It was resubmitted before.
    Resubmitted,
    /// Its entry is in a stream that the service does not read.
    OtherStream,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Conflict, Self::NotWhole, Self::Resubmitted, Self::OtherStream];

    /// The spelling in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "idempotency_conflict",
            Self::NotWhole => "fields_not_kept",
            Self::Resubmitted => "resubmitted_before",
            Self::OtherStream => "other_stream",
        }
    }

    /// The reason for a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Conflict => "its key belongs to another intent, so it would be in conflict again",
            Self::NotWhole => {
                "not all of its fields were kept: it was too large, or named a user who was erased"
            }
            Self::Resubmitted => "it was resubmitted before",
            Self::OtherStream => "its entry is of a stream that the service does not read",
        }
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

fn refusal_schema(_: &mut SchemaGenerator) -> Schema {
    one_of(Refusal::ALL.map(Refusal::as_str))
}

/// A malformed intent that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResubmitTarget {
    /// Key of its row.
    pub key: MalformedKey,
    /// The rule that it broke.
    pub failure_code: String,
    /// The producer, as received.
    pub producer: String,
    /// True if all of its fields were kept.
    pub is_whole: bool,
    /// True if it was resubmitted before.
    pub is_resubmitted: bool,
    /// True if its entry is of the stream that the service reads.
    pub is_of_stream: bool,
}

impl ResubmitTarget {
    /// The target of a row, if the service reads `stream`. All of its fields count as kept.
    pub fn new(row: MalformedSummary, stream: &str) -> Self {
        Self {
            is_of_stream: row.key.stream == stream,
            is_resubmitted: row.resubmitted_at.is_some(),
            is_whole: true,
            failure_code: row.failure_code,
            producer: row.producer,
            key: row.key,
        }
    }

    /// The reason for which it is not resubmitted; `None` if it may be.
    pub fn refusal(&self) -> Option<Refusal> {
        if self.is_resubmitted {
            Some(Refusal::Resubmitted)
        } else if !self.is_of_stream {
            Some(Refusal::OtherStream)
        } else if self.failure_code == FailureCode::IdempotencyConflict.as_str() {
            Some(Refusal::Conflict)
        } else {
            (!self.is_whole).then_some(Refusal::NotWhole)
        }
    }
}

/// The malformed intents that a request selects, the newest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResubmitTargets {
    /// At most [`MAX_INTENTS_PER_REQUEST`].
    pub targets: Vec<ResubmitTarget>,
    /// Ids without a malformed intent.
    pub unknown: Vec<String>,
    /// The end of the filter with which another request continues; `None` if this one selects all that match.
    pub continue_before: Option<Timestamp>,
}

/// Malformed intents of a producer with one code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ResubmitGroup {
    /// The rule that they broke.
    pub code: String,
    /// The producer, as received.
    pub producer: String,
    /// Their number.
    pub count: u64,
}

/// A malformed intent that is not resubmitted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RefusedIntent {
    /// The id of its entry.
    pub stream_entry_id: String,
    /// The reason.
    #[schemars(schema_with = "refusal_schema")]
    pub reason: Refusal,
}

/// The effect that a request would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ResubmitPlan {
    /// Number of intents that would be resubmitted.
    #[serde(flatten, serialize_with = "ResubmitCount::serialize")]
    #[schemars(with = "ResubmitCount")]
    pub count: Counted,
    /// These intents by code and producer, the most frequent first.
    pub by: Vec<ResubmitGroup>,
    /// The entry ids of the first of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<String>,
    /// Number of selected intents that would be refused.
    pub refused: u64,
    /// The first of them, with the reason.
    #[schemars(length(max = PLAN_IDS))]
    pub first_refused: Vec<RefusedIntent>,
    /// Ids without a malformed intent.
    pub unknown: Vec<String>,
}

counted_form!(
    ResubmitCount,
    "How many intents would be resubmitted.",
    count,
    count_capped,
    "There may be more than `count`; another request continues with them."
);

/// An intent that was resubmitted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ResubmittedIntent {
    /// The id of its former entry.
    pub stream_entry_id: String,
    /// The id of its new entry.
    pub resubmitted_entry_id: String,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct ResubmitReport {
    /// Number of intents that were resubmitted.
    pub resubmitted: u64,
    /// The first of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<ResubmittedIntent>,
    /// Number of selected intents that were refused, or deleted or resubmitted by others meanwhile.
    pub refused: u64,
    /// Ids without a malformed intent.
    pub unknown: Vec<String>,
    /// True if some are left for another request.
    pub has_more: bool,
    /// The `recorded_before` with which the other request continues; `null` if it takes the same filter or
    /// the same ids.
    pub continue_before: Option<Timestamp>,
}

impl ResubmitTargets {
    /// The plan of a request that selects these.
    pub fn plan(&self) -> ResubmitPlan {
        let (mut groups, mut first, mut first_refused) = (BTreeMap::<_, u64>::new(), Vec::new(), Vec::new());
        let (mut count, mut refused) = (0, 0);
        for target in &self.targets {
            let stream_entry_id = target.key.entry_id.clone();
            match target.refusal() {
                None => {
                    count += 1;
                    *groups.entry((target.failure_code.clone(), target.producer.clone())).or_default() += 1;
                    first.push(stream_entry_id);
                }
                Some(reason) => {
                    refused += 1;
                    first_refused.push(RefusedIntent { stream_entry_id, reason });
                }
            }
        }
        first.truncate(PLAN_IDS);
        first_refused.truncate(PLAN_IDS);
        let group = |((code, producer), count)| ResubmitGroup { code, producer, count };
        let mut by: Vec<ResubmitGroup> = groups.into_iter().map(group).collect();
        by.sort_by_key(|group| std::cmp::Reverse(group.count));
        let count = Counted { count, capped: self.continue_before.is_some() };
        ResubmitPlan { count, by, first, refused, first_refused, unknown: self.unknown.clone() }
    }
}

impl ResubmitReport {
    /// Adds the intents of a committed chunk.
    pub fn add(&mut self, chunk: &[(MalformedKey, String)]) {
        self.resubmitted += chunk.len() as u64;
        let shown = PLAN_IDS - self.first.len();
        self.first.extend(chunk.iter().take(shown).map(|(key, id)| ResubmittedIntent {
            stream_entry_id: key.entry_id.clone(),
            resubmitted_entry_id: id.clone(),
        }));
    }
}

/// The operator and the request behind a resubmission, for `operator_actions`.
#[derive(Clone, Copy, Debug)]
pub struct ResubmitActor<'a> {
    /// The name of the operator's token, or `user@host`.
    pub name: &'a str,
    /// Id that the chunks of a request share.
    pub request_id: &'a str,
    /// The idempotency key of the request, if it has one.
    pub idempotency_key: Option<&'a str>,
    /// The reason, in the operator's words, if one was given.
    pub reason: Option<&'a str>,
}

/// `operator_actions.arguments` for a chunk: the filter or the ids, the idempotency key of the request, and
/// the reason.
pub fn arguments(
    selection: &ResubmitSelection,
    chunk: &[(MalformedKey, String)],
    actor: ResubmitActor<'_>,
) -> Value {
    let mut arguments = match selection {
        ResubmitSelection::Filter(filter) => {
            let conditions = [
                ("code", filter.code.clone()),
                ("producer", filter.producer.clone()),
                ("idempotency_key", filter.idempotency_key.clone()),
                ("recorded_after", filter.recorded_after.map(|at| at.to_string())),
                ("recorded_before", filter.recorded_before.map(|at| at.to_string())),
            ];
            let given = conditions.into_iter().filter_map(|(name, value)| Some((name, value?)));
            json!({ "filter": given.collect::<BTreeMap<_, _>>() })
        }
        ResubmitSelection::Ids(_) => {
            json!({ "ids": chunk.iter().map(|(key, _)| key.entry_id.as_str()).collect::<Vec<_>>() })
        }
    };
    for (name, value) in [("idempotency_key", actor.idempotency_key), ("reason", actor.reason)] {
        if let Some(value) = value {
            arguments[name] = json!(value);
        }
    }
    arguments
}

#[cfg(test)]
mod tests;
