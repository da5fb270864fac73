//! Accepted intents.

use ambient::Timestamp;
use domain::outcome::Acceptance;
use domain::query::{Notification, Route};
use domain::route::{Channel, RouteStatus, Start, holds_address, route_numbers};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

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

impl<'a> Accepted<'a> {
    pub(crate) fn new(acceptance: &'a Acceptance) -> Self {
        let Acceptance { record, routes } = acceptance;
        let numbers = route_numbers(routes.iter().map(|route| &*route.key.route_id));
        let routes = routes.iter().zip(numbers).map(|(route, route_number)| {
            let is_shown = !holds_address(&route.recipient_ref);
            AcceptedRoute {
                route_id: is_shown.then_some(&*route.key.route_id),
                route_number,
                channel: route.channel,
                recipient_ref: is_shown.then_some(&*route.recipient_ref),
                status: match route.start {
                    Start::Pending { .. } => RouteStatus::Pending,
                    Start::Skipped(_) => RouteStatus::Skipped,
                },
            }
        });
        Self {
            notification_id: record.notification_id.as_str(),
            outcome: OUTCOME_ACCEPTED,
            accepted_at: record.content.accepted_at,
            routes: routes.collect(),
        }
    }

    /// Renders a notification without addresses, which was accepted before.
    pub(crate) fn duplicate(found: &'a Notification) -> Self {
        Self {
            notification_id: found.notification_id.as_str(),
            outcome: OUTCOME_DUPLICATE,
            accepted_at: found.accepted_at,
            routes: found.routes.iter().map(AcceptedRoute::from).collect(),
        }
    }
}

impl<'a> From<&'a Route> for AcceptedRoute<'a> {
    fn from(route: &'a Route) -> Self {
        Self {
            route_id: route.route_id.shown(),
            route_number: route.route_number,
            channel: route.channel,
            recipient_ref: route.recipient_ref.shown(),
            status: route.status,
        }
    }
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
