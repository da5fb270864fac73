//! Published routes and the ids of their entries, for the comparison with the entries in Redis (ADR 0021).

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::ports::{
    Completion, DuePage, Published, PublishedEntry, PublishedPage, RecordCursor, RepublishStore, SavedStream,
    ServerId, StoreError,
};
use domain::record::NotificationId;
use domain::republish::SeenStream;
use domain::route::{Channel, RouteKey};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session};
use tokio_postgres::Row;

use crate::codec::{self, column, corrupt, instant, loggable, optional_instant, route_keys};
use crate::error::store_error;
use crate::routes::live_columns_text;
use crate::{PgStore, routes};

/// The maximum number of rows of one page. It exceeds the routes of one record, so that a page has at least
/// one whole record.
const PAGE_ROWS_MAX: usize = 4_096;
/// The maximum number of names of outbound streams that are listed; two of a channel are enough to refuse its
/// comparison.
const MAX_NAMES: usize = 64;

impl RepublishStore for PgStore {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SavedStream>, StoreError> {
        let session = self.session("load how the outbound streams were seen").await?;
        let rows = session.query(saved_streams(streams)).await.map_err(store_error)?;
        rows.iter().map(saved_stream).collect()
    }

    async fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> Result<(), StoreError> {
        let session = self.session("save how the outbound streams are seen").await?;
        session.execute(save_streams(seen)).await.map(drop).map_err(store_error)
    }

    async fn touch_outbound_names(&self, streams: &[(Channel, &str)]) -> Result<(), StoreError> {
        let session = self.session("record the names of the outbound streams").await?;
        session.execute(touch_names(streams)).await.map(drop).map_err(store_error)
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
        let rows = session.query(published(before, since, records)).await.map_err(store_error)?;
        published_page(&rows, records)
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let session = self.session("read published routes").await?;
        let rows = session.query(published_routes(keys)).await.map_err(store_error)?;
        codec::live_routes(&rows)
    }

    async fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let session = self.session("replace published entry ids").await?;
        let rows = session.query(replace_entries(routes, now)).await.map_err(store_error)?;
        let replaced = route_keys(&rows)?;
        if replaced.len() == routes.len() {
            return Ok(vec![Completion::Applied; routes.len()]);
        }
        let rows = session.query(unchanged(routes)).await.map_err(store_error)?;
        let locked = route_keys(&rows)?;
        let completion = |key: &RouteKey| match () {
            () if replaced.contains(key) => Completion::Applied,
            () if locked.contains(key) => Completion::Locked,
            () => Completion::Conflict,
        };
        Ok(routes.iter().map(|route| completion(&route.key)).collect())
    }
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

pub(crate) async fn list_names(
    session: &Session,
    since: Timestamp,
) -> Result<Vec<(Channel, String)>, StoreError> {
    let names = NAMES_SINCE.bind([parameter::instant(since), parameter::rows(MAX_NAMES)]);
    let rows = session.query(names).await.map_err(store_error)?;
    rows.iter().map(outbound_name).collect()
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

/// The condition of [`domain::republish::keeps_entry`].
macro_rules! keeps_entry {
    () => {
        "(r.status = 'published' OR (r.status = 'skipped' AND r.published_entry_id <> ''))"
    };
}

pg::statements! {
    /// The saved states of streams.
    SAVED_STREAMS = "outbound_streams.list", plan ["outbound_streams_pkey"], "
        SELECT stream, server_run_id, replication_id, last_generated_id, seen_at, compare_again_since
        FROM outbound_streams
        WHERE stream = ANY ($1::text[])
        LIMIT $2::bigint";

    /// Saves the states of streams. The times are compared only with others of this database's clock.
    SAVE_STREAMS = "outbound_streams.save", plan [], "
        INSERT INTO outbound_streams (stream, server_run_id, replication_id, last_generated_id, compare_again_since,
            seen_at)
        SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::timestamptz[]),
            now()
        ON CONFLICT (stream) DO UPDATE
        SET server_run_id = excluded.server_run_id, replication_id = excluded.replication_id,
            last_generated_id = excluded.last_generated_id, compare_again_since = excluded.compare_again_since,
            seen_at = excluded.seen_at";

    /// Records that names are in use.
    TOUCH_NAMES = "outbound_names.touch", plan [], "
        INSERT INTO outbound_names (channel, stream, used_at) SELECT unnest($1::text[]), unnest($2::text[]), now()
        ON CONFLICT (channel, stream) DO UPDATE SET used_at = excluded.used_at";

    /// The names that were used since a time, the last used first. The table has a row for each name that a
    /// stream ever had, so it needs no index.
    NAMES_SINCE = "outbound_names.list_since", plan ["Seq Scan on outbound_names"], "
        SELECT channel, stream FROM outbound_names
        WHERE used_at >= $1::timestamptz
        ORDER BY used_at DESC
        LIMIT $2::bigint";

    /// A page of records, the newest first, with the published routes of each. A record without one has a
    /// row, too, so that the next page begins after it.
    PUBLISHED = "republish.list_published", plan ["records_listing_idx", "routes_pkey"], concat!("
        SELECT page.notification_id, page.accepted_at, r.route_id, r.channel, r.published_entry_id
        FROM (
            SELECT accepted_at, notification_id FROM records
            WHERE (accepted_at, notification_id) < ($1::timestamptz, $2::text) AND accepted_at >= $3::timestamptz
            ORDER BY accepted_at DESC, notification_id DESC
            LIMIT $4::bigint
        ) AS page
        LEFT JOIN routes r ON r.notification_id = page.notification_id AND ", keeps_entry!(), "
        ORDER BY page.accepted_at DESC, page.notification_id DESC
        LIMIT $5::bigint");

    /// The columns that publishing needs. A published route has no next attempt: its publication time is
    /// returned instead. The entry that the next one replaces is the one that the last resend replaced.
    PUBLISHED_ROUTES = "republish.published_routes", plan ["routes_pkey", "records_pkey"], concat!("
        SELECT ", live_columns_text!(), "
        FROM (
            SELECT r.notification_id, r.route_id, r.channel, r.updated_at, r.recipient_ref, r.resolved_email,
                r.resolved_locale, r.attempt_count, r.max_attempts, r.published_at AS next_attempt_at,
                coalesce(nullif(r.replaced_entry_id, r.published_entry_id), '') AS published_entry_id
            FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
            JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
            WHERE ", keeps_entry!(), "
        ) AS r
        JOIN records c ON c.notification_id = r.notification_id");

    // MODEL-33
    /// Changes only the entry id and the version. Skips a route that was changed or deleted since it was
    /// read, or that another transaction has locked.
    REPLACE_ENTRIES = "republish.replace_entries", plan ["routes_pkey"], concat!("
        UPDATE routes r
        SET published_entry_id = g.entry_id,
            updated_at = greatest($5::timestamptz, r.updated_at + interval '1 microsecond')
        FROM (
            SELECT g.*
            FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[])
                AS g (notification_id, route_id, expected, entry_id)
            JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
            WHERE r.updated_at = g.expected AND ", keeps_entry!(), "
            FOR NO KEY UPDATE OF r SKIP LOCKED
        ) AS g
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
            AND ", keeps_entry!(), "
        RETURNING r.notification_id, r.route_id");

    /// The routes that keep an entry at the version that was read: they would have been changed if they had
    /// not been locked.
    UNCHANGED = "republish.unchanged", plan ["routes_pkey"], concat!("
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.updated_at = g.expected AND ", keeps_entry!());
}

fn saved_streams(streams: &[&str]) -> BoundStatement {
    SAVED_STREAMS.bind([parameter::texts(streams), parameter::rows(streams.len())])
}

fn save_streams(seen: &[(SeenStream, Option<Timestamp>)]) -> BoundStatement {
    let texts = |value: fn(&SeenStream) -> &str| parameter::texts(seen.iter().map(|(seen, _)| value(seen)));
    SAVE_STREAMS.bind([
        texts(|seen| &seen.stream),
        texts(|seen| &seen.server.run_id),
        texts(|seen| &seen.server.replication_id),
        parameter::texts(seen.iter().map(|(seen, _)| seen.last_generated.to_string())),
        parameter::optional_instants(seen.iter().map(|(_, since)| *since)),
    ])
}

fn touch_names(streams: &[(Channel, &str)]) -> BoundStatement {
    let channels = parameter::texts(streams.iter().map(|(channel, _)| channel.as_str()));
    TOUCH_NAMES.bind([channels, parameter::texts(streams.iter().map(|(_, stream)| *stream))])
}

pub(crate) fn published(before: &RecordCursor, since: Timestamp, records: usize) -> BoundStatement {
    PUBLISHED.bind([
        parameter::instant(before.accepted_at),
        parameter::text(before.notification_id.as_str()),
        parameter::instant(since),
        parameter::rows(records),
        parameter::rows(PAGE_ROWS_MAX),
    ])
}

fn published_routes(keys: &[&RouteKey]) -> BoundStatement {
    let [notification_ids, route_ids] = routes::keys(keys.iter().copied());
    PUBLISHED_ROUTES.bind([notification_ids, route_ids])
}

fn replace_entries(routes: &[Published], now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids, expected] = as_read(routes);
    let entries = parameter::texts(routes.iter().map(|done| done.entry.entry_id.as_str()));
    REPLACE_ENTRIES.bind([notification_ids, route_ids, expected, entries, parameter::instant(now)])
}

fn unchanged(routes: &[Published]) -> BoundStatement {
    let [notification_ids, route_ids, expected] = as_read(routes);
    UNCHANGED.bind([notification_ids, route_ids, expected])
}

fn as_read(routes: &[Published]) -> [Parameter; 3] {
    let [notification_ids, route_ids] = routes::keys(routes.iter().map(|done| &done.key));
    let versions = parameter::instants(routes.iter().map(|done| done.version.updated_at()));
    [notification_ids, route_ids, versions]
}

#[cfg(test)]
mod tests;
