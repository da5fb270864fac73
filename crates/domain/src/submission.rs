//! Intents whose callers wait for the outcome: what they are told, and how a group of them is decided.
//!
//! The rules are those of the stream ([`crate::accept`]). Three things differ. A submission has no place in
//! an order, so none waits for another: one whose recipients could not be looked up is answered so, and the
//! others are accepted. Its record's id is made here and not by Redis. And nothing is written about one that
//! is not accepted: its caller has the answer.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::accept::{Verdict, decide_new};
use crate::intent::Intent;
use crate::malformed::Rejection;
use crate::outcome::Acceptance;
use crate::policy::{Policy, Schedule};
use crate::recipient::Lookup;
use crate::record::{NotificationId, Record};
use crate::trace_parent::TraceParent;

/// An intent that was submitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// What is asked for.
    pub intent: Intent,
    /// Whether the answer is stored under the intent's key, so that a repeated request gets the same bytes.
    /// Meanwhile the key is claimed, and another request with it is told so.
    pub stores_answer: bool,
    /// The trace that the request belongs to, if its header says so. It is not stored.
    pub request_trace: Option<TraceParent>,
    /// What the request occupies.
    pub held: Held,
}

/// What a request occupies, for example a part of a budget, until its submission is decided: even if its
/// caller stops waiting before. All are equal. Clones share it.
#[derive(Clone, Default)]
pub struct Held(Option<Arc<dyn Any + Send + Sync>>);

impl Held {
    /// Holds `occupied`.
    pub fn new(occupied: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(occupied)))
    }
}

impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Held {}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.0.is_some()).finish()
    }
}

/// The answer to a request, as it is sent and stored: byte for byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, JSON.
    pub body: Vec<u8>,
}

/// What became of a submission.
#[derive(Clone, PartialEq, Debug)]
pub enum SubmissionOutcome {
    /// Accepted and committed now.
    Accepted {
        /// The id of the new record.
        notification_id: NotificationId,
        /// The time of acceptance.
        accepted_at: Timestamp,
        /// How many routes it has.
        routes: usize,
        /// The answer that was stored with it, for a submission that stores its answer.
        answer: Option<StoredAnswer>,
    },
    /// Accepted by an earlier request with the same key and the same intent, whose answer is still stored.
    Replayed(StoredAnswer),
    /// Accepted before; its answer is not stored.
    Duplicate(AcceptedRequest),
    /// The key belongs to this notification, which another intent became.
    Conflict(NotificationId),
    /// Another request with this key is being processed. It ends after this time at the latest.
    InProgress(Duration),
    /// It breaks a rule: a recipient that does not exist, or content that PostgreSQL does not take.
    Rejected(Rejection),
    /// Not known to be accepted, for this reason.
    Unavailable(String),
}

/// An intent that was accepted before and has a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptedRequest {
    /// The id of its record.
    pub notification_id: NotificationId,
    /// Tells a duplicate from a conflict.
    pub fingerprint: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// How many routes it has.
    pub routes: usize,
}

/// What is decided about one submission of a group.
#[derive(Clone, PartialEq, Debug)]
pub enum SubmissionDecision {
    /// It is accepted, once this is committed.
    Commit(Acceptance),
    /// Nothing is written; the caller is told this.
    Tell(SubmissionOutcome),
}

impl SubmissionDecision {
    /// Whether the intent is not accepted because of what the directory said, or could not say. Then its key
    /// must be looked up first: what becomes of a replay never depends on what the directory says today.
    pub fn directory_objects(&self) -> bool {
        matches!(self, Self::Tell(SubmissionOutcome::Rejected(_) | SubmissionOutcome::Unavailable(_)))
    }
}

impl SubmissionOutcome {
    /// What the caller of an intent is told whose `acceptance` is committed, together with `answer` if one is
    /// stored.
    pub fn accepted(acceptance: &Acceptance, answer: Option<StoredAnswer>) -> Self {
        Self::Accepted {
            notification_id: acceptance.record.notification_id.clone(),
            accepted_at: acceptance.record.content.accepted_at,
            routes: acceptance.routes.len(),
            answer,
        }
    }
}

/// Decides one submission, whose key belongs to `holder` if it is taken, from the answers about its
/// recipients in `users`. No two submissions of a group have the same key.
pub fn decide(
    intent: &Intent,
    holder: Option<&AcceptedRequest>,
    users: &HashMap<String, Lookup>,
    new_id: NotificationId,
    policy: &Policy,
    schedule: Schedule,
) -> SubmissionDecision {
    if let Some(holder) = holder {
        return SubmissionDecision::Tell(match holder.fingerprint == intent.fingerprint {
            true => SubmissionOutcome::Duplicate(holder.clone()),
            false => SubmissionOutcome::Conflict(holder.notification_id.clone()),
        });
    }
    let told = match decide_new(intent, users, new_id, policy, schedule) {
        Verdict::Accepted(acceptance) => return SubmissionDecision::Commit(acceptance),
        Verdict::NotFound(rejection) => SubmissionOutcome::Rejected(rejection),
        Verdict::Waiting(cause) => SubmissionOutcome::Unavailable(cause),
        Verdict::NotAsked => SubmissionOutcome::Unavailable("a recipient was not looked up".to_owned()),
    };
    SubmissionDecision::Tell(told)
}

/// The members of a request in which two intents under one key can differ.
pub const COMPARED_MEMBERS: [&str; 5] =
    ["notification_type", "audience_kind", "recipient_user_ids", "occurred_at_ms", "payload"];

/// In what an intent differs from the one that became `record`: [`COMPARED_MEMBERS`], in this order.
pub fn differences(intent: &Intent, record: &Record) -> Vec<&'static str> {
    let differs = [
        intent.notification_type != record.content.notification_type,
        intent.audience.kind().as_str() != record.audience_kind,
        intent.audience.users() != record.recipient_user_ids,
        intent.occurred_at != record.content.occurred_at,
        intent.payload_json != record.content.payload_json,
    ];
    COMPARED_MEMBERS
        .into_iter()
        .zip(differs)
        .filter(|(_, differs)| *differs)
        .map(|(member, _)| member)
        .collect()
}
