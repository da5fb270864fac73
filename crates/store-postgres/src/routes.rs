//! The state of routes: what is due, and the changes, each guarded by the version it was decided on.
//!
//! The list takes no locks (ADR 0005): two replicas may read the same route, the lease lets one of them append, and
//! the version lets one of them write. Where a statement changes fewer routes than it was given, the others were changed
//! by someone else, or are already as intended.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;
use domain::dead_letter::recovery_hint;
use domain::ports::{DueCursor, DuePage, Failed, Published, RouteStore, StoreError, Swap};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey, RouteStatus, Version};
use pg::{PgError, Session, bind};
use sea_query::{
    CaseStatement, Expr, ExprTrait, Func, InsertStatement, OnConflict, Order, Query, SelectStatement,
    SubQueryStatement, UpdateStatement,
};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{column, corrupt, instant, live_route, loggable, route_key};
use crate::error::store_error;
use crate::schema::{DeadLetters, Given, Records, Routes, any, unnest};

impl RouteStore for PgStore {
    async fn list_due_routes(
        &self,
        channel: Channel,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let session = self.session("list due routes").await?;
        let rows = session.query(&due_routes(channel, now, after, limit)).await.map_err(store_error)?;
        let next = match rows.last() {
            Some(last) if rows.len() == limit => Some(cursor_behind(last)?),
            _ => None,
        };
        Ok(DuePage { next, ..page(&rows) })
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        let session = self.session("look for the next due route").await?;
        let mut next = HashMap::new();
        for row in session.query(&first_due()).await.map_err(store_error)? {
            let name: String = column(&row, 0, "routes.channel", "the first due route")?;
            if let Ok(channel) = name.parse() {
                // Nothing above the range is asked for, so what cannot be read lies below it: the list reports it.
                let due = instant(&row, 1, "routes.next_attempt_at", &name);
                next.insert(channel, due.unwrap_or(Timestamp::MIN));
            }
        }
        Ok(next)
    }

    async fn count_due_routes(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        let session = self.session("count due routes").await?;
        let rows = session.query(&count_due(now, cap)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(0) };
        let count: i64 = column(row, 0, "count", "the due routes")?;
        Ok(count.unsigned_abs())
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let session = self.session("read routes again").await?;
        let rows = session.query(&live_routes(keys)).await.map_err(store_error)?;
        Ok(page(&rows))
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published<'_>],
        now: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        if routes.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.session("complete published routes").await?;
        let changed = session.execute(&publish_if_unchanged(routes, now)).await.map_err(store_error)?;
        // Which ones were changed is asked only where it is not all of them: keys that come back cost as much as they
        // do on the way there.
        if changed == routes.len() as u64 {
            return Ok(vec![Swap::Applied; routes.len()]);
        }
        let mut done: HashSet<RouteKey> = HashSet::with_capacity(routes.len());
        // What stands there as intended was changed just now, or by an earlier attempt whose answer was lost.
        let intended: HashMap<&RouteKey, &str> =
            routes.iter().map(|done| (done.key, done.entry_id.as_str())).collect();
        for row in session.query(&publications(routes)).await.map_err(store_error)? {
            let key = route_key(&row)?;
            let entry_id: String = column(&row, 2, "routes.published_entry_id", &loggable(&key))?;
            if intended.get(&key).is_some_and(|intended| **intended == entry_id) {
                done.insert(key);
            }
        }
        Ok(routes.iter().map(|published| swap(done.contains(published.key))).collect())
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        if routes.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.session("complete failed routes").await?;
        let update = session.prepare(&fail_if_unchanged(routes, now)).await.map_err(store_error)?;
        session.begin().await.map_err(store_error)?;
        let mut done = keys(&session.run(&update).await.map_err(store_error)?)?;
        let dead: Vec<&Failed> =
            routes.iter().filter(|route| route.retry_at.is_none() && done.contains(&route.key)).collect();
        if !dead.is_empty() {
            session.execute(&insert_dead_letters(&dead)).await.map_err(store_error)?;
        }
        session.commit().await.map_err(store_error)?;
        if done.len() < routes.len() {
            for row in session.query(&failures(routes)).await.map_err(store_error)? {
                done.insert(route_key(&row)?);
            }
        }
        Ok(routes.iter().map(|route| swap(done.contains(&route.key))).collect())
    }
}

/// Where the page ends whose last row is `last`. If that lies below the range of times, so may others, and none of
/// them can be read: the next page begins behind them all.
fn cursor_behind(last: &Row) -> Result<DueCursor, StoreError> {
    let key = route_key(last)?;
    Ok(match instant(last, 9, "routes.next_attempt_at", "the last row of a page") {
        Ok(next_attempt_at) => DueCursor { next_attempt_at, key },
        Err(_) => before_all(),
    })
}

/// Before the first route whose time can be read.
fn before_all() -> DueCursor {
    let key = RouteKey { notification_id: NotificationId::from(String::new()), route_id: String::new() };
    DueCursor { next_attempt_at: Timestamp::MIN, key }
}

fn swap(applied: bool) -> Swap {
    if applied { Swap::Applied } else { Swap::Conflict }
}

/// Each row is read by itself, so that a corrupt one harms no other. Neighbours of one notification share its content.
fn page(rows: &[Row]) -> DuePage {
    let mut page = DuePage::default();
    for row in rows {
        match live_route(row, page.routes.last()) {
            Ok(route) => page.routes.push(route),
            Err(error) => page.corrupt.push(error),
        }
    }
    page
}

fn keys(rows: &[Row]) -> Result<HashSet<RouteKey>, StoreError> {
    let mut keys = HashSet::with_capacity(rows.len());
    for key in rows.iter().map(route_key) {
        if let Some(twice) = keys.replace(key?) {
            return Err(corrupt("routes", &loggable(&twice), "a primary key matched two rows".to_owned()));
        }
    }
    Ok(keys)
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&due_routes(Channel::Push, Timestamp::MIN, None, 1)).await?;
    session.prepare(&due_routes(Channel::Push, Timestamp::MIN, Some(&before_all()), 1)).await?;
    session.prepare(&first_due()).await?;
    session.prepare(&count_due(Timestamp::MIN, 1)).await?;
    session.prepare(&live_routes(&[])).await?;
    session.prepare(&publish_if_unchanged(&[], Timestamp::MIN)).await?;
    session.prepare(&publications(&[])).await?;
    session.prepare(&fail_if_unchanged(&[], Timestamp::MIN)).await?;
    session.prepare(&failures(&[])).await?;
    session.prepare(&insert_dead_letters(&[])).await?;
    Ok(())
}

/// The columns in the order in which `codec::live_route` reads them; `route` is the table or sub-query of the routes.
fn live_columns<T: sea_query::Iden + Copy + 'static>(select: &mut SelectStatement, route: T) {
    let of_route = [
        Routes::NotificationId,
        Routes::RouteId,
        Routes::Channel,
        Routes::UpdatedAt,
        Routes::RecipientRef,
        Routes::ResolvedEmail,
        Routes::ResolvedLocale,
        Routes::AttemptCount,
        Routes::MaxAttempts,
        Routes::NextAttemptAt,
    ];
    let of_record = [
        Records::NotificationType,
        Records::PayloadJson,
        Records::OccurredAt,
        Records::AcceptedAt,
        Records::RequestId,
        Records::TraceId,
    ];
    select
        .columns(of_route.map(|column| (route, column)))
        .columns(of_record.map(|column| (Records::Table, column)));
    select.inner_join(
        Records::Table,
        Expr::col((Records::Table, Records::NotificationId)).equals((route, Routes::NotificationId)),
    );
}

/// A page is cut from `routes_due_by_channel_idx` before anything is joined to it. The first one has no lower bound, so that
/// it shows rows below the range of times, too.
fn due_routes(channel: Channel, now: Timestamp, after: Option<&DueCursor>, limit: usize) -> SelectStatement {
    let order = [Routes::NextAttemptAt, Routes::NotificationId, Routes::RouteId];
    let mut due = Query::select();
    due.expr(Expr::col(sea_query::Asterisk))
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(bind::text(channel.as_str())))
        .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(now)));
    if let Some(DueCursor { next_attempt_at, key }) = after {
        let place = [
            bind::instant(*next_attempt_at),
            bind::text(key.notification_id.as_str()),
            bind::text(key.route_id.as_str()),
        ];
        due.and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple(place)));
    }
    for column in order {
        due.order_by(column, Order::Asc);
    }
    due.limit(limit as u64);
    let mut select = Query::select();
    select.from_subquery(due, Given::Table);
    live_columns(&mut select, Given::Table);
    for column in order {
        select.order_by((Given::Table, column), Order::Asc);
    }
    select
}

/// A route above the range of times, such as one that an operator parked at `infinity`, is never due.
fn first_due() -> SelectStatement {
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
        Query::select().expr(bind::text(channel.as_str())).expr_as(scalar, Given::NextAttemptAt).take()
    };
    let both = first(Channel::Push).union(sea_query::UnionType::All, first(Channel::Email)).take();
    Query::select()
        .expr(Expr::col(sea_query::Asterisk))
        .from_subquery(both, Given::Table)
        .and_where(Expr::col(Given::NextAttemptAt).is_not_null())
        .take()
}

fn count_due(now: Timestamp, cap: usize) -> SelectStatement {
    let some = Query::select()
        .column(Routes::NextAttemptAt)
        .from(Routes::Table)
        .and_where(Expr::col(Routes::NextAttemptAt).lte(bind::instant(now)))
        .limit(cap as u64)
        .take();
    Query::select().expr(Func::count(Expr::col(sea_query::Asterisk))).from_subquery(some, Given::Table).take()
}

fn live_routes(keys: &[&RouteKey]) -> SelectStatement {
    let mut select = Query::select();
    select.from_subquery(given_keys(keys.iter().copied()), Given::Table).inner_join(Routes::Table, on_key());
    live_columns(&mut select, Routes::Table);
    select.and_where(is_live());
    select
}

fn publish_if_unchanged(routes: &[Published<'_>], now: Timestamp) -> UpdateStatement {
    let mut given = versioned(routes.iter().map(|done| (done.key, done.version)));
    given.expr_as(unnest(bind::texts(routes.iter().map(|done| done.entry_id.as_str()))), Given::EntryId);
    change_if_unchanged(given, now)
        .value(Routes::Status, bind::text(RouteStatus::Published.as_str()))
        .value(Routes::NextAttemptAt, Expr::cust("NULL"))
        .value(Routes::PublishedAt, bind::instant(now))
        .value(Routes::PublishedEntryId, Expr::col((Given::Table, Given::EntryId)))
        .take()
}

/// What stands in the rows that are published.
fn publications(routes: &[Published<'_>]) -> SelectStatement {
    Query::select()
        .columns([
            (Routes::Table, Routes::NotificationId),
            (Routes::Table, Routes::RouteId),
            (Routes::Table, Routes::PublishedEntryId),
        ])
        .from_subquery(given_keys(routes.iter().map(|done| done.key)), Given::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(Expr::col((Routes::Table, Routes::Status)).eq(bind::text(RouteStatus::Published.as_str())))
        .take()
}

/// The routes with the version they failed at and what is to stand there.
fn outcomes(routes: &[Failed]) -> SelectStatement {
    let texts = |value: fn(&Failed) -> &str| unnest(bind::texts(routes.iter().map(value)));
    let status =
        |route: &Failed| if route.retry_at.is_some() { RouteStatus::Failed } else { RouteStatus::DeadLetter };
    let mut given = versioned(routes.iter().map(|route| (&route.key, route.version)));
    given
        .expr_as(unnest(bind::texts(routes.iter().map(|route| status(route).as_str()))), Given::Status)
        .expr_as(
            unnest(bind::bigints(routes.iter().map(|route| route.attempt_count.into()))),
            Given::AttemptCount,
        )
        .expr_as(
            unnest(bind::optional_instants(routes.iter().map(|route| route.retry_at))),
            Given::NextAttemptAt,
        )
        .expr_as(texts(|route| route.classification), Given::Classification)
        .expr_as(texts(|route| &route.message), Given::Message)
        .take()
}

fn of_given(column: Given) -> Expr {
    Expr::col((Given::Table, column))
}

fn fail_if_unchanged(routes: &[Failed], now: Timestamp) -> UpdateStatement {
    let dead_since = CaseStatement::new().case(of_given(Given::NextAttemptAt).is_null(), bind::instant(now));
    change_if_unchanged(outcomes(routes), now)
        .value(Routes::Status, of_given(Given::Status))
        .value(Routes::AttemptCount, of_given(Given::AttemptCount))
        .value(Routes::NextAttemptAt, of_given(Given::NextAttemptAt))
        .value(Routes::LastErrorClassification, of_given(Given::Classification))
        .value(Routes::LastErrorMessage, of_given(Given::Message))
        .value(Routes::LastErrorAt, bind::instant(now))
        .value(Routes::DeadLetteredAt, dead_since)
        .returning(
            Query::returning()
                .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)]),
        )
        .take()
}

/// Which of the routes stand as they were to be, from an earlier attempt whose answer was lost.
fn failures(routes: &[Failed]) -> SelectStatement {
    let of_route = |column: Routes| Expr::col((Routes::Table, column));
    let next_attempt_at = (Given::Table, Given::NextAttemptAt);
    Query::select()
        .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)])
        .from_subquery(outcomes(routes), Given::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(of_route(Routes::Status).equals((Given::Table, Given::Status)))
        .and_where(of_route(Routes::AttemptCount).equals((Given::Table, Given::AttemptCount)))
        .and_where(of_route(Routes::LastErrorClassification).equals((Given::Table, Given::Classification)))
        // A dead letter has no next attempt, and its status says so already.
        .and_where(
            of_given(Given::NextAttemptAt)
                .is_null()
                .or(of_route(Routes::NextAttemptAt).equals(next_attempt_at)),
        )
        .take()
}

/// A route that an operator has set back to pending may die again: its row is then written anew.
fn insert_dead_letters(routes: &[&Failed]) -> InsertStatement {
    use crate::schema::Routes as R;
    let texts = |value: fn(&Failed) -> &str| unnest(bind::texts(routes.iter().copied().map(value)));
    let given = given_keys(routes.iter().map(|route| &route.key))
        .expr_as(texts(|route| recovery_hint(route.channel, route.classification)), Given::RecoveryHint)
        .take();
    let of_route = |column: R| Expr::col((R::Table, column));
    let pairs = [
        (DeadLetters::NotificationId, of_route(R::NotificationId)),
        (DeadLetters::RouteId, of_route(R::RouteId)),
        (DeadLetters::Channel, of_route(R::Channel)),
        (DeadLetters::RecipientRef, of_route(R::RecipientRef)),
        (DeadLetters::FinalAttemptCount, of_route(R::AttemptCount)),
        (DeadLetters::MaxAttempts, of_route(R::MaxAttempts)),
        (DeadLetters::FailureClassification, of_route(R::LastErrorClassification)),
        (DeadLetters::FailureMessage, of_route(R::LastErrorMessage)),
        (DeadLetters::RecoveryHint, Expr::col((Given::Table, Given::RecoveryHint))),
        (DeadLetters::CreatedAt, of_route(R::DeadLetteredAt)),
    ];
    let mut select = Query::select();
    select.from_subquery(given, Given::Table).inner_join(R::Table, on_key());
    let mut insert = Query::insert();
    insert.into_table(DeadLetters::Table).columns(pairs.iter().map(|(column, _)| *column)).on_conflict(
        OnConflict::columns([DeadLetters::NotificationId, DeadLetters::RouteId])
            .update_columns([
                DeadLetters::FinalAttemptCount,
                DeadLetters::FailureClassification,
                DeadLetters::FailureMessage,
                DeadLetters::RecoveryHint,
                DeadLetters::CreatedAt,
            ])
            .to_owned(),
    );
    select.exprs(pairs.into_iter().map(|(_, value)| value));
    // Cannot fail: columns and expressions come in pairs.
    insert.select_from(select).expect("as many expressions as columns");
    insert
}

fn given_keys<'a>(keys: impl Iterator<Item = &'a RouteKey> + Clone) -> SelectStatement {
    Query::select()
        .expr_as(
            unnest(bind::texts(keys.clone().map(|key| key.notification_id.as_str()))),
            Given::NotificationId,
        )
        .expr_as(unnest(bind::texts(keys.map(|key| key.route_id.as_str()))), Given::RouteId)
        .take()
}

fn versioned<'a>(routes: impl Iterator<Item = (&'a RouteKey, Version)> + Clone) -> SelectStatement {
    let mut given = given_keys(routes.clone().map(|(key, _)| key));
    let expected = bind::instants(routes.map(|(_, version)| version.updated_at()));
    given.expr_as(unnest(expected), Given::ExpectedUpdatedAt);
    given
}

fn on_key() -> Expr {
    Expr::col((Routes::Table, Routes::NotificationId))
        .equals((Given::Table, Given::NotificationId))
        .and(Expr::col((Routes::Table, Routes::RouteId)).equals((Given::Table, Given::RouteId)))
}

/// Said by the status and not by `next_attempt_at`: the planner, whose statistics say that nothing is due, would otherwise
/// read the index of due routes whole, and each of them once for every element of the batch.
pub(crate) fn is_live() -> Expr {
    let live = RouteStatus::ALL.into_iter().filter(|status| status.is_live());
    Expr::col((Routes::Table, Routes::Status)).eq(any(bind::texts(live.map(RouteStatus::as_str))))
}

/// `UPDATE routes … FROM given WHERE key AND updated_at = expected`, which raises `updated_at` whatever the clock says. A
/// terminal route is never touched, not even one that somebody edited without raising its version.
fn change_if_unchanged(given: SelectStatement, now: Timestamp) -> UpdateStatement {
    let next_version = Func::greatest([
        bind::instant(now),
        Expr::col((Routes::Table, Routes::UpdatedAt)).add(Expr::cust("interval '1 microsecond'")),
    ]);
    Query::update()
        .table(Routes::Table)
        .value(Routes::UpdatedAt, next_version)
        .from(sea_query::TableRef::SubQuery(given.into(), sea_query::IntoIden::into_iden(Given::Table)))
        .and_where(on_key())
        .and_where(
            Expr::col((Routes::Table, Routes::UpdatedAt)).equals((Given::Table, Given::ExpectedUpdatedAt)),
        )
        .and_where(is_live())
        .take()
}

#[cfg(test)]
mod tests;
