//! Converts rows into domain values, or reports where they are wrong: a row is parsed, not trusted.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Arc;

use ambient::Timestamp;
use domain::ports::{DuePage, StoreError};
use domain::record::{NotificationId, RecordContent};
use domain::route::{Channel, LiveRoute, RouteKey, UnknownName, Version};
use pg::row::{Column, ColumnError};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// A column of a result set, with the `table.column` for errors. A computed column has no table.
#[derive(Clone, Copy)]
struct Place {
    column: Column,
    place: &'static str,
}

impl Place {
    /// Looks the column up by its name; all rows are then read without another lookup.
    fn find(row: &Row, place: &'static str, key: &str) -> Result<Self, StoreError> {
        let name = place.rsplit_once('.').map_or(place, |(_, name)| name);
        let column = Column::find(row, name).map_err(|error| corrupt(place, key, error.to_string()))?;
        Ok(Self { column, place })
    }

    fn get<'a, T: FromSql<'a>>(self, row: &'a Row, key: &str) -> Result<T, StoreError> {
        self.column.get(row).map_err(|error| self.corrupt(key, &error))
    }

    fn instant(self, row: &Row, key: &str) -> Result<Timestamp, StoreError> {
        self.column.get_instant(row).map_err(|error| self.corrupt(key, &error))
    }

    fn count(self, row: &Row, key: &str) -> Result<u32, StoreError> {
        let value: i32 = self.get(row, key)?;
        u32::try_from(value).map_err(|_| corrupt(self.place, key, format!("{value} is negative")))
    }

    fn corrupt(self, key: &str, error: &ColumnError) -> StoreError {
        corrupt(self.place, key, error.to_string())
    }
}

/// One column of a row; `place` is its `table.column`, `key` identifies the row in the error.
pub(crate) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    place: &'static str,
    key: &str,
) -> Result<T, StoreError> {
    Place::find(row, place, key)?.get(row, key)
}

/// A `timestamptz` column. Infinity and years beyond 9999 are corrupt: this service never writes them.
pub(crate) fn instant(row: &Row, place: &'static str, key: &str) -> Result<Timestamp, StoreError> {
    Place::find(row, place, key)?.instant(row, key)
}

/// Like [`instant`], for a column that may be NULL.
pub(crate) fn optional_instant(
    row: &Row,
    place: &'static str,
    key: &str,
) -> Result<Option<Timestamp>, StoreError> {
    let found = Place::find(row, place, key)?;
    found.column.get_optional_instant(row).map_err(|error| found.corrupt(key, &error))
}

/// An `int` column that contains a count.
pub(crate) fn small_count(row: &Row, place: &'static str, key: &str) -> Result<u32, StoreError> {
    Place::find(row, place, key)?.count(row, key)
}

/// A text column that contains one of several names.
pub(crate) fn name<T: FromStr<Err = UnknownName>>(
    row: &Row,
    place: &'static str,
    key: &str,
) -> Result<T, StoreError> {
    let text: &str = column(row, place, key)?;
    text.parse().map_err(|error: UnknownName| corrupt(place, key, error.to_string()))
}

/// The count that a statement returned.
pub(crate) fn count(row: &Row, name: &'static str, key: &str) -> Result<u64, StoreError> {
    column::<i64>(row, name, key).map(i64::unsigned_abs)
}

/// The key of a route.
pub(crate) fn route_key(row: &Row) -> Result<RouteKey, StoreError> {
    let notification_id: String = column(row, "routes.notification_id", "")?;
    let route_id = column(row, "routes.route_id", &notification_id)?;
    Ok(RouteKey { notification_id: NotificationId::from(notification_id), route_id })
}

/// The keys of routes, without duplicates.
pub(crate) fn route_keys(rows: &[Row]) -> Result<HashSet<RouteKey>, StoreError> {
    let mut keys = HashSet::with_capacity(rows.len());
    for key in rows.iter().map(route_key) {
        if let Some(twice) = keys.replace(key?) {
            return Err(corrupt("routes", &loggable(&twice), "a primary key matched two rows".to_owned()));
        }
    }
    Ok(keys)
}

/// A route's name for errors: without an administrator's address.
pub(crate) fn loggable(key: &RouteKey) -> String {
    format!("{}/{}", key.notification_id, key.loggable_route_id())
}

/// The rows of a statement with `routes::live_columns`. Each row is read separately, so that a corrupt one
/// does not affect others. Adjacent rows of one notification share its content.
pub(crate) fn live_routes(rows: &[Row]) -> Result<DuePage, StoreError> {
    let mut page = DuePage::default();
    let Some(first) = rows.first() else { return Ok(page) };
    let columns = LiveColumns::find(first)?;
    for row in rows {
        match columns.read(row, page.routes.last()) {
            Ok(route) => page.routes.push(route),
            Err(error) => page.corrupt.push(error),
        }
    }
    Ok(page)
}

/// The columns of a live route and its record, looked up once for all rows: this is the largest result of the
/// hot path.
struct LiveColumns {
    notification_id: Place,
    route_id: Place,
    channel: Place,
    updated_at: Place,
    recipient_ref: Place,
    resolved_email: Place,
    resolved_locale: Place,
    attempt_count: Place,
    max_attempts: Place,
    next_attempt_at: Place,
    published_entry_id: Place,
    producer: Place,
    notification_type: Place,
    payload_json: Place,
    occurred_at: Place,
    accepted_at: Place,
    request_id: Place,
    trace_id: Place,
}

impl LiveColumns {
    fn find(row: &Row) -> Result<Self, StoreError> {
        let place = |place| Place::find(row, place, "");
        Ok(Self {
            notification_id: place("routes.notification_id")?,
            route_id: place("routes.route_id")?,
            channel: place("routes.channel")?,
            updated_at: place("routes.updated_at")?,
            recipient_ref: place("routes.recipient_ref")?,
            resolved_email: place("routes.resolved_email")?,
            resolved_locale: place("routes.resolved_locale")?,
            attempt_count: place("routes.attempt_count")?,
            max_attempts: place("routes.max_attempts")?,
            next_attempt_at: place("routes.next_attempt_at")?,
            published_entry_id: place("routes.published_entry_id")?,
            producer: place("records.producer")?,
            notification_type: place("records.notification_type")?,
            payload_json: place("records.payload_json")?,
            occurred_at: place("records.occurred_at")?,
            accepted_at: place("records.accepted_at")?,
            request_id: place("records.request_id")?,
            trace_id: place("records.trace_id")?,
        })
    }

    /// Reads a row. Reuses the content of `neighbour` if it belongs to the same notification.
    fn read(&self, row: &Row, neighbour: Option<&LiveRoute>) -> Result<LiveRoute, StoreError> {
        let notification_id: String = self.notification_id.get(row, "")?;
        let route_id = self.route_id.get(row, &notification_id)?;
        let key = RouteKey { notification_id: NotificationId::from(notification_id), route_id };
        let name = loggable(&key);
        let channel: &str = self.channel.get(row, &name)?;
        let sibling = neighbour.filter(|neighbour| neighbour.key.notification_id == key.notification_id);
        let content = match sibling {
            Some(sibling) => Arc::clone(&sibling.content),
            None => Arc::new(RecordContent {
                producer: self.producer.get(row, &name)?,
                notification_type: self.notification_type.get(row, &name)?,
                payload_json: self.payload_json.get(row, &name)?,
                occurred_at: self.occurred_at.instant(row, &name)?,
                accepted_at: self.accepted_at.instant(row, &name)?,
                request_id: self.request_id.get(row, &name)?,
                trace_id: self.trace_id.get(row, &name)?,
            }),
        };
        Ok(LiveRoute {
            version: Version::read(self.updated_at.instant(row, &name)?),
            channel: channel
                .parse::<Channel>()
                .map_err(|error| corrupt("routes.channel", &name, error.to_string()))?,
            recipient_ref: self.recipient_ref.get(row, &name)?,
            resolved_email: self.resolved_email.get(row, &name)?,
            resolved_locale: self.resolved_locale.get(row, &name)?,
            attempt_count: self.attempt_count.count(row, &name)?,
            max_attempts: self.max_attempts.count(row, &name)?,
            next_attempt_at: self.next_attempt_at.instant(row, &name)?,
            replaces: Some(self.published_entry_id.get::<&str>(row, &name)?)
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            content,
            key,
        })
    }
}

/// True if a statement that names a primary key changed its row, false if there was none.
///
/// # Errors
///
/// It changed several rows: the key of `table` is not unique.
pub(crate) fn one_row(rows: u64, table: &'static str, key: &str) -> Result<bool, StoreError> {
    match rows {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(corrupt(table, key, format!("{rows} rows have this primary key"))),
    }
}

pub(crate) fn corrupt(place: &'static str, key: &str, problem: String) -> StoreError {
    StoreError::Corrupt { place, key: key.to_owned(), problem }
}
