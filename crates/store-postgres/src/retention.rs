//! Deletes expired records, in chunks that the worker sizes. Routes and dead letters are deleted with their
//! record by cascade, receipts by a statement of their own.
//!
//! A record may be deleted only if none of its routes is live, and an operator may be retrying one of its
//! dead letters at the same time (ADR 0020). So a chunk of records is one transaction that locks, checks
//! again, then deletes:
//!
//! 1. It locks the records, so that no other transaction adds routes, and all of their routes, so that no
//!    other changes them. It waits for no lock: rows that another transaction holds are left out.
//! 2. A later statement, which sees all changes committed before the locks were granted, counts the routes of
//!    each record. A record stays if one of its routes is live, or was not locked.
//! 3. It deletes the others and the receipts of their routes. A transaction that writes a receipt has locked
//!    its route.
//!
//! A record whose idempotency key must be kept for longer is listed like any other and stays: it is neither
//! locked nor counted.
//!
//! A crash at any of these steps leaves all records of the chunk unchanged, or none of them.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;
use domain::ports::{Cutoff, Expired, Removal, RetentionStore, StoreError};
use domain::record::NotificationId;
use futures_util::future::{join3, join4};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, PgError, Session};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{column, count, instant};
use crate::error::store_error;

impl RetentionStore<NotificationId> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<NotificationId>>,
        limit: usize,
    ) -> Result<Vec<Expired<NotificationId>>, StoreError> {
        let session = self.session("list expired records").await?;
        let rows = session.query(expired_records(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let id: String = column(row, "records.notification_id", "")?;
                Ok(Expired {
                    at: instant(row, "records.accepted_at", &id)?,
                    bytes: u64::from(column::<i32>(row, "bytes", &id)?.unsigned_abs())
                        + count(row, "receipt_bytes", &id)?,
                    rows: 1 + count(row, "routes", &id)? + count(row, "receipts", &id)?,
                    live: count(row, "live_routes", &id)? > 0,
                    key: NotificationId::from(id),
                })
            })
            .collect()
    }

    async fn delete_expired(&self, keys: &[&NotificationId], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let session = self.session("delete expired records").await?;
        let ids: Vec<&str> = keys.iter().map(|id| id.as_str()).collect();
        let result = delete_unless_live_or_locked(&session, &ids, cutoff).await;
        if result.is_err() {
            // The connection stays usable if the server only rejected a statement; otherwise this fails too,
            // and the session closes it. Either way the first error is the one to report.
            drop(session.rollback().await);
        }
        result
    }
}

async fn delete_unless_live_or_locked(
    session: &Session,
    ids: &[&str],
    cutoff: Cutoff,
) -> Result<Removal, StoreError> {
    let (records, routes, counts) = lock_and_count(session, ids, cutoff).await.map_err(store_error)?;
    let records: HashSet<&str> =
        records.iter().map(|row| column(row, "records.notification_id", "")).collect::<Result<_, _>>()?;
    let mut locked_routes: HashMap<&str, u64> = HashMap::new();
    for row in &routes {
        let id: &str = column(row, "routes.notification_id", "")?;
        locked_routes.insert(id, count(row, "routes", id)?);
    }
    let mut removal = Removal::default();
    let mut removable = Vec::new();
    for row in &counts {
        let id: &str = column(row, "records.notification_id", "")?;
        let routes = count(row, "routes", id)?;
        if count(row, "live_routes", id)? > 0 {
            removal.live += 1;
        } else if records.contains(id) && locked_routes.get(id).copied().unwrap_or(0) == routes {
            removable.push(id);
        } else {
            removal.locked += 1;
        }
    }
    if removable.is_empty() {
        session.rollback().await.map_err(store_error)?;
        return Ok(removal);
    }
    let receipts = session.prepare(delete_receipts(&removable)).await.map_err(store_error)?;
    let delete = session.prepare(delete_records(&removable)).await.map_err(store_error)?;
    // A COMMIT after a failed statement rolls back without an error of its own, so every result is checked.
    let (receipts, deleted, committed) =
        join3(session.change(&receipts), session.change(&delete), session.commit()).await;
    receipts.map_err(store_error)?;
    removal.removed = deleted.map_err(store_error)?;
    committed.map_err(store_error)?;
    Ok(removal)
}

/// Opens a transaction and sends its locks and its check together; the server runs them in sequence. Returns
/// the locked records, the locked routes of each, and all routes of each.
async fn lock_and_count(
    session: &Session,
    ids: &[&str],
    cutoff: Cutoff,
) -> Result<(Vec<Row>, Vec<Row>, Vec<Row>), PgError> {
    let records = session.prepare(lock_records(ids, cutoff)).await?;
    let routes = session.prepare(lock_routes(ids)).await?;
    let counts = session.prepare(count_routes(ids, cutoff)).await?;
    let (begun, records, routes, counts) =
        join4(session.begin(), session.run(&records), session.run(&routes), session.run(&counts)).await;
    begun?;
    Ok((records?, routes?, counts?))
}

// A record is expired by the earlier of two clocks, and the promised time of its key must have passed by
// both: a replica with a shorter retention than the one that accepted the record would otherwise forget the
// key too early.
pg::statements! {
    /// A page of expired records, read backwards from the index of the list, with the number of routes of
    /// each, and with its receipts. Their keys begin with the id of the record and a slash; the next
    /// character after a slash is 0, and keys are sorted by their bytes. Sizes are those stored, in the row
    /// or outside of it, as compressed.
    EXPIRED = "retention.expired_records", plan ["records_listing_idx", "routes_pkey", "receipts_pkey"], "
        SELECT page.notification_id, page.accepted_at, max(page.bytes) AS bytes, count(routes.route_id) AS routes,
            count(routes.next_attempt_at) AS live_routes, max(receipts.receipts) AS receipts,
            max(receipts.receipt_bytes) AS receipt_bytes
        FROM (
            SELECT accepted_at, notification_id,
                pg_column_size(payload_json) + pg_column_size(recipient_user_ids) AS bytes
            FROM records
            WHERE accepted_at < least($1::timestamptz, now() - $2::bigint * interval '1 microsecond')
                AND (accepted_at, notification_id) > ($3::timestamptz, $4::text)
            ORDER BY accepted_at, notification_id
            LIMIT $5::bigint
        ) AS page
        LEFT JOIN routes ON routes.notification_id = page.notification_id
        JOIN LATERAL (
            SELECT count(*) AS receipts, coalesce(sum(pg_column_size(value)), 0)::bigint AS receipt_bytes
            FROM receipts
            WHERE receipts.key >= page.notification_id || '/' AND receipts.key < page.notification_id || '0'
        ) AS receipts ON true
        GROUP BY page.accepted_at, page.notification_id
        ORDER BY page.accepted_at, page.notification_id";

    /// Locks records. The foreign key makes every transaction that adds a route lock its record, so none is
    /// added from here on.
    LOCK_RECORDS = "retention.lock_records", plan ["records_pkey"], "
        SELECT notification_id FROM records
        WHERE notification_id = ANY ($1::text[])
            AND accepted_at < least($2::timestamptz, now() - $3::bigint * interval '1 microsecond')
            AND idempotency_expires_at <= least($2::timestamptz + $3::bigint * interval '1 microsecond', now())
        FOR UPDATE SKIP LOCKED";

    /// Locks routes, and returns the number locked of each record.
    LOCK_ROUTES = "retention.lock_routes", plan ["routes_pkey"], "
        SELECT notification_id, count(*) AS routes
        FROM (
            SELECT notification_id FROM routes WHERE notification_id = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
        ) AS locked
        GROUP BY notification_id";

    /// The number of existing routes of each record, and of its live ones.
    COUNT_ROUTES = "retention.count_routes", plan ["records_pkey", "routes_pkey"], "
        SELECT records.notification_id, count(routes.route_id) AS routes, count(routes.next_attempt_at) AS live_routes
        FROM records LEFT JOIN routes ON routes.notification_id = records.notification_id
        WHERE records.notification_id = ANY ($1::text[])
            AND accepted_at < least($2::timestamptz, now() - $3::bigint * interval '1 microsecond')
            AND idempotency_expires_at <= least($2::timestamptz + $3::bigint * interval '1 microsecond', now())
        GROUP BY records.notification_id";

    /// Deletes receipts, by a range of keys for each record. A transaction that writes a receipt locks its
    /// route first, and all routes are locked here: none is added meanwhile.
    DELETE_RECEIPTS = "retention.delete_receipts", plan ["receipts_pkey"], "
        DELETE FROM receipts
        USING (SELECT unnest($1::text[]) AS notification_id) AS g
        WHERE receipts.key >= g.notification_id || '/' AND receipts.key < g.notification_id || '0'";

    /// Deletes records. The routes that would prevent it are locked and were checked.
    DELETE_RECORDS = "retention.delete_records", plan ["records_pkey"], "
        DELETE FROM records WHERE notification_id = ANY ($1::text[])";
}

/// The two clocks of a cutoff: the time by the replica's, and the age in microseconds by the database's.
pub(crate) fn clocks(cutoff: Cutoff) -> [Parameter; 2] {
    let age = i64::try_from(cutoff.age.as_micros()).unwrap_or(i64::MAX);
    [parameter::instant(cutoff.at), parameter::bigint(age)]
}

pub(crate) fn expired_records(
    cutoff: Cutoff,
    after: Option<&Expired<NotificationId>>,
    limit: usize,
) -> BoundStatement {
    let (time, id) = after.map_or((Timestamp::MIN, ""), |last| (last.at, last.key.as_str()));
    let [at, age] = clocks(cutoff);
    EXPIRED.bind([at, age, parameter::instant(time), parameter::text(id), parameter::rows(limit)])
}

pub(crate) fn lock_records(ids: &[&str], cutoff: Cutoff) -> BoundStatement {
    let [at, age] = clocks(cutoff);
    LOCK_RECORDS.bind([parameter::texts(ids), at, age])
}

pub(crate) fn lock_routes(ids: &[&str]) -> BoundStatement {
    LOCK_ROUTES.bind([parameter::texts(ids)])
}

pub(crate) fn count_routes(ids: &[&str], cutoff: Cutoff) -> BoundStatement {
    let [at, age] = clocks(cutoff);
    COUNT_ROUTES.bind([parameter::texts(ids), at, age])
}

pub(crate) fn delete_receipts(ids: &[&str]) -> BoundStatement {
    DELETE_RECEIPTS.bind([parameter::texts(ids)])
}

pub(crate) fn delete_records(ids: &[&str]) -> BoundStatement {
    DELETE_RECORDS.bind([parameter::texts(ids)])
}

#[cfg(test)]
mod tests;
