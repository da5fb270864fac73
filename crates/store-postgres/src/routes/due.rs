//! Due routes, and the reading of live routes.
//!
//! The list takes no locks (ADR 0005): two replicas may read the same route.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::ports::{DueCursor, DueOrder, DuePage, StoreError};
use domain::route::{Channel, RouteKey};
use pg::sql::any;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, Order, Query, SelectStatement, SubQueryStatement};
use tokio_postgres::Row;

use super::{given_keys, is_live, live_columns, on_key};
use crate::PgStore;
use crate::codec::{self, column, count, instant, loggable, route_key};
use crate::error::store_error;
use crate::schema::{Input, Routes};

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
        let rows = session.query(&statement).await.map_err(store_error)?;
        let next = match rows.last() {
            Some(last) if rows.len() == limit => Some(cursor_after(last)?),
            _ => None,
        };
        Ok(DuePage { next, ..codec::live_routes(&rows)? })
    }

    pub(super) async fn due_count(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        let session = self.session("count due routes").await?;
        let rows = session.query(&count_due(now, cap)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(0) };
        count(row, "routes", "the due routes")
    }

    pub(super) async fn live_page(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let session = self.session("read routes again").await?;
        let rows = session.query(&live_routes(keys)).await.map_err(store_error)?;
        codec::live_routes(&rows)
    }
}

/// The due time of the first live route of each channel, past or future.
pub(crate) async fn first_due_of_each(session: &Session) -> Result<HashMap<Channel, Timestamp>, StoreError> {
    let mut next = HashMap::new();
    for row in session.query(&first_due()).await.map_err(store_error)? {
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

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let start = DueCursor {
        next_attempt_at: "-infinity".to_owned(),
        key: RouteKey { notification_id: String::new().into(), route_id: String::new() },
    };
    for order in [DueOrder::OldestFirst, DueOrder::NewestFirst] {
        for after in [None, Some(&start)] {
            session.prepare(&due_routes(Channel::Push, order, Timestamp::MIN, after, 1)).await?;
        }
    }
    session.prepare(&first_due()).await?;
    session.prepare(&count_due(Timestamp::MIN, 1)).await?;
    session.prepare(&live_routes(&[])).await?;
    Ok(())
}

/// The cursor of a page whose last row is `last`.
fn cursor_after(last: &Row) -> Result<DueCursor, StoreError> {
    let key = route_key(last)?;
    let next_attempt_at = column(last, "routes.next_attempt_at_text", &loggable(&key))?;
    Ok(DueCursor { next_attempt_at, key })
}

/// A page of due routes, cut from `routes_due_idx`, read forwards or backwards, before anything is joined to
/// it. The time of the last row is returned in PostgreSQL's own text, so that a page may end with one outside
/// the range of `Timestamp`.
pub(super) fn due_routes(
    channel: Channel,
    order: DueOrder,
    now: Timestamp,
    after: Option<&DueCursor>,
    limit: usize,
) -> SelectStatement {
    let columns = [Routes::NextAttemptAt, Routes::NotificationId, Routes::RouteId];
    let direction = match order {
        DueOrder::OldestFirst => Order::Asc,
        DueOrder::NewestFirst => Order::Desc,
    };
    let mut due = Query::select();
    due.expr(Expr::col(sea_query::Asterisk))
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(bind::text(channel.as_str())))
        .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(now)));
    if let Some(DueCursor { next_attempt_at, key }) = after {
        let place = Expr::tuple([
            bind::text(next_attempt_at).cast_as("timestamptz"),
            bind::text(key.notification_id.as_str()),
            bind::text(key.route_id.as_str()),
        ]);
        let listed = Expr::tuple(columns.map(Expr::col));
        due.and_where(match order {
            DueOrder::OldestFirst => listed.gt(place),
            DueOrder::NewestFirst => listed.lt(place),
        });
    }
    for column in columns {
        due.order_by(column, direction.clone());
    }
    due.limit(limit as u64);
    let mut select = Query::select();
    select.from_subquery(due, Input::Table);
    live_columns(&mut select, Input::Table);
    select
        .expr_as(Expr::col((Input::Table, Routes::NextAttemptAt)).cast_as("text"), Input::NextAttemptAtText);
    for column in columns {
        select.order_by((Input::Table, column), direction.clone());
    }
    select
}

/// The first entry of `routes_due_idx` for each channel. A route above the range of times, such as one that
/// an operator parked at `infinity`, is never due.
pub(super) fn first_due() -> SelectStatement {
    let first = |channel: Channel| {
        let first = Query::select()
            .column(Routes::NextAttemptAt)
            .from(Routes::Table)
            .and_where(Expr::col(Routes::Channel).eq(bind::text(channel.as_str())))
            .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(Timestamp::MAX)))
            .order_by(Routes::NextAttemptAt, Order::Asc)
            .limit(1)
            .take();
        let scalar = Expr::SubQuery(None, Box::new(SubQueryStatement::SelectStatement(first)));
        Query::select()
            .expr_as(bind::text(channel.as_str()), Routes::Channel)
            .expr_as(scalar, Input::NextAttemptAt)
            .take()
    };
    let both = first(Channel::Push).union(sea_query::UnionType::All, first(Channel::Email)).take();
    Query::select()
        .expr(Expr::col(sea_query::Asterisk))
        .from_subquery(both, Input::Table)
        .and_where(Expr::col(Input::NextAttemptAt).is_not_null())
        .take()
}

/// A part of `routes_due_idx`, cut before it is counted.
pub(super) fn count_due(now: Timestamp, cap: usize) -> SelectStatement {
    let some = Query::select()
        .column(Routes::NextAttemptAt)
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(any(bind::texts(Channel::ALL.map(Channel::as_str)))))
        .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(now)))
        .limit(cap as u64)
        .take();
    Query::select()
        .expr_as(Func::count(Expr::col(sea_query::Asterisk)), Input::Routes)
        .from_subquery(some, Input::Table)
        .take()
}

/// The live routes with these keys, by the primary key.
pub(super) fn live_routes(keys: &[&RouteKey]) -> SelectStatement {
    let mut select = Query::select();
    select.from_subquery(given_keys(keys.iter().copied()), Input::Table).inner_join(Routes::Table, on_key());
    live_columns(&mut select, Routes::Table);
    select.and_where(is_live());
    select
}
