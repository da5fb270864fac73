//! The parts of responses: values of the domain as JSON, with times in RFC 3339 with microseconds, and `null`
//! for absent values.
//!
//! Each type is serialised as it is, and its schema in the OpenAPI document is derived from it; the comments
//! of its members are the descriptions there. Operators' commands print the same documents.

mod batch;
mod changes;
mod dead_letters;
mod intent_outcome;
mod malformed;
mod notifications;
mod receipts;
mod status;

use std::borrow::Cow;

use ambient::Timestamp;
use domain::query::Counted;
use domain::receipt::ReceiptStatus;
use domain::route::{Channel, RouteStatus};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::Value;

pub(crate) use batch::{ElementResult, MAX_BATCH_RECIPIENTS, MAX_INTENTS, Results};
pub use changes::{Discarded, Planned, Replayed};
pub use dead_letters::{DeadLetter, DeadLetters};
pub(crate) use intent_outcome::{IntentState, KeyOutcome};
pub use malformed::{MalformedIntent, MalformedIntentSummary, MalformedIntents, MalformedIntentsPage};
pub(crate) use notifications::{Accepted, AcceptedElement, OUTCOME_ACCEPTED, OUTCOME_DUPLICATE};
pub use notifications::{Notification, NotificationSummary, Notifications};
pub(crate) use receipts::{OUTCOME_INVALID, ReceiptResult, ReceiptResults};
pub use status::ServiceStatus;

/// A time, as RFC 3339 in UTC with microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "RFC 3339, in UTC, with microseconds.",
            "type": "string",
            "format": "date-time",
            "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$",
            "examples": ["2026-04-02T09:21:40.123456Z"],
        })
    }
}

/// Parses JSON that PostgreSQL stores as text; returns a string if another program wrote something that is
/// not JSON.
fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Skips members that are serialised only if they are true.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn capped(counted: Counted) -> (u64, bool) {
    (counted.count, counted.capped)
}

pub(crate) fn channel_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": Channel::ALL.map(Channel::as_str)})
}

pub(crate) fn status_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": RouteStatus::ALL.map(RouteStatus::as_str)})
}

pub(crate) fn receipt_status_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ReceiptStatus::ALL.map(ReceiptStatus::as_str)})
}
