//! One notification with its routes.

use std::sync::Arc;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::dead_letters::{DeadLetter, Discarded};
use crate::document::{Guarded, guarded_json, guarded_object_schema};
use crate::explanation::{Obstacles, explain};
use crate::hold::RouteHold;
use crate::receipt::Receipt;
use crate::record::{NotificationId, Record};
use crate::route::{Channel, FailedAttempt, RouteKey, RouteStatus, route_numbers};

/// A notification with all its routes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Notification {
    /// Id of the notification.
    pub notification_id: NotificationId,
    /// A type of the catalogue.
    pub notification_type: String,
    /// The producer that sent it.
    pub producer: String,
    /// `user` or `admin_email`.
    pub audience_kind: &'static str,
    /// Sorted, without repeats; empty for `admin_email`.
    pub recipient_user_ids: Vec<String>,
    /// The payload as it was accepted, in normal form; `null` to a viewer who may not see personal data.
    #[serde(rename = "payload", serialize_with = "guarded_json")]
    #[schemars(schema_with = "guarded_object_schema")]
    pub payload_json: Guarded,
    /// The key that the producer chose.
    pub idempotency_key: String,
    /// Equal fingerprints under one key are a duplicate, different ones a conflict. `null` with the payload:
    /// payloads could be tried until the fingerprint is the same.
    pub request_fingerprint: Guarded,
    /// Empty if none was given.
    pub request_id: String,
    /// Empty if none was given.
    pub trace_id: String,
    /// Time of the event, according to the producer.
    pub occurred_at: Timestamp,
    /// Time of acceptance.
    pub accepted_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Time until which the key is reserved at least.
    pub idempotency_expires_at: Timestamp,
    /// Its routes, ordered by id.
    pub routes: Vec<Route>,
    /// The present obstacles of its live routes; `None` if they are not known, or not for the reader.
    #[serde(skip)]
    pub obstacles: Option<Obstacles>,
}

impl Notification {
    /// The notification of a record, with its routes in their order. The routes are numbered, and not yet
    /// explained.
    pub fn new(record: Record, updated_at: Timestamp, mut routes: Vec<Route>) -> Self {
        let numbers = route_numbers(routes.iter().map(|route| &*route.route_id));
        for (route, number) in routes.iter_mut().zip(numbers) {
            route.route_number = number;
            route.complete_failed_attempts();
        }
        let content = Arc::unwrap_or_clone(record.content);
        Self {
            notification_id: record.notification_id,
            notification_type: content.notification_type,
            producer: record.idempotency_key.producer,
            audience_kind: record.audience_kind,
            recipient_user_ids: record.recipient_user_ids,
            payload_json: content.payload_json.into(),
            idempotency_key: record.idempotency_key.key,
            request_fingerprint: record.fingerprint.into(),
            request_id: content.request_id,
            trace_id: content.trace_id,
            occurred_at: content.occurred_at,
            accepted_at: content.accepted_at,
            updated_at,
            idempotency_expires_at: record.idempotency_expires_at,
            routes,
            obstacles: None,
        }
    }

    /// Explains each route as it is at `now`.
    #[must_use]
    pub fn explained(mut self, now: Timestamp) -> Self {
        for route in &mut self.routes {
            let obstacle = self.obstacles.as_ref().and_then(|of| of.of(&self.notification_id, route));
            route.explanation = explain(route, now, obstacle);
        }
        self
    }

    /// The key of one of its routes.
    pub fn key_of(&self, route: &Route) -> RouteKey {
        RouteKey { notification_id: self.notification_id.clone(), route_id: route.route_id.to_string() }
    }

    /// The route with this key, if it is one of its routes.
    pub fn route(&self, key: &RouteKey) -> Option<&Route> {
        let is_own = self.notification_id == key.notification_id;
        self.routes.iter().find(|route| is_own && *route.route_id == *key.route_id)
    }

    /// The dead letter of the route `key`; `None` if the notification has no such route, or the route is not
    /// a dead letter.
    pub fn dead_letter(&self, key: &RouteKey) -> Option<DeadLetter> {
        let route = self.route(key)?;
        let created_at = route.dead_lettered_at.filter(|_| route.status == RouteStatus::DeadLetter)?;
        Some(DeadLetter {
            key: key.clone(),
            notification_type: self.notification_type.clone(),
            channel: route.channel,
            recipient_ref: route.recipient_ref.to_string(),
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

/// A resend of a published route by an operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RouteResend {
    /// The time at which the operator had it sent again.
    pub at: Timestamp,
    /// The operator; `null` to a producer.
    pub actor: Guarded,
    /// The operator's reason, may be empty; `null` to a producer.
    pub reason: Guarded,
    /// The id of the outbound entry that the new one replaces.
    pub replaced_entry_id: String,
}

/// A route: one recipient on one channel, with its own retry budget.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Route {
    /// `<channel>:<recipient_ref>`; `null` to a producer if it holds an administrator's address, for which
    /// `****` stands to a viewer who may not see personal data.
    pub route_id: Guarded,
    /// Its place among the routes of the notification by their ids, from 1 on.
    #[schemars(range(min = 1))]
    pub route_number: usize,
    /// Channel of the route.
    pub channel: Channel,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`; `null` to a producer if it holds
    /// an administrator's address, for which
    /// `****` stands to a viewer who may not see personal data.
    pub recipient_ref: Guarded,
    /// State of the route.
    pub status: RouteStatus,
    /// Failed attempts so far; after a resend, all attempts before it count, too.
    pub attempt_count: u32,
    /// An attempt that fails at this count makes a dead letter.
    pub max_attempts: u32,
    /// Due time; `null` unless the status is `pending` or `failed`. The last time that can be written if an
    /// operator parked the route.
    pub next_attempt_at: Option<Timestamp>,
    /// The address of an e-mail route, else empty; `null` to a producer and to a viewer who may not see
    /// personal data.
    pub resolved_email: Guarded,
    /// The recipient's language.
    pub resolved_locale: String,
    /// The cause of the last failed attempt, or of the skipping: `cancelled` if an operator cancelled it;
    /// else empty.
    pub last_error_classification: String,
    /// Message of the last failed attempt, or the operator that cancelled it and the reason; else empty. A
    /// producer does not learn who.
    pub last_error_message: String,
    /// Time of the last failed attempt.
    pub last_error_at: Option<Timestamp>,
    /// The failed attempts, the oldest first: the newest `max_attempts` of them. Of those that a release
    /// before 0.3.0 recorded only the last is known.
    pub failed_attempts: Vec<FailedAttempt>,
    /// Time of acceptance of the intent.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Time of the last publication.
    pub published_at: Option<Timestamp>,
    /// Time at which the route became a dead letter.
    pub dead_lettered_at: Option<Timestamp>,
    /// Time at which the route was skipped.
    pub skipped_at: Option<Timestamp>,
    /// The id of its last entry in the outbound stream; empty if it was never published.
    pub published_entry_id: String,
    /// Possible action of an operator; empty unless the route is a dead letter.
    #[serde(skip)]
    pub recovery_hint: String,
    /// The discard, if an operator discarded the dead letter.
    #[serde(skip)]
    pub discarded: Option<Discarded>,
    /// The last resend by an operator; `null` if there was none.
    pub resend: Option<RouteResend>,
    /// The hold that keeps it from being published; `null` if there is none.
    pub hold: Option<RouteHold>,
    /// The report of its consumer; `null` if there is none.
    pub receipt: Option<Receipt>,
    /// An explanation of its state, and of the next change and its time.
    pub explanation: String,
}

impl Route {
    /// The failed attempts and the budget in words: `2 of 7`. The numbers of a route that was sent again
    /// include its publication, so only the attempts that are kept count.
    pub fn failures(&self) -> String {
        match self.resend {
            None => format!("{} of {}", self.attempt_count, self.max_attempts),
            Some(_) => self.failed_attempts.len().to_string(),
        }
    }

    /// Adds the last failure if it is not among the kept attempts: a release before 0.3.0 recorded it.
    fn complete_failed_attempts(&mut self) {
        let Some(at) = self.last_error_at else { return };
        // A cancellation replaced the cause of the last failure.
        if self.status != RouteStatus::Skipped && self.failed_attempts.last().is_none_or(|last| last.at < at)
        {
            self.failed_attempts.push(FailedAttempt {
                // After a replay the number is no longer known, and was the budget.
                attempt: if self.attempt_count > 0 { self.attempt_count } else { self.max_attempts },
                at,
                classification: self.last_error_classification.clone(),
                message: self.last_error_message.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::explanation::tests::pending;

    #[test]
    fn the_last_failure_is_shown_also_if_no_attempt_was_kept() {
        let at = |micros| Timestamp::from_micros(micros).expect("in range");
        let shown = |mut route: Route| {
            route.complete_failed_attempts();
            route.failed_attempts
        };
        let last = FailedAttempt { attempt: 2, at: at(9), classification: "c".into(), message: "m".into() };
        let legacy = Route {
            attempt_count: 2,
            last_error_at: Some(at(9)),
            last_error_classification: "c".into(),
            last_error_message: "m".into(),
            ..pending()
        };
        assert_eq!(shown(pending()), []);
        assert_eq!(shown(legacy.clone()), std::slice::from_ref(&last));
        let first = FailedAttempt { attempt: 1, at: at(5), ..last.clone() };
        let mixed = Route { failed_attempts: vec![first.clone()], ..legacy.clone() };
        assert_eq!(shown(mixed), [first, last.clone()]);
        assert_eq!(shown(Route { failed_attempts: vec![last.clone()], ..legacy.clone() }), from_ref(&last));
        let replayed = Route { attempt_count: 0, ..legacy.clone() };
        assert_eq!(shown(replayed), [FailedAttempt { attempt: 7, ..last }]);
        assert_eq!(shown(Route { status: RouteStatus::Skipped, ..legacy }), []);
    }
}
