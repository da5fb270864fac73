//! The outcome of the intents with an idempotency key.

use ambient::Timestamp;
use domain::query::{IntentOutcome, IntentTrace};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::accepted::AcceptedRoute;

/// The state of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IntentState {
    Accepted,
    Conflict,
    Malformed,
    InProgress,
    Unread,
    Unknown,
}

impl IntentState {
    pub(crate) const ALL: [Self; 6] =
        [Self::Accepted, Self::Conflict, Self::Malformed, Self::InProgress, Self::Unread, Self::Unknown];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Conflict => "conflict",
            Self::Malformed => "malformed",
            Self::InProgress => "in_progress",
            Self::Unread => "unread",
            Self::Unknown => "unknown",
        }
    }
}

impl From<IntentOutcome<'_>> for IntentState {
    fn from(outcome: IntentOutcome<'_>) -> Self {
        match outcome {
            IntentOutcome::Accepted(_) => Self::Accepted,
            IntentOutcome::Conflict(_) => Self::Conflict,
            IntentOutcome::Malformed(_) => Self::Malformed,
        }
    }
}

fn state_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": IntentState::ALL.map(IntentState::as_str)})
}

/// The outcome of the intents with a key. `notification_id`, `accepted_at` and `routes` are those of the
/// notification that has the key. The members after them are those of the newest intent that was refused, if
/// `state` is `conflict` or `malformed`. A member without a value is `null`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "IntentOutcome")]
pub(crate) struct KeyOutcome<'a> {
    /// The outcome of the newest intent with the key that left a trace: `accepted`; `conflict`: the key
    /// belonged to another intent; `malformed`. Without a trace, `in_progress`: a request with the key is
    /// being processed; `unread`: the stream has entries without an outcome, and one of them may have the
    /// key; `unknown`: none has.
    #[schemars(schema_with = "state_schema")]
    state: &'static str,
    /// The notification that has the key.
    notification_id: Option<&'a str>,
    /// When it was accepted.
    accepted_at: Option<Timestamp>,
    /// Its routes, as they are now.
    routes: Option<Vec<AcceptedRoute<'a>>>,
    /// The first rule that the refused intent breaks.
    code: Option<&'a str>,
    /// A description of the violation, for a person. `null` to a producer that may not send the type that the
    /// entry names, or if no type has the name: then the entry may be another producer's.
    detail: Option<&'a str>,
    /// The id of its stream entry, by which it is among the malformed intents.
    stream_entry_id: Option<&'a str>,
    /// When it was refused.
    recorded_at: Option<Timestamp>,
}

impl<'a> KeyOutcome<'a> {
    /// Renders the outcome, with or without the content of the refused entry. The notification is one without
    /// addresses.
    pub(crate) fn new(state: IntentState, trace: &'a IntentTrace, with_content: bool) -> Self {
        let notification = trace.notification.as_ref();
        let is_refused = matches!(state, IntentState::Conflict | IntentState::Malformed);
        let refused = trace.malformed.as_ref().filter(|_| is_refused);
        Self {
            state: state.as_str(),
            notification_id: notification.map(|found| found.notification_id.as_str()),
            accepted_at: notification.map(|found| found.accepted_at),
            routes: notification.map(|found| found.routes.iter().map(AcceptedRoute::from).collect()),
            code: refused.map(|row| row.failure_code.as_str()),
            detail: refused.filter(|_| with_content).map(|row| &*row.failure_message),
            stream_entry_id: refused.map(|row| row.key.entry_id.as_str()),
            recorded_at: refused.map(|row| row.recorded_at),
        }
    }
}
