//! Intents whose callers wait for the outcome: their outcomes, and the decision about a group of them.
//!
//! The rules are those of the stream ([`crate::accept`]), with three differences. Submissions have no order,
//! so none waits for another: if the recipients of one could not be looked up, that one fails and the others
//! are accepted. The id of the record is generated here and not by Redis. Nothing is stored about a
//! submission that is not accepted: its caller receives the outcome.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::accept::{Verdict, decide_new};
use crate::intent::Intent;
use crate::malformed_intent::Rejection;
use crate::outcome::Acceptance;
use crate::policy::{Policy, Schedule};
use crate::recipient::Lookup;
use crate::record::NotificationId;
use crate::trace_parent::TraceParent;

/// A submitted intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// The intent.
    pub intent: Intent,
    /// True if the response is stored under the intent's key, so that a repeated request receives the same
    /// bytes. Until then the key is claimed, and another request with it receives
    /// [`SubmissionOutcome::InProgress`].
    pub stores_response: bool,
    /// Trace of the request, if its header contains one. It is not stored.
    pub request_trace: Option<TraceParent>,
    /// Resources that the request occupies.
    pub held: Held,
}

/// Resources that a request occupies, for example a part of a budget, until its submission is decided, even
/// if its caller stops waiting earlier. All values are equal. Clones share the resources.
#[derive(Clone, Default)]
pub struct Held(Option<Arc<dyn Any + Send + Sync>>);

impl Held {
    /// Holds `occupied` until the last clone is dropped.
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

/// The response to a request, stored and sent byte for byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredResponse {
    /// HTTP status.
    pub status: u16,
    /// Body, JSON.
    pub body: Vec<u8>,
}

/// The outcome of a submission.
#[derive(Clone, PartialEq, Debug)]
pub enum SubmissionOutcome {
    /// Accepted and committed by this request.
    Accepted {
        /// Id of the new record.
        notification_id: NotificationId,
        /// Time of acceptance.
        accepted_at: Timestamp,
        /// Number of routes.
        routes: usize,
        /// The response that was stored with it, if the submission stores its response.
        response: Option<StoredResponse>,
    },
    /// Accepted by an earlier request with the same key and the same intent, whose response is still stored.
    Replayed(StoredResponse),
    /// Accepted before; the response is not stored.
    Duplicate(AcceptedRequest),
    /// Conflict: the key belongs to this notification, which came from another intent.
    Conflict(NotificationId),
    /// Another request with this key is being processed. It ends after this time at the latest.
    InProgress(Duration),
    /// The intent breaks a rule: a recipient does not exist, or PostgreSQL cannot store the content.
    Rejected(Rejection),
    /// Acceptance is not confirmed, for this reason.
    Unavailable(String),
}

/// The earlier accepted intent to which a key belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptedRequest {
    /// Id of its record.
    pub notification_id: NotificationId,
    /// Fingerprint that distinguishes a duplicate from a conflict.
    pub fingerprint: String,
    /// Time of acceptance.
    pub accepted_at: Timestamp,
    /// Number of routes.
    pub routes: usize,
}

impl SubmissionOutcome {
    /// True if the intent is not accepted because of a lookup in the directory, or because the lookup failed.
    /// The key must then be looked up first: the outcome of a replay never depends on the present directory.
    pub fn depends_on_directory(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::Unavailable(_))
    }

    /// The outcome for the caller of an intent whose `acceptance` is committed, with `response` if it is
    /// stored.
    pub fn accepted(acceptance: &Acceptance, response: Option<StoredResponse>) -> Self {
        Self::Accepted {
            notification_id: acceptance.record.notification_id.clone(),
            accepted_at: acceptance.record.content.accepted_at,
            routes: acceptance.routes.len(),
            response,
        }
    }
}

/// Decides one submission from the lookups of its recipients in `users`; `holder` is the owner of its key, if
/// the key is taken. No two submissions of a group have the same key. Returns what is to be committed before
/// the caller receives [`SubmissionOutcome::Accepted`], or the outcome as `Err` if nothing is written.
pub fn decide(
    intent: &Intent,
    holder: Option<&AcceptedRequest>,
    users: &HashMap<String, Lookup>,
    new_id: NotificationId,
    policy: &Policy,
    schedule: Schedule,
) -> Result<Acceptance, SubmissionOutcome> {
    if let Some(holder) = holder {
        return Err(match holder.fingerprint == intent.fingerprint {
            true => SubmissionOutcome::Duplicate(holder.clone()),
            false => SubmissionOutcome::Conflict(holder.notification_id.clone()),
        });
    }
    match decide_new(intent, users, new_id, policy, schedule) {
        Verdict::Accepted(acceptance) => Ok(acceptance),
        Verdict::NotFound(rejection) => Err(SubmissionOutcome::Rejected(rejection)),
        Verdict::Waiting(cause) => Err(SubmissionOutcome::Unavailable(cause)),
        Verdict::NotLookedUp => {
            Err(SubmissionOutcome::Unavailable("a recipient was not looked up".to_owned()))
        }
    }
}
