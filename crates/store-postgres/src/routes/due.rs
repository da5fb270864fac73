//! Due routes, and the reading of live routes.
//!
//! The list takes no locks (ADR 0005): two replicas may read the same route.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{DueCursor, DueOrder, DuePage, StoreError};
use domain::route::{Channel, RouteKey};
use pg::{BoundStatement, Session, parameter};
use tokio_postgres::Row;

use super::{live_columns_text, live_statuses};
use crate::PgStore;
use crate::codec::{self, column, count, instant, loggable, route_key};
use crate::error::store_error;

impl PgStore {
    pub(super) async fn due_page(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let session = self.session("list due routes").await?;
        let statement = due_routes(channel, order, now, after, limit);
        let rows = session.query(statement).await.map_err(store_error)?;
        let next = match rows.last() {
            Some(last) if rows.len() == limit => Some(cursor_after(last)?),
            _ => None,
        };
        Ok(DuePage { next, ..codec::live_routes(&rows)? })
    }

    pub(super) async fn due_count(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        let session = self.session("count due routes").await?;
        let rows = session.query(count_due(now, cap)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(0) };
        count(row, "routes", "the due routes")
    }

    pub(super) async fn live_page(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let session = self.session("read routes again").await?;
        let rows = session.query(live_routes(keys)).await.map_err(store_error)?;
        codec::live_routes(&rows)
    }
}

/// The due time of the first live route of each channel, past or future.
pub(crate) async fn first_due_of_each(session: &Session) -> Result<HashMap<Channel, Timestamp>, StoreError> {
    let mut next = HashMap::new();
    for row in session.query(first_due()).await.map_err(store_error)? {
        let name: String = column(&row, "routes.channel", "the first due route")?;
        if let Ok(channel) = name.parse() {
            // The statement excludes times above the range, so an unreadable time is below it: the list
            // reports it.
            let due = instant(&row, "routes.next_attempt_at", &name);
            next.insert(channel, due.unwrap_or(Timestamp::MIN));
        }
    }
    Ok(next)
}

/// The cursor of a page whose last row is `last`.
fn cursor_after(last: &Row) -> Result<DueCursor, StoreError> {
    let key = route_key(last)?;
    let next_attempt_at = column(last, "routes.next_attempt_at_text", &loggable(&key))?;
    Ok(DueCursor { next_attempt_at, key })
}

pg::statements! {
    /// A page of due routes, cut from the index before anything is joined to it. The time of the last row is
    /// returned in PostgreSQL's own text, so that a page may end with one outside the range of `Timestamp`.
    OLDEST_DUE = "routes.list_due_oldest_first", plan ["routes_due_idx", "records_pkey"], concat!("
        SELECT ", live_columns_text!(), ", r.next_attempt_at::text AS next_attempt_at_text
        FROM (
            SELECT * FROM routes
            WHERE channel = $1::text AND next_attempt_at <= $2::timestamptz
                AND (next_attempt_at, notification_id, route_id) > ($3::text::timestamptz, $4::text, $5::text)
            ORDER BY next_attempt_at, notification_id, route_id
            LIMIT $6::bigint
        ) AS r
        JOIN records c ON c.notification_id = r.notification_id
        ORDER BY r.next_attempt_at, r.notification_id, r.route_id");

    /// A page like that of [`OLDEST_DUE`], with the index read backwards.
    NEWEST_DUE = "routes.list_due_newest_first", plan ["routes_due_idx", "records_pkey"], concat!("
        SELECT ", live_columns_text!(), ", r.next_attempt_at::text AS next_attempt_at_text
        FROM (
            SELECT * FROM routes
            WHERE channel = $1::text AND next_attempt_at <= $2::timestamptz
                AND (next_attempt_at, notification_id, route_id) < ($3::text::timestamptz, $4::text, $5::text)
            ORDER BY next_attempt_at DESC, notification_id DESC, route_id DESC
            LIMIT $6::bigint
        ) AS r
        JOIN records c ON c.notification_id = r.notification_id
        ORDER BY r.next_attempt_at DESC, r.notification_id DESC, r.route_id DESC");

    /// The first entry of the index for each channel, up to a time: a route above the range of times, such as
    /// one that an operator parked at `infinity`, is never due.
    FIRST_DUE = "routes.first_due", plan ["routes_due_idx"], "
        SELECT * FROM (
            SELECT 'push' AS channel, (
                SELECT next_attempt_at FROM routes WHERE channel = 'push' AND next_attempt_at <= $1::timestamptz
                ORDER BY next_attempt_at LIMIT 1) AS next_attempt_at
            UNION ALL
            SELECT 'email', (
                SELECT next_attempt_at FROM routes WHERE channel = 'email' AND next_attempt_at <= $1::timestamptz
                ORDER BY next_attempt_at LIMIT 1)
        ) AS first
        WHERE next_attempt_at IS NOT NULL";

    /// The number of due routes, cut before it is counted.
    COUNT_DUE = "routes.count_due", plan ["routes_due_idx"], "
        SELECT count(*) AS routes FROM (
            SELECT next_attempt_at FROM routes
            WHERE channel = ANY ($3::text[]) AND next_attempt_at <= $1::timestamptz
            LIMIT $2::bigint
        ) AS due";

    /// The live routes with these keys.
    LIVE = "routes.live", plan ["routes_pkey", "records_pkey"], concat!("
        SELECT ", live_columns_text!(), "
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        JOIN records c ON c.notification_id = r.notification_id
        WHERE r.status = ANY ($3::text[])");
}

pub(super) fn first_due() -> BoundStatement {
    FIRST_DUE.bind([parameter::instant(Timestamp::MAX)])
}

pub(super) fn due_routes(
    channel: Channel,
    order: DueOrder,
    now: Timestamp,
    after: Option<&DueCursor>,
    limit: usize,
) -> BoundStatement {
    // Without a cursor, the page begins before the first or after the last key that is due: no id is empty.
    let (statement, beyond) = match order {
        DueOrder::OldestFirst => (OLDEST_DUE, "-infinity".to_owned()),
        DueOrder::NewestFirst => (NEWEST_DUE, (now + Duration::from_micros(1)).to_string()),
    };
    let place = after.map(|DueCursor { next_attempt_at, key }| {
        (next_attempt_at.as_str(), key.notification_id.as_str(), key.route_id.as_str())
    });
    let (next_attempt_at, notification_id, route_id) = place.unwrap_or((&beyond, "", ""));
    statement.bind([
        parameter::text(channel.as_str()),
        parameter::instant(now),
        parameter::text(next_attempt_at),
        parameter::text(notification_id),
        parameter::text(route_id),
        parameter::rows(limit),
    ])
}

pub(super) fn count_due(now: Timestamp, cap: usize) -> BoundStatement {
    let channels = parameter::texts(Channel::ALL.map(Channel::as_str));
    COUNT_DUE.bind([parameter::instant(now), parameter::rows(cap), channels])
}

pub(super) fn live_routes(keys: &[&RouteKey]) -> BoundStatement {
    let [notification_ids, route_ids] = super::keys(keys.iter().copied());
    LIVE.bind([notification_ids, route_ids, live_statuses()])
}
