//! Published routes and the ids of their entries, for the comparison with what Redis still has (ADR 0021).

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::ports::{
    DuePage, Published, PublishedEntry, PublishedPage, RecordCursor, RepublishStore, StoreError, Swap,
};
use domain::record::NotificationId;
use domain::republish::SeenStream;
use domain::route::{RouteKey, RouteStatus};
use pg::sql::{any, insert_rows, unnest};
use pg::{PgError, Session, bind};
use sea_query::{
    Expr, ExprTrait, InsertStatement, OnConflict, Order, Query, SelectStatement, UpdateStatement,
};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{self, column, corrupt, instant, loggable, route_keys};
use crate::error::store_error;
use crate::routes::{given_keys, live_columns, next_version, on_key, versioned};
use crate::schema::{Input, OutboundStreams, Records, Routes};

/// The most rows of one page. More than one record can have routes, so that a page holds at least one whole record.
const PAGE_ROWS_MAX: usize = 4_096;

impl RepublishStore for PgStore {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SeenStream>, StoreError> {
        let session = self.session("load how the outbound streams were seen").await?;
        let rows = session.query(&seen_streams(streams)).await.map_err(store_error)?;
        rows.iter().map(seen_stream).collect()
    }

    async fn save_outbound_streams(&self, seen: &[SeenStream]) -> Result<(), StoreError> {
        let session = self.session("save how the outbound streams are seen").await?;
        session.execute(&save_streams(seen)).await.map(drop).map_err(store_error)
    }

    async fn list_published_entries(
        &self,
        since: Timestamp,
        after: &RecordCursor,
        until: Timestamp,
        records: usize,
    ) -> Result<PublishedPage, StoreError> {
        let session = self.session("list published routes").await?;
        let rows = session.query(&published(since, after, until, records)).await.map_err(store_error)?;
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
    ) -> Result<Vec<Swap>, StoreError> {
        let session = self.session("replace published entry ids").await?;
        let rows = session.query(&replace_entries(routes, now)).await.map_err(store_error)?;
        let replaced = route_keys(&rows)?;
        let swap = |replaced| if replaced { Swap::Applied } else { Swap::Conflict };
        Ok(routes.iter().map(|route| swap(replaced.contains(&route.key))).collect())
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&seen_streams(&[])).await?;
    session.prepare(&save_streams(&[])).await?;
    let before_all = RecordCursor::before(Timestamp::MIN);
    session.prepare(&published(Timestamp::MIN, &before_all, Timestamp::MIN, 1)).await?;
    session.prepare(&published_routes(&[])).await?;
    session.prepare(&replace_entries(&[], Timestamp::MIN)).await?;
    Ok(())
}

fn seen_streams(streams: &[&str]) -> SelectStatement {
    use OutboundStreams as S;
    Query::select()
        .columns([S::Stream, S::ServerRunId, S::ReplicationId, S::LastGeneratedId, S::SeenAt])
        .from(S::Table)
        .and_where(Expr::col(S::Stream).eq(any(bind::texts(streams))))
        .limit(streams.len() as u64)
        .take()
}

fn seen_stream(row: &Row) -> Result<SeenStream, StoreError> {
    let stream: String = column(row, "outbound_streams.stream", "")?;
    let last: String = column(row, "outbound_streams.last_generated_id", &stream)?;
    let last_generated = last
        .parse()
        .map_err(|error| corrupt("outbound_streams.last_generated_id", &stream, format!("{error}")))?;
    Ok(SeenStream {
        run_id: column(row, "outbound_streams.server_run_id", &stream)?,
        replication_id: column(row, "outbound_streams.replication_id", &stream)?,
        last_generated,
        seen_at: instant(row, "outbound_streams.seen_at", &stream)?,
        stream,
    })
}

fn save_streams(seen: &[SeenStream]) -> InsertStatement {
    use OutboundStreams as S;
    let texts = |value: fn(&SeenStream) -> String| unnest(bind::texts(seen.iter().map(value)));
    let mut insert = insert_rows(
        S::Table,
        [
            (S::Stream, texts(|seen| seen.stream.clone())),
            (S::ServerRunId, texts(|seen| seen.run_id.clone())),
            (S::ReplicationId, texts(|seen| seen.replication_id.clone())),
            (S::LastGeneratedId, texts(|seen| seen.last_generated.to_string())),
            (S::SeenAt, unnest(bind::instants(seen.iter().map(|seen| seen.seen_at)))),
        ],
    );
    insert.on_conflict(
        OnConflict::column(S::Stream)
            .update_columns([S::ServerRunId, S::ReplicationId, S::LastGeneratedId, S::SeenAt])
            .to_owned(),
    );
    insert
}

/// A page of `records_listing_idx`, read backwards, with the published routes of each record by the primary key. A record
/// without one is a row, too, so that the next page begins after it.
pub(crate) fn published(
    since: Timestamp,
    after: &RecordCursor,
    until: Timestamp,
    records: usize,
) -> SelectStatement {
    let order = [Records::AcceptedAt, Records::NotificationId];
    let place = [bind::instant(after.accepted_at), bind::text(after.notification_id.as_str())];
    let mut page = Query::select();
    page.columns(order)
        .from(Records::Table)
        .and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple(place)))
        .and_where(Expr::col(Records::AcceptedAt).lte(bind::instant(until)));
    for column in order {
        page.order_by(column, Order::Asc);
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
                .and(Expr::col(of_route(Routes::Status)).eq(bind::text(RouteStatus::Published.as_str())))
                .and(Expr::col(of_route(Routes::PublishedAt)).gte(bind::instant(since))),
        );
    for column in order {
        select.order_by((Input::Table, column), Order::Asc);
    }
    select.limit(PAGE_ROWS_MAX as u64).take()
}

/// Of a page that was cut in the middle of a record, that record is left to the next page.
fn published_page(rows: &[Row], records: usize) -> Result<PublishedPage, StoreError> {
    let place = |row: &Row| -> Result<RecordCursor, StoreError> {
        let id: String = column(row, "records.notification_id", "")?;
        Ok(RecordCursor {
            accepted_at: instant(row, "records.accepted_at", &id)?,
            notification_id: NotificationId::from(id),
        })
    };
    let places = rows.iter().map(place).collect::<Result<Vec<_>, _>>()?;
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

/// `None` where the record has no route that was published in time.
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

/// The columns that publishing needs, by the primary key. A published route has no next attempt: the time at which it was
/// published takes that place.
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

/// Nothing but the entry id and the version. A route that was changed or deleted since it was read stays as it is.
fn replace_entries(routes: &[Published], now: Timestamp) -> UpdateStatement {
    let mut given = versioned(routes.iter().map(|done| (&done.key, done.version)));
    given.expr_as(unnest(bind::texts(routes.iter().map(|done| done.entry_id.as_str()))), Input::EntryId);
    Query::update()
        .table(Routes::Table)
        .value(Routes::PublishedEntryId, Expr::col((Input::Table, Input::EntryId)))
        .value(Routes::UpdatedAt, next_version(now))
        .from(sea_query::TableRef::SubQuery(given.into(), sea_query::IntoIden::into_iden(Input::Table)))
        .and_where(on_key())
        .and_where(
            Expr::col((Routes::Table, Routes::UpdatedAt)).equals((Input::Table, Input::ExpectedUpdatedAt)),
        )
        .and_where(is_published())
        .returning(
            Query::returning()
                .columns([(Routes::Table, Routes::NotificationId), (Routes::Table, Routes::RouteId)]),
        )
        .take()
}

fn is_published() -> Expr {
    Expr::col((Routes::Table, Routes::Status)).eq(bind::text(RouteStatus::Published.as_str()))
}

#[cfg(test)]
mod tests;
