//! Queries for notifications and their routes.

use ambient::Timestamp;
use schemars::{JsonSchema, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::cursor::{Place, Query};
use crate::document::inline_schema;
use crate::personal::{Sight, may_be_address};
use crate::receipt::ReceiptStatus;
use crate::record::{NotificationId, RecordCursor};
use crate::route::RouteStatus;

/// The most recipients that a notification in a list names.
pub const LISTED_RECIPIENTS: usize = 3;

/// Filter for notifications; a field that is `None` does not restrict the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotificationFilter {
    /// Producer of the notification.
    pub producer: Option<String>,
    /// Type of the notification.
    pub notification_type: Option<String>,
    /// State of at least one route.
    pub status: Option<RouteStatus>,
    /// Highest status that the consumer of at least one route reported.
    pub receipt: Option<ReceiptStatus>,
    /// A recipient: a user, by id, or an administrator, by address.
    pub recipient: Option<String>,
    /// True if `recipient` is matched with user ids only, for a reader who must not learn administrators'
    /// addresses.
    pub users_only: bool,
    /// Idempotency key.
    pub idempotency_key: Option<String>,
    /// Earliest time of acceptance, inclusive.
    pub accepted_after: Option<Timestamp>,
    /// Latest time of acceptance, exclusive.
    pub accepted_before: Option<Timestamp>,
}

impl NotificationFilter {
    /// The filter for a reader with this sight; `None` if the reader may not look for this recipient, because
    /// the text may be an address. Only a reader who sees addresses finds administrators.
    #[must_use]
    pub fn sought_by(self, sight: Sight) -> Option<Self> {
        let is_refused = sight == Sight::Masked && self.recipient.as_deref().is_some_and(may_be_address);
        (!is_refused).then_some(Self { users_only: sight != Sight::Whole, ..self })
    }
}

impl Query for NotificationFilter {
    const LIST: &'static str = "notifications";

    fn conditions(&self) -> Vec<Option<String>> {
        let mut conditions = vec![
            self.producer.clone(),
            self.notification_type.clone(),
            self.status.map(|status| status.as_str().to_owned()),
            self.recipient.clone(),
            self.idempotency_key.clone(),
            self.accepted_after.map(|at| at.to_string()),
            self.accepted_before.map(|at| at.to_string()),
        ];
        // Without a receipt the cursors equal those of versions that lacked this condition.
        conditions.extend(self.receipt.map(|status| Some(status.as_str().to_owned())));
        conditions
    }
}

impl Place for RecordCursor {
    type Filter = NotificationFilter;

    fn parts(&self) -> (Timestamp, Vec<&str>) {
        (self.accepted_at, vec![self.notification_id.as_str()])
    }

    fn from_parts(accepted_at: Timestamp, texts: Vec<String>) -> Option<Self> {
        let [notification_id] = <[String; 1]>::try_from(texts).ok()?;
        Some(Self { accepted_at, notification_id: notification_id.into() })
    }
}

/// The number of routes of a notification in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteCounts([u64; RouteStatus::ALL.len()]);

impl RouteCounts {
    /// Adds `routes` to the count of `status`.
    pub fn add(&mut self, status: RouteStatus, routes: u64) {
        for (counted, sum) in RouteStatus::ALL.into_iter().zip(&mut self.0) {
            *sum += if counted == status { routes } else { 0 };
        }
    }

    /// The states that have a route, with their counts.
    pub fn iter(self) -> impl Iterator<Item = (RouteStatus, u64)> {
        RouteStatus::ALL.into_iter().zip(self.0).filter(|(_, routes)| *routes > 0)
    }
}

impl Serialize for RouteCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

inline_schema!(RouteCounts, {
    let count = json!({"type": "integer", "minimum": 1});
    let counts: Map<String, Value> =
        RouteStatus::ALL.iter().map(|status| (status.as_str().to_owned(), count.clone())).collect();
    json_schema!({"type": "object", "properties": counts})
});

/// A notification in a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct NotificationSummary {
    /// Id of the notification.
    pub notification_id: NotificationId,
    /// A type of the catalogue, as it was at acceptance.
    pub notification_type: String,
    /// Producer of the notification.
    pub producer: String,
    /// `user` or `admin_email`.
    pub audience_kind: String,
    /// The key that the producer chose.
    pub idempotency_key: String,
    /// Number of users that it is sent to; 0 for administrators.
    pub recipients: u64,
    /// The first of these users.
    #[schemars(length(max = LISTED_RECIPIENTS))]
    pub first_recipient_user_ids: Vec<String>,
    /// Time of acceptance.
    pub accepted_at: Timestamp,
    /// Time of the event, according to the producer.
    pub occurred_at: Timestamp,
    /// Number of routes by state; a state that no route has is left out.
    pub routes: RouteCounts,
}

impl NotificationSummary {
    /// Its place in the list.
    pub fn place(&self) -> RecordCursor {
        RecordCursor { accepted_at: self.accepted_at, notification_id: self.notification_id.clone() }
    }

    /// The recipients for a person: the first of them, and the number of the others.
    pub fn recipients_text(&self) -> String {
        let named = self.first_recipient_user_ids.join(", ");
        match self.recipients.saturating_sub(self.first_recipient_user_ids.len() as u64) {
            0 if self.recipients == 0 => "administrators".to_owned(),
            0 => named,
            others => format!("{named} and {others} more"),
        }
    }
}
