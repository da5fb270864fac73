//! `GET /v1/notifications` and `GET /v1/notifications/{notification_id}`.

use std::sync::Arc;

use ambient::Clock;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::NotificationFilter;
use domain::record::{NotificationId, RecordCursor};
use http_server::problem::Problem;
use http_server::tokens::Principal;

use crate::params::{CURSOR, LIMIT, Param, Params, PathId, Takes};
use crate::ports::{Api, Ports};
use crate::problems::{not_found, personal_search, producer_read, read_failed, sight_of};
use crate::view::Notifications;

/// The filters of the list.
pub(crate) const PARAMS: [Param; 10] = [
    Param::new(
        "producer",
        Takes::Text,
        "Only those of this producer; a producer's token takes its own name only.",
    ),
    Param::new("notification_type", Takes::Text, "Only those of this type."),
    Param::new("status", Takes::Status, "Only those with a route in this status."),
    Param::new(
        "receipt",
        Takes::Receipt,
        "Only those with a route whose consumer reported this as its highest status.",
    ),
    Param::new(
        "recipient",
        Takes::Text,
        "Only those to this user id, or, for a token that sees personal data, to this administrator's address.",
    ),
    Param::new("idempotency_key", Takes::Text, "Only those with this idempotency key."),
    Param::new("accepted_after", Takes::Time, "Only those accepted then or later."),
    Param::new("accepted_before", Takes::Time, "Only those accepted before then."),
    LIMIT,
    CURSOR,
];

pub(crate) async fn list<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = NotificationFilter {
        producer: producer_read(&principal, params.text("producer"))?,
        notification_type: params.text("notification_type"),
        status: params.value("status", "a status of a route")?,
        receipt: params.value("receipt", "a status of a receipt")?,
        recipient: params.text("recipient"),
        users_only: false,
        idempotency_key: params.text("idempotency_key"),
        accepted_after: params.time("accepted_after")?,
        accepted_before: params.time("accepted_before")?,
    };
    let sight = sight_of(&principal);
    let filter = filter.sought_by(sight).ok_or_else(personal_search)?;
    let after: Option<RecordCursor> = params.cursor(&filter)?;
    let page = api.queries.list_notifications(&filter, after.as_ref(), params.limit()?).await;
    let page = page.map_err(|error| read_failed(&error))?;
    let (notifications, next_cursor) = page.into_parts(&filter);
    Ok(Json(Notifications { notifications: notifications.seen_by(sight), next_cursor }).into_response())
}

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    PathId(notification_id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let id = NotificationId::from(notification_id);
    let found = api.queries.get_notification(&id).await.map_err(|error| read_failed(&error))?;
    let own = principal.producer.as_deref();
    let found = found.filter(|found| principal.role.is_some() || own == Some(found.producer.as_str()));
    let found = found.ok_or_else(|| not_found("notification"))?.seen_by(sight_of(&principal));
    Ok(Json(found.explained(api.clock.now())).into_response())
}
