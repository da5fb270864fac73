//! Notifications with their routes.

use ambient::Timestamp;

use super::cursor::{Place, Query};
use super::dead_letters::{DeadLetter, Discarded};
use crate::receipt::Receipt;
use crate::record::{NotificationId, Record, RecordCursor};
use crate::route::{Channel, RouteKey, RouteStatus};

/// Which notifications to list; what is `None` selects nothing out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NotificationFilter {
    /// Sent by this producer.
    pub producer: Option<String>,
    /// Of this type.
    pub notification_type: Option<String>,
    /// With at least one route in this state.
    pub status: Option<RouteStatus>,
    /// To this user, by id, or to this administrator, by address.
    pub recipient: Option<String>,
    /// Whether `recipient` is a user's id only: a producer learns no administrator's address.
    pub users_only: bool,
    /// With this idempotency key.
    pub idempotency_key: Option<String>,
    /// Accepted at this time or later.
    pub accepted_after: Option<Timestamp>,
    /// Accepted before this time.
    pub accepted_before: Option<Timestamp>,
}

impl Query for NotificationFilter {
    const LIST: &'static str = "notifications";

    fn conditions(&self) -> Vec<Option<String>> {
        vec![
            self.producer.clone(),
            self.notification_type.clone(),
            self.status.map(|status| status.as_str().to_owned()),
            self.recipient.clone(),
            self.idempotency_key.clone(),
            self.accepted_after.map(|at| at.to_string()),
            self.accepted_before.map(|at| at.to_string()),
        ]
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

/// How many routes of a notification are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteCounts([u64; RouteStatus::ALL.len()]);

impl RouteCounts {
    /// Counts `routes` more in `status`.
    pub fn add(&mut self, status: RouteStatus, routes: u64) {
        for (counted, sum) in RouteStatus::ALL.into_iter().zip(&mut self.0) {
            *sum += if counted == status { routes } else { 0 };
        }
    }

    /// The states that have a route, with their number.
    pub fn iter(self) -> impl Iterator<Item = (RouteStatus, u64)> {
        RouteStatus::ALL.into_iter().zip(self.0).filter(|(_, routes)| *routes > 0)
    }
}

/// A notification in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotificationSummary {
    /// Which one.
    pub notification_id: NotificationId,
    /// A type of the catalogue, as it was at acceptance.
    pub notification_type: String,
    /// Who sent it.
    pub producer: String,
    /// `user` or `admin_email`.
    pub audience_kind: String,
    /// The key that the producer chose.
    pub idempotency_key: String,
    /// When this service took responsibility.
    pub accepted_at: Timestamp,
    /// When the producer says that it happened.
    pub occurred_at: Timestamp,
    /// Its routes.
    pub routes: RouteCounts,
}

impl NotificationSummary {
    /// Its place in the list.
    pub fn place(&self) -> RecordCursor {
        RecordCursor { accepted_at: self.accepted_at, notification_id: self.notification_id.clone() }
    }
}

/// A notification, whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotificationDetail {
    /// The record.
    pub record: Record,
    /// `records.updated_at`.
    pub updated_at: Timestamp,
    /// Its routes, by id.
    pub routes: Vec<StoredRoute>,
}

impl NotificationDetail {
    /// The dead letter of one of its routes; `None` if it has no such route, or the route is no dead letter.
    pub fn dead_letter(&self, key: &RouteKey) -> Option<DeadLetter> {
        let route = self.routes.iter().find(|route| route.key == *key)?;
        let created_at = route.dead_lettered_at.filter(|_| route.status == RouteStatus::DeadLetter)?;
        Some(DeadLetter {
            key: route.key.clone(),
            notification_type: self.record.content.notification_type.clone(),
            channel: route.channel,
            recipient_ref: route.recipient_ref.clone(),
            final_attempt_count: route.attempt_count,
            max_attempts: route.max_attempts,
            failure_classification: route.last_error_classification.clone(),
            failure_message: route.last_error_message.clone(),
            recovery_hint: route.recovery_hint.clone(),
            created_at,
            discarded: route.discarded.clone(),
        })
    }
}

/// A row of `routes`, with what `dead_letters` and `receipts` have about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRoute {
    /// Primary key.
    pub key: RouteKey,
    /// Its channel.
    pub channel: Channel,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`.
    pub recipient_ref: String,
    /// Its state.
    pub status: RouteStatus,
    /// Failed attempts so far.
    pub attempt_count: u32,
    /// Failed attempts that make a dead letter.
    pub max_attempts: u32,
    /// When it is, or was, due; set exactly while it is live. [`Timestamp::MAX`] if an operator parked it at
    /// `infinity`.
    pub next_attempt_at: Option<Timestamp>,
    /// The address, for the e-mail channel; empty otherwise.
    pub resolved_email: String,
    /// The recipient's language.
    pub resolved_locale: String,
    /// Of the last failed attempt, or why the route was skipped; else empty.
    pub last_error_classification: String,
    /// Of the last failed attempt; else empty.
    pub last_error_message: String,
    /// When the last attempt failed.
    pub last_error_at: Option<Timestamp>,
    /// When the intent was accepted.
    pub created_at: Timestamp,
    /// When the route was changed last.
    pub updated_at: Timestamp,
    /// When its entry was published.
    pub published_at: Option<Timestamp>,
    /// When it became a dead letter.
    pub dead_lettered_at: Option<Timestamp>,
    /// When it was skipped.
    pub skipped_at: Option<Timestamp>,
    /// The id of its entry in the outbound stream; empty if it is not published.
    pub published_entry_id: String,
    /// What an operator can do; empty unless it is a dead letter.
    pub recovery_hint: String,
    /// Set if it is a dead letter that an operator has discarded.
    pub discarded: Option<Discarded>,
    /// What its consumer reported.
    pub receipt: Option<Receipt>,
}
