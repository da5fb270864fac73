//! Queries for operators' actions.

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::cursor::{Place, Query};
use crate::document::object_schema;
use crate::operations::OperatorActionId;

/// Filter for operators' actions; a field that is `None` does not restrict the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ActionFilter {
    /// The operator.
    pub actor: Option<String>,
    /// Name of the action.
    pub action: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
    /// Earliest time, inclusive.
    pub after: Option<Timestamp>,
    /// Latest time, exclusive.
    pub before: Option<Timestamp>,
}

impl Query for ActionFilter {
    const LIST: &'static str = "actions";

    fn conditions(&self) -> Vec<Option<String>> {
        let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
        vec![
            self.actor.clone(),
            self.action.clone(),
            self.request_id.clone(),
            time(self.after),
            time(self.before),
        ]
    }
}

/// An action's place in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionPlace {
    /// Time of the action.
    pub at: Timestamp,
    /// Primary key of the row, in decimal.
    id: String,
}

impl ActionPlace {
    /// The place of a row.
    pub fn new(at: Timestamp, id: OperatorActionId) -> Self {
        Self { at, id: id.0.to_string() }
    }

    /// Primary key of the row.
    pub fn id(&self) -> OperatorActionId {
        // Every place is made of a number.
        OperatorActionId(self.id.parse().unwrap_or(i64::MAX))
    }
}

impl Place for ActionPlace {
    type Filter = ActionFilter;

    fn parts(&self) -> (Timestamp, Vec<&str>) {
        (self.at, vec![&self.id])
    }

    fn from_parts(at: Timestamp, texts: Vec<String>) -> Option<Self> {
        let [id] = <[String; 1]>::try_from(texts).ok()?;
        Some(Self::new(at, OperatorActionId(id.parse().ok()?)))
    }
}

/// One transaction of an operator's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "OperatorAction")]
pub struct RecordedAction {
    /// Number of the row.
    #[serde(serialize_with = "number")]
    #[schemars(with = "i64")]
    pub id: OperatorActionId,
    /// Time of the action.
    pub at: Timestamp,
    /// The name of the operator's token, or `user@host`.
    pub actor: String,
    /// `replay_dead_letters`, `discard_dead_letters`, `cancel_routes`, `resend_routes`,
    /// `resubmit_malformed_intents`, `step_down`, `hold`, `release` or `erase_user`.
    pub action: String,
    /// The filter or the ids of this transaction, the idempotency key of the request, and what the action
    /// needs besides.
    #[schemars(schema_with = "object_schema")]
    pub arguments: Value,
    /// Number of changed rows.
    pub affected: u64,
    /// Id of the request, which its transactions share.
    pub request_id: String,
}

impl RecordedAction {
    /// Its place in the list.
    pub fn place(&self) -> ActionPlace {
        ActionPlace::new(self.at, self.id)
    }
}

fn number<S: serde::Serializer>(id: &OperatorActionId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(id.0)
}
