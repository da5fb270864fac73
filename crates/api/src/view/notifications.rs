//! Notifications and their routes.

use std::collections::BTreeMap;

use ambient::Timestamp;
use domain::explanation::explain;
use domain::outcome::Acceptance;
use domain::query::{self, NotificationDetail, StoredRoute};
use domain::route::{RouteStatus, Start};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::receipts::Receipt;
use super::{Time, channel_schema, json_of, status_schema};

/// The outcome of an intent that has become a notification now.
pub(crate) const OUTCOME_ACCEPTED: &str = "accepted";
/// The outcome of an intent that was accepted before.
pub(crate) const OUTCOME_DUPLICATE: &str = "duplicate";

fn outcome_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": [OUTCOME_ACCEPTED, OUTCOME_DUPLICATE]})
}

/// An intent that is accepted: committed, with its routes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Accepted<'a> {
    /// The id of the notification.
    notification_id: &'a str,
    /// `accepted`: it became a notification now. `duplicate`: it was accepted before, and nothing is changed.
    #[schemars(schema_with = "outcome_schema")]
    outcome: &'static str,
    /// When it was accepted.
    accepted_at: Time,
    /// Its routes: of a duplicate as they are now.
    routes: Vec<AcceptedRoute<'a>>,
}

/// One recipient on one channel.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AcceptedRoute<'a> {
    /// `<channel>:<recipient_ref>`; `null` if it holds an administrator's address.
    route_id: Option<&'a str>,
    /// Its place among the routes of the notification by their ids, from 1 on.
    #[schemars(range(min = 1))]
    route_number: usize,
    #[schemars(schema_with = "channel_schema")]
    channel: &'static str,
    /// `user:<user_id>`, or `config:<notification_type>` if no administrator is configured; `null` if it
    /// holds an administrator's address.
    recipient_ref: Option<&'a str>,
    #[schemars(schema_with = "status_schema")]
    status: &'static str,
}

/// The ids of routes, in the order of `routes`; those with an address are left out for producers.
fn shown_ids<'a>(
    routes: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    with_addresses: bool,
) -> Vec<ShownId<'a>> {
    let mut sorted: Vec<&str> = routes.clone().map(|(route_id, _)| route_id).collect();
    sorted.sort_unstable();
    let shown = |(route_id, recipient_ref): (&'a str, &'a str)| {
        let is_shown = with_addresses || !recipient_ref.starts_with("email:");
        ShownId {
            route_id: is_shown.then_some(route_id),
            route_number: sorted.partition_point(|other| *other < route_id) + 1,
            recipient_ref: is_shown.then_some(recipient_ref),
        }
    };
    routes.map(shown).collect()
}

struct ShownId<'a> {
    route_id: Option<&'a str>,
    route_number: usize,
    recipient_ref: Option<&'a str>,
}

impl<'a> Accepted<'a> {
    pub(crate) fn new(acceptance: &'a Acceptance) -> Self {
        let Acceptance { record, routes } = acceptance;
        let status = |start| match start {
            Start::Pending { .. } => RouteStatus::Pending,
            Start::Skipped(_) => RouteStatus::Skipped,
        };
        let ids = routes.iter().map(|route| (&*route.key.route_id, &*route.recipient_ref));
        let routes = routes.iter().zip(shown_ids(ids, false)).map(|(route, id)| AcceptedRoute {
            route_id: id.route_id,
            route_number: id.route_number,
            channel: route.channel.as_str(),
            recipient_ref: id.recipient_ref,
            status: status(route.start).as_str(),
        });
        Self {
            notification_id: record.notification_id.as_str(),
            outcome: OUTCOME_ACCEPTED,
            accepted_at: Time(record.content.accepted_at),
            routes: routes.collect(),
        }
    }

    pub(crate) fn duplicate(detail: &'a NotificationDetail) -> Self {
        Self {
            notification_id: detail.record.notification_id.as_str(),
            outcome: OUTCOME_DUPLICATE,
            accepted_at: Time(detail.record.content.accepted_at),
            routes: accepted_routes(detail),
        }
    }
}

/// The routes of a notification for its producer: without addresses.
pub(super) fn accepted_routes(detail: &NotificationDetail) -> Vec<AcceptedRoute<'_>> {
    let ids = detail.routes.iter().map(|route| (&*route.key.route_id, &*route.recipient_ref));
    let routes = detail.routes.iter().zip(shown_ids(ids, false)).map(|(route, id)| AcceptedRoute {
        route_id: id.route_id,
        route_number: id.route_number,
        channel: route.channel.as_str(),
        recipient_ref: id.recipient_ref,
        status: route.status.as_str(),
    });
    routes.collect()
}

/// An element of a batch that is accepted.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AcceptedElement {
    /// The status that the intent alone would get.
    #[schemars(extend("const" = 202))]
    pub(crate) status: u16,
    /// The id of the notification.
    pub(crate) notification_id: String,
    /// `accepted`: it became a notification now. `duplicate`: it was accepted before, and nothing is changed.
    #[schemars(schema_with = "outcome_schema")]
    pub(crate) outcome: &'static str,
    /// When it was accepted.
    pub(crate) accepted_at: Time,
    /// How many routes it has.
    pub(crate) routes: usize,
}

/// A notification with all its routes.
#[derive(Serialize, JsonSchema)]
pub struct Notification<'a> {
    notification_id: &'a str,
    /// A type of the catalogue.
    notification_type: &'a str,
    /// The producer that sent it.
    producer: &'a str,
    /// `user` or `admin_email`.
    audience_kind: &'a str,
    /// Sorted, without repeats; empty for `admin_email`.
    recipient_user_ids: &'a [String],
    /// The payload as it was accepted, in normal form.
    #[schemars(extend("type" = "object"))]
    payload: Value,
    idempotency_key: &'a str,
    /// Equal fingerprints under one key are a duplicate, different ones a conflict.
    request_fingerprint: &'a str,
    /// Empty if none was given.
    request_id: &'a str,
    /// Empty if none was given.
    trace_id: &'a str,
    /// When the producer says that it happened.
    occurred_at: Time,
    /// When the service accepted it.
    accepted_at: Time,
    updated_at: Time,
    /// Until when the key is reserved at least.
    idempotency_expires_at: Time,
    routes: Vec<Route<'a>>,
}

/// A route: one recipient on one channel, with its own retry budget.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Route")]
struct Route<'a> {
    /// `<channel>:<recipient_ref>`; `null` to a producer if it holds an administrator's address.
    route_id: Option<&'a str>,
    /// Its place among the routes of the notification by their ids, from 1 on.
    #[schemars(range(min = 1))]
    route_number: usize,
    #[schemars(schema_with = "channel_schema")]
    channel: &'static str,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`; `null` to a producer if it holds
    /// an administrator's address.
    recipient_ref: Option<&'a str>,
    #[schemars(schema_with = "status_schema")]
    status: &'static str,
    /// Failed attempts so far.
    attempt_count: u32,
    /// Failed attempts that make a dead letter.
    max_attempts: u32,
    /// When it is due; `null` unless the status is `pending` or `failed`.
    next_attempt_at: Option<Time>,
    /// The address of an e-mail route, else empty; `null` to a producer.
    resolved_email: Option<&'a str>,
    resolved_locale: &'a str,
    /// The cause of the last failed attempt, or of the skipping; else empty.
    last_error_classification: &'a str,
    last_error_message: &'a str,
    last_error_at: Option<Time>,
    created_at: Time,
    updated_at: Time,
    published_at: Option<Time>,
    dead_lettered_at: Option<Time>,
    skipped_at: Option<Time>,
    /// The id of its entry in the outbound stream; empty if it is not published.
    published_entry_id: &'a str,
    /// The report of its consumer; `null` if there is none.
    receipt: Option<Receipt<'a>>,
    /// An explanation of its state, and of the next change and its time.
    explanation: String,
}

impl<'a> Notification<'a> {
    /// Renders the notification at `now`. Only operators see addresses; a producer sees the ids of its
    /// recipients.
    pub fn new(detail: &'a NotificationDetail, now: Timestamp, with_addresses: bool) -> Self {
        let NotificationDetail { record, updated_at, routes } = detail;
        let ids = routes.iter().map(|route| (&*route.key.route_id, &*route.recipient_ref));
        let ids = shown_ids(ids, with_addresses);
        Self {
            notification_id: record.notification_id.as_str(),
            notification_type: &record.content.notification_type,
            producer: &record.idempotency_key.producer,
            audience_kind: record.audience_kind,
            recipient_user_ids: &record.recipient_user_ids,
            payload: json_of(&record.content.payload_json),
            idempotency_key: &record.idempotency_key.key,
            request_fingerprint: &record.fingerprint,
            request_id: &record.content.request_id,
            trace_id: &record.content.trace_id,
            occurred_at: Time(record.content.occurred_at),
            accepted_at: Time(record.content.accepted_at),
            updated_at: Time(*updated_at),
            idempotency_expires_at: Time(record.idempotency_expires_at),
            routes: routes
                .iter()
                .zip(ids)
                .map(|(stored, id)| Route::new(stored, id, now, with_addresses))
                .collect(),
        }
    }
}

impl<'a> Route<'a> {
    fn new(route: &'a StoredRoute, id: ShownId<'a>, now: Timestamp, with_addresses: bool) -> Self {
        Self {
            route_id: id.route_id,
            route_number: id.route_number,
            channel: route.channel.as_str(),
            recipient_ref: id.recipient_ref,
            status: route.status.as_str(),
            attempt_count: route.attempt_count,
            max_attempts: route.max_attempts,
            next_attempt_at: route.next_attempt_at.map(Time),
            resolved_email: with_addresses.then_some(&*route.resolved_email),
            resolved_locale: &route.resolved_locale,
            last_error_classification: &route.last_error_classification,
            last_error_message: &route.last_error_message,
            last_error_at: route.last_error_at.map(Time),
            created_at: Time(route.created_at),
            updated_at: Time(route.updated_at),
            published_at: route.published_at.map(Time),
            dead_lettered_at: route.dead_lettered_at.map(Time),
            skipped_at: route.skipped_at.map(Time),
            published_entry_id: &route.published_entry_id,
            receipt: route.receipt.as_ref().map(Receipt::new),
            explanation: explain(route, now),
        }
    }
}

/// A page of notifications, newest first.
#[derive(Serialize, JsonSchema)]
pub struct Notifications<'a> {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub notifications: Vec<NotificationSummary<'a>>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// A notification in a list.
#[derive(Serialize, JsonSchema)]
pub struct NotificationSummary<'a> {
    notification_id: &'a str,
    /// A type of the catalogue.
    notification_type: &'a str,
    /// The producer that sent it.
    producer: &'a str,
    /// `user` or `admin_email`.
    audience_kind: &'a str,
    idempotency_key: &'a str,
    /// When the service accepted it.
    accepted_at: Time,
    /// When the producer says that it happened.
    occurred_at: Time,
    /// How many routes have which status; a status that no route has is left out.
    #[schemars(schema_with = "counts_schema")]
    routes: BTreeMap<&'static str, u64>,
}

impl<'a> NotificationSummary<'a> {
    /// Renders the summary.
    pub fn new(summary: &'a query::NotificationSummary) -> Self {
        Self {
            notification_id: summary.notification_id.as_str(),
            notification_type: &summary.notification_type,
            producer: &summary.producer,
            audience_kind: &summary.audience_kind,
            idempotency_key: &summary.idempotency_key,
            accepted_at: Time(summary.accepted_at),
            occurred_at: Time(summary.occurred_at),
            routes: summary.routes.iter().map(|(status, routes)| (status.as_str(), routes)).collect(),
        }
    }
}

fn counts_schema(_: &mut SchemaGenerator) -> Schema {
    let count = json!({"type": "integer", "minimum": 1});
    let counts: Map<String, Value> =
        RouteStatus::ALL.iter().map(|status| (status.as_str().to_owned(), count.clone())).collect();
    json_schema!({"type": "object", "properties": counts})
}
