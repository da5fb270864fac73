//! Notifications and their routes.

use ambient::Timestamp;
use domain::document::json_of;
use domain::explanation::explain;
use domain::outcome::Acceptance;
use domain::query::{NotificationDetail, StoredRoute};
use domain::receipt::Receipt;
use domain::route::{Channel, RouteStatus, Start};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

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
    accepted_at: Timestamp,
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
    channel: Channel,
    /// `user:<user_id>`, or `config:<notification_type>` if no administrator is configured; `null` if it
    /// holds an administrator's address.
    recipient_ref: Option<&'a str>,
    status: RouteStatus,
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
            channel: route.channel,
            recipient_ref: id.recipient_ref,
            status: status(route.start),
        });
        Self {
            notification_id: record.notification_id.as_str(),
            outcome: OUTCOME_ACCEPTED,
            accepted_at: record.content.accepted_at,
            routes: routes.collect(),
        }
    }

    pub(crate) fn duplicate(detail: &'a NotificationDetail) -> Self {
        Self {
            notification_id: detail.record.notification_id.as_str(),
            outcome: OUTCOME_DUPLICATE,
            accepted_at: detail.record.content.accepted_at,
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
        channel: route.channel,
        recipient_ref: id.recipient_ref,
        status: route.status,
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
    pub(crate) accepted_at: Timestamp,
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
    occurred_at: Timestamp,
    /// When the service accepted it.
    accepted_at: Timestamp,
    updated_at: Timestamp,
    /// Until when the key is reserved at least.
    idempotency_expires_at: Timestamp,
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
    channel: Channel,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`; `null` to a producer if it holds
    /// an administrator's address.
    recipient_ref: Option<&'a str>,
    status: RouteStatus,
    /// Failed attempts so far.
    attempt_count: u32,
    /// Failed attempts that make a dead letter.
    max_attempts: u32,
    /// When it is due; `null` unless the status is `pending` or `failed`.
    next_attempt_at: Option<Timestamp>,
    /// The address of an e-mail route, else empty; `null` to a producer.
    resolved_email: Option<&'a str>,
    resolved_locale: &'a str,
    /// The cause of the last failed attempt, or of the skipping; else empty.
    last_error_classification: &'a str,
    last_error_message: &'a str,
    last_error_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    published_at: Option<Timestamp>,
    dead_lettered_at: Option<Timestamp>,
    skipped_at: Option<Timestamp>,
    /// The id of its entry in the outbound stream; empty if it is not published.
    published_entry_id: &'a str,
    /// The report of its consumer; `null` if there is none.
    receipt: Option<&'a Receipt>,
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
            occurred_at: record.content.occurred_at,
            accepted_at: record.content.accepted_at,
            updated_at: *updated_at,
            idempotency_expires_at: record.idempotency_expires_at,
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
            channel: route.channel,
            recipient_ref: id.recipient_ref,
            status: route.status,
            attempt_count: route.attempt_count,
            max_attempts: route.max_attempts,
            next_attempt_at: route.next_attempt_at,
            resolved_email: with_addresses.then_some(&*route.resolved_email),
            resolved_locale: &route.resolved_locale,
            last_error_classification: &route.last_error_classification,
            last_error_message: &route.last_error_message,
            last_error_at: route.last_error_at,
            created_at: route.created_at,
            updated_at: route.updated_at,
            published_at: route.published_at,
            dead_lettered_at: route.dead_lettered_at,
            skipped_at: route.skipped_at,
            published_entry_id: &route.published_entry_id,
            receipt: route.receipt.as_ref(),
            explanation: explain(route, now),
        }
    }
}
