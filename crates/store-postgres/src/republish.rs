//! Published routes and the ids of their entries, for the comparison with the entries in Redis (ADR 0021).

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::ports::{
    Completion, DuePage, Published, PublishedEntry, PublishedPage, RecordCursor, RepublishStore, SavedStream,
    ServerId, StoreError,
};
use domain::record::NotificationId;
use domain::republish::SeenStream;
use domain::route::{Channel, RouteKey, RouteStatus};
use pg::sql::{any, insert_rows, unnest};
use pg::{PgError, Session, bind};
use sea_query::{
    Expr, ExprTrait, InsertStatement, LockBehavior, LockType, OnConflict, Order, Query, SelectStatement,
    UpdateStatement,
};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{self, column, corrupt, instant, loggable, optional_instant, route_keys};
use crate::error::store_error;
use crate::routes::{given_keys, live_columns, next_version, on_key, versioned};
use crate::schema::{Input, OutboundNames, OutboundStreams, Records, Routes};

/// The maximum number of rows of one page. It exceeds the routes of one record, so that a page has at least
/// one whole record.
const PAGE_ROWS_MAX: usize = 4_096;
/// The maximum number of names of outbound streams that are listed; two of a channel are enough to refuse its
/// comparison.
const MAX_NAMES: u64 = 64;

impl RepublishStore for PgStore {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SavedStream>, StoreError> {
        let session = self.session("load how the outbound streams were seen").await?;
        let rows = session.query(&saved_streams(streams)).await.map_err(store_error)?;
        rows.iter().map(saved_stream).collect()
    }

    async fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> Result<(), StoreError> {
        let session = self.session("save how the outbound streams are seen").await?;
        session.execute(&save_streams(seen)).await.map(drop).map_err(store_error)
    }

    async fn touch_outbound_names(&self, streams: &[(Channel, &str)]) -> Result<(), StoreError> {
        let session = self.session("record the names of the outbound streams").await?;
        session.execute(&touch_names(streams)).await.map(drop).map_err(store_error)
    }

    async fn list_outbound_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        list_names(&self.session("list the names of the outbound streams").await?, since).await
    }

    async fn list_published_entries(
        &self,
        before: &RecordCursor,
        since: Timestamp,
        records: usize,
    ) -> Result<PublishedPage, StoreError> {
        let session = self.session("list published routes").await?;
        let rows = session.query(&published(before, since, records)).await.map_err(store_error)?;
        published_page(&rows, records)
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let session = self.session("read published routes").await?;
        let rows = session.query(&published_routes(keys)).await.map_err(store_error)?;
        codec::live_routes(&rows)
    }

    async fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let session = self.session("replace published entry ids").await?;
        let rows = session.query(&replace_entries(routes, now)).await.map_err(store_error)?;
        let replaced = route_keys(&rows)?;
        if replaced.len() == routes.len() {
            return Ok(vec![Completion::Applied; routes.len()]);
        }
        let rows = session.query(&unchanged(routes)).await.map_err(store_error)?;
        let locked = route_keys(&rows)?;
        let completion = |key: &RouteKey| match () {
            () if replaced.contains(key) => Completion::Applied,
            () if locked.contains(key) => Completion::Locked,
            () => Completion::Conflict,
        };
        Ok(routes.iter().map(|route| completion(&route.key)).collect())
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&saved_streams(&[])).await?;
    session.prepare(&save_streams(&[])).await?;
    session.prepare(&touch_names(&[])).await?;
    session.prepare(&names_since(Timestamp::MIN)).await?;
    session.prepare(&published(&RecordCursor::before(Timestamp::MAX), Timestamp::MIN, 1)).await?;
    session.prepare(&published_routes(&[])).await?;
    session.prepare(&replace_entries(&[], Timestamp::MIN)).await?;
    session.prepare(&unchanged(&[])).await?;
    Ok(())
}

fn saved_streams(streams: &[&str]) -> SelectStatement {
    use OutboundStreams as S;
    Query::select()
        .columns([
            S::Stream,
            S::ServerRunId,
            S::ReplicationId,
            S::LastGeneratedId,
            S::SeenAt,
            S::CompareAgainSince,
        ])
        .from(S::Table)
        .and_where(Expr::col(S::Stream).eq(any(bind::texts(streams))))
        .limit(streams.len() as u64)
        .take()
}

fn saved_stream(row: &Row) -> Result<SavedStream, StoreError> {
    let stream: String = column(row, "outbound_streams.stream", "")?;
    let last: String = column(row, "outbound_streams.last_generated_id", &stream)?;
    let last_generated = last
        .parse()
        .map_err(|error| corrupt("outbound_streams.last_generated_id", &stream, format!("{error}")))?;
    let run_id: String = column(row, "outbound_streams.server_run_id", &stream)?;
    let replication_id: String = column(row, "outbound_streams.replication_id", &stream)?;
    Ok(SavedStream {
        seen_at: instant(row, "outbound_streams.seen_at", &stream)?,
        compare_again_since: optional_instant(row, "outbound_streams.compare_again_since", &stream)?,
        seen: SeenStream {
            server: ServerId { run_id: run_id.into(), replication_id: replication_id.into() },
            last_generated,
            stream,
        },
    })
}

/// The times are compared only with others of this database's clock.
fn save_streams(seen: &[(SeenStream, Option<Timestamp>)]) -> InsertStatement {
    use OutboundStreams as S;
    let texts =
        |value: fn(&SeenStream) -> String| unnest(bind::texts(seen.iter().map(|(seen, _)| value(seen))));
    let mut insert = insert_rows(
        S::Table,
        [
            (S::Stream, texts(|seen| seen.stream.clone())),
            (S::ServerRunId, texts(|seen| seen.server.run_id.to_string())),
            (S::ReplicationId, texts(|seen| seen.server.replication_id.to_string())),
            (S::LastGeneratedId, texts(|seen| seen.last_generated.to_string())),
            (S::CompareAgainSince, unnest(bind::optional_instants(seen.iter().map(|(_, since)| *since)))),
            (S::SeenAt, Expr::current_timestamp()),
        ],
    );
    insert.on_conflict(
        OnConflict::column(S::Stream)
            .update_columns([
                S::ServerRunId,
                S::ReplicationId,
                S::LastGeneratedId,
                S::CompareAgainSince,
                S::SeenAt,
            ])
            .to_owned(),
    );
    insert
}

fn touch_names(streams: &[(Channel, &str)]) -> InsertStatement {
    use OutboundNames as N;
    let mut insert = insert_rows(
        N::Table,
        [
            (N::Channel, unnest(bind::texts(streams.iter().map(|(channel, _)| channel.as_str())))),
            (N::Stream, unnest(bind::texts(streams.iter().map(|(_, stream)| *stream)))),
            (N::UsedAt, Expr::current_timestamp()),
        ],
    );
    insert.on_conflict(OnConflict::columns([N::Channel, N::Stream]).update_column(N::UsedAt).to_owned());
    insert
}

pub(crate) async fn list_names(
    session: &Session,
    since: Timestamp,
) -> Result<Vec<(Channel, String)>, StoreError> {
    let rows = session.query(&names_since(since)).await.map_err(store_error)?;
    rows.iter().map(outbound_name).collect()
}

fn names_since(since: Timestamp) -> SelectStatement {
    use OutboundNames as N;
    Query::select()
        .columns([N::Channel, N::Stream])
        .from(N::Table)
        .and_where(Expr::col(N::UsedAt).gte(bind::instant(since)))
        .order_by(N::UsedAt, Order::Desc)
        .limit(MAX_NAMES)
        .take()
}

fn outbound_name(row: &Row) -> Result<(Channel, String), StoreError> {
    let stream: String = column(row, "outbound_names.stream", "")?;
    let channel: String = column(row, "outbound_names.channel", &stream)?;
    let channel =
        channel.parse().map_err(|error| corrupt("outbound_names.channel", &stream, format!("{error}")))?;
    Ok((channel, stream))
}

fn record_cursor(row: &Row) -> Result<RecordCursor, StoreError> {
    let id: String = column(row, "records.notification_id", "")?;
    Ok(RecordCursor {
        accepted_at: instant(row, "records.accepted_at", &id)?,
        notification_id: NotificationId::from(id),
    })
}

/// A page of `records_listing_idx`, whose order is newest first, with the published routes of each record by
/// the primary key. A record without one has a row, too, so that the next page begins after it.
pub(crate) fn published(before: &RecordCursor, since: Timestamp, records: usize) -> SelectStatement {
    let order = [Records::AcceptedAt, Records::NotificationId];
    let place = [bind::instant(before.accepted_at), bind::text(before.notification_id.as_str())];
    let mut page = Query::select();
    page.columns(order)
        .from(Records::Table)
        .and_where(Expr::tuple(order.map(Expr::col)).lt(Expr::tuple(place)))
        .and_where(Expr::col(Records::AcceptedAt).gte(bind::instant(since)));
    for column in order {
        page.order_by(column, Order::Desc);
    }
    page.limit(records as u64);
    let of_route = |column: Routes| (Routes::Table, column);
    let mut select = Query::select();
    select
        .columns([(Input::Table, Records::NotificationId), (Input::Table, Records::AcceptedAt)])
        .columns([Routes::RouteId, Routes::Channel, Routes::PublishedEntryId].map(of_route))
        .from_subquery(page, Input::Table)
        .left_join(
            Routes::Table,
            Expr::col(of_route(Routes::NotificationId))
                .equals((Input::Table, Records::NotificationId))
                .and(Expr::col(of_route(Routes::Status)).eq(bind::text(RouteStatus::Published.as_str()))),
        );
    for column in order {
        select.order_by((Input::Table, column), Order::Desc);
    }
    select.limit(PAGE_ROWS_MAX as u64).take()
}

/// The page of these rows. If it was cut within a record, that record is left to the next page.
fn published_page(rows: &[Row], records: usize) -> Result<PublishedPage, StoreError> {
    let places = rows.iter().map(record_cursor).collect::<Result<Vec<_>, _>>()?;
    let is_cut = rows.len() == PAGE_ROWS_MAX;
    let last_begins = places.iter().position(|place| Some(place) == places.last()).unwrap_or(0);
    // The first record stays even if it fills the page; otherwise the list would never advance.
    let whole = if is_cut && last_begins > 0 { last_begins } else { rows.len() };
    let is_last = !is_cut && places.chunk_by(|one, other| one == other).count() < records;
    let next = if is_last { None } else { whole.checked_sub(1).map(|last| places[last].clone()) };
    let mut page = PublishedPage { next, ..PublishedPage::default() };
    for (row, place) in rows[..whole].iter().zip(places) {
        match published_entry(row, place.notification_id) {
            Ok(entry) => page.entries.extend(entry),
            Err(error) => page.corrupt.push(error),
        }
    }
    Ok(page)
}

/// The published entry of a row; `None` if the record has no published route.
fn published_entry(row: &Row, notification_id: NotificationId) -> Result<Option<PublishedEntry>, StoreError> {
    let route_id: Option<String> = column(row, "routes.route_id", notification_id.as_str())?;
    let Some(route_id) = route_id else { return Ok(None) };
    let key = RouteKey { notification_id, route_id };
    let name = loggable(&key);
    let channel: String = column(row, "routes.channel", &name)?;
    let entry_id: String = column(row, "routes.published_entry_id", &name)?;
    let channel = channel.parse().map_err(|error| corrupt("routes.channel", &name, format!("{error}")))?;
    let entry_id: EntryId =
        entry_id.parse().map_err(|error| corrupt("routes.published_entry_id", &name, format!("{error}")))?;
    Ok(Some(PublishedEntry { key, channel, entry_id }))
}

/// The columns that publishing needs, by the primary key. A published route has no next attempt: its
/// publication time is returned instead.
fn published_routes(keys: &[&RouteKey]) -> SelectStatement {
    let of_route = |column: Routes| (Routes::Table, column);
    let mut routes = Query::select();
    routes
        .columns(
            [
                Routes::NotificationId,
                Routes::RouteId,
                Routes::Channel,
                Routes::UpdatedAt,
                Routes::RecipientRef,
                Routes::ResolvedEmail,
                Routes::ResolvedLocale,
                Routes::AttemptCount,
                Routes::MaxAttempts,
            ]
            .map(of_route),
        )
        .expr_as(Expr::col(of_route(Routes::PublishedAt)), Routes::NextAttemptAt)
        .from_subquery(given_keys(keys.iter().copied()), Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(is_published());
    let mut select = Query::select();
    select.from_subquery(routes, Input::Table);
    live_columns(&mut select, Input::Table);
    select
}

/// Changes only the entry id and the version. Skips a route that was changed or deleted since it was read, or
/// that another transaction has locked.
fn replace_entries(routes: &[Published], now: Timestamp) -> UpdateStatement {
    let mut given = versioned(routes.iter().map(|done| (&done.key, done.version)));
    given
        .expr_as(unnest(bind::texts(routes.iter().map(|done| done.entry.entry_id.as_str()))), Input::EntryId);
    let unlocked = Query::select()
        .column((Input::Table, sea_query::Asterisk))
        .from_subquery(given, Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(as_read())
        .and_where(is_published())
        .lock_with_tables_behavior(LockType::NoKeyUpdate, [Routes::Table], LockBehavior::SkipLocked)
        .take();
    Query::update()
        .table(Routes::Table)
        .value(Routes::PublishedEntryId, Expr::col((Input::Table, Input::EntryId)))
        .value(Routes::UpdatedAt, next_version(now))
        .from(sea_query::TableRef::SubQuery(unlocked.into(), sea_query::IntoIden::into_iden(Input::Table)))
        .and_where(on_key())
        .and_where(as_read())
        .and_where(is_published())
        .returning(
            Query::returning()
                .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)]),
        )
        .take()
}

/// The routes that are published at the version that was read: they would have been changed if they had not
/// been locked.
fn unchanged(routes: &[Published]) -> SelectStatement {
    Query::select()
        .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)])
        .from_subquery(versioned(routes.iter().map(|done| (&done.key, done.version))), Input::Table)
        .inner_join(Routes::Table, on_key())
        .and_where(as_read())
        .and_where(is_published())
        .take()
}

fn as_read() -> Expr {
    Expr::col((Routes::Table, Routes::UpdatedAt)).equals((Input::Table, Input::ExpectedUpdatedAt))
}

fn is_published() -> Expr {
    Expr::col((Routes::Table, Routes::Status)).eq(bind::text(RouteStatus::Published.as_str()))
}

#[cfg(test)]
mod tests;
