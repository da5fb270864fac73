//! Rows become domain values or say where they are wrong: a row is parsed, not trusted.

use std::sync::Arc;

use ambient::Timestamp;
use chrono::{DateTime, Utc};
use domain::ports::StoreError;
use domain::record::{Content, NotificationId};
use domain::route::{Channel, LiveRoute, RouteKey, Version};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// The key of a row whose first two columns are `notification_id` and `route_id`.
pub(crate) fn route_key(row: &Row) -> Result<RouteKey, StoreError> {
    let notification_id: String = column(row, 0, "routes.notification_id", "")?;
    let route_id = column(row, 1, "routes.route_id", &notification_id)?;
    Ok(RouteKey { notification_id: NotificationId::from(notification_id), route_id })
}

/// A route's name in an error: without an administrator's address.
pub(crate) fn loggable(key: &RouteKey) -> String {
    format!("{}/{}", key.notification_id, key.loggable_route_id())
}

/// A row in the column order of `routes::live_columns`. If `neighbour` is of the same notification, its content is taken.
pub(crate) fn live_route(row: &Row, neighbour: Option<&LiveRoute>) -> Result<LiveRoute, StoreError> {
    let key = route_key(row)?;
    let name = loggable(&key);
    let channel: String = column(row, 2, "routes.channel", &name)?;
    let sibling = neighbour.filter(|neighbour| neighbour.key.notification_id == key.notification_id);
    let content = match sibling {
        Some(sibling) => Arc::clone(&sibling.content),
        None => Arc::new(Content {
            notification_type: column(row, 10, "records.notification_type", &name)?,
            payload_json: column(row, 11, "records.payload_json", &name)?,
            occurred_at: instant(row, 12, "records.occurred_at", &name)?,
            accepted_at: instant(row, 13, "records.accepted_at", &name)?,
            request_id: column(row, 14, "records.request_id", &name)?,
            trace_id: column(row, 15, "records.trace_id", &name)?,
        }),
    };
    let route = LiveRoute {
        version: Version::read(instant(row, 3, "routes.updated_at", &name)?),
        channel: channel
            .parse::<Channel>()
            .map_err(|error| corrupt("routes.channel", &name, error.to_string()))?,
        recipient_ref: column(row, 4, "routes.recipient_ref", &name)?,
        resolved_email: column(row, 5, "routes.resolved_email", &name)?,
        resolved_locale: column(row, 6, "routes.resolved_locale", &name)?,
        attempt_count: count(row, 7, "routes.attempt_count", &name)?,
        max_attempts: count(row, 8, "routes.max_attempts", &name)?,
        next_attempt_at: instant(row, 9, "routes.next_attempt_at", &name)?,
        content,
        key,
    };
    Ok(route)
}

/// One column of a row; `place` is its `table.column`, `key` names the row in the error.
pub(crate) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    index: usize,
    place: &'static str,
    key: &str,
) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        corrupt(place, key, cause)
    })
}

/// A `timestamptz` column. Infinity and years beyond 9999 are corrupt: this service never writes them.
pub(crate) fn instant(
    row: &Row,
    index: usize,
    place: &'static str,
    key: &str,
) -> Result<Timestamp, StoreError> {
    let value: DateTime<Utc> = column(row, index, place, key)?;
    Timestamp::try_from(value).map_err(|error| corrupt(place, key, error.to_string()))
}

fn count(row: &Row, index: usize, place: &'static str, key: &str) -> Result<u32, StoreError> {
    let value: i32 = column(row, index, place, key)?;
    u32::try_from(value).map_err(|_| corrupt(place, key, format!("{value} is negative")))
}

pub(crate) fn corrupt(place: &'static str, key: &str, problem: String) -> StoreError {
    StoreError::Corrupt { place, key: key.to_owned(), problem }
}
