//! The state of the service, as the tables record it. Nothing is counted further than [`COUNT_CAP`].

use std::time::Duration;

use ambient::Timestamp;
use domain::document::Age;
use domain::ports::StoreError;
use domain::query::{
    COUNT_CAP, CauseCounts, ChannelStatus, Counted, RECENT, RecentFailure, RecentFailures, StoreStatus,
};
use domain::receipt::ReceiptStatus;
use domain::route::{Channel, RouteStatus};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session, Statement};
use tokio_postgres::Row;

use super::replicas;
use crate::codec::{column, count, instant};
use crate::error::store_error;
use crate::receipts::receipt_with;
use crate::{checkpoint, holds, routes};

/// The period for which causes are counted.
const CAUSES_OF_LAST: Duration = Duration::from_secs(24 * 3_600);
/// The most producers that are named because they sent only malformed intents.
const MAX_FAILING_PRODUCERS: usize = 10;
/// The maximum number of receipts of one status that are examined.
const MAX_RECEIPTS: usize = 100_000;

pub(super) async fn read(session: &Session, stream: &str, now: Timestamp) -> Result<StoreStatus, StoreError> {
    let rows = session.query(TIME.bind([])).await.map_err(store_error)?;
    let at = rows.first().map_or(Ok(now), |row| instant(row, "at", ""))?;
    let oldest = routes::first_due_of_each(session).await?;
    let failing = counts_of(session, failing()).await?;
    let mut channels = Vec::new();
    for channel in Channel::ALL {
        let due = session.query(due(channel, now)).await.map_err(store_error)?;
        let due = due.first().map_or(Ok(0), |row| count(row, "routes", channel.as_str()))?;
        let failed = failing.counts.iter().find(|(name, _)| name == channel.as_str()).map_or(0, |(_, n)| *n);
        channels.push(ChannelStatus {
            channel,
            due: Counted::up_to_cap(due),
            oldest_due: oldest.get(&channel).filter(|due| **due <= now).map(|due| Age::between(*due, at)),
            failing: Counted { count: failed, capped: failing.capped },
            waiting: None,
        });
    }
    Ok(StoreStatus {
        at,
        stream: stream.to_owned(),
        checkpoint: checkpoint::load(session, stream).await?,
        channels,
        dead_letters: counts_of(session, recent(&RECENT_DEAD_LETTERS, at)).await?,
        malformed_intents: counts_of(session, recent(&RECENT_MALFORMED, at)).await?,
        recent: RecentFailures {
            dead_letters: failures(session, recent_failures(&NEW_DEAD_LETTERS, at)).await?,
            producers: failures(session, recent_failures(&ONLY_MALFORMED, at)).await?,
        },
        receipts: bad_receipts(session, at).await?,
        holds: holds::list(session).await?,
        replicas: replicas::list_with_holders(session).await?,
    })
}

async fn failures(session: &Session, statement: BoundStatement) -> Result<Vec<RecentFailure>, StoreError> {
    let rows = session.query(statement).await.map_err(store_error)?;
    let failure = |row: &Row| {
        let name: String = column(row, "name", "")?;
        Ok(RecentFailure {
            count: Counted::up_to_cap(count(row, "failures", &name)?),
            since: instant(row, "since", &name)?,
            cause: column(row, "cause", &name)?,
            name,
        })
    };
    rows.iter().map(failure).collect()
}

/// The receipts since [`CAUSES_OF_LAST`] that report a bounce or a complaint.
async fn bad_receipts(session: &Session, at: Timestamp) -> Result<CauseCounts, StoreError> {
    let mut all = CauseCounts::default();
    for status in [ReceiptStatus::Bounced, ReceiptStatus::Complained] {
        let rows = session.query(recent_receipts(status, at)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { continue };
        let found = count(row, "found", status.as_str())?;
        all.capped |= count(row, "examined", status.as_str())? >= MAX_RECEIPTS as u64;
        all.counts.extend((found > 0).then(|| (status.as_str().to_owned(), found)));
    }
    Ok(all)
}

async fn counts_of(session: &Session, statement: BoundStatement) -> Result<CauseCounts, StoreError> {
    let mut counts = Vec::new();
    for row in session.query(statement).await.map_err(store_error)? {
        let cause: String = column(&row, "classification", "")?;
        let rows = count(&row, "rows", &cause)?;
        counts.push((cause, rows));
    }
    counts.sort_by(|(one, rows), (other, more)| (more, one).cmp(&(rows, other)));
    let capped = counts.iter().map(|(_, rows)| rows).sum::<u64>() >= COUNT_CAP;
    Ok(CauseCounts { counts, capped })
}

pg::statements! {
    /// The time of the server.
    TIME = "status.time", plan [], "SELECT clock_timestamp() AS at";

    /// The number of due routes of a channel, cut before it is counted.
    DUE = "status.due", plan ["routes_due_idx"], "
        SELECT count(*) AS routes
        FROM (
            SELECT next_attempt_at FROM routes
            WHERE channel = $1::text AND next_attempt_at <= $2::timestamptz
            LIMIT $3::bigint
        ) AS due";

    /// The failing routes of each channel.
    FAILING = "status.failing", plan ["routes_unpublished_idx"], "
        SELECT channel AS classification, count(*) AS rows
        FROM (
            SELECT channel FROM routes
            WHERE status = $1::text AND status IN ('failed', 'dead_letter', 'skipped')
            LIMIT $2::bigint
        ) AS failing
        GROUP BY channel";

    /// The open dead letters since a time, newest first, by classification.
    RECENT_DEAD_LETTERS = "status.recent_dead_letters", plan ["dead_letters_open_idx"], "
        SELECT failure_classification AS classification, count(*) AS rows
        FROM (
            SELECT failure_classification FROM dead_letters
            WHERE discarded_at IS NULL AND created_at >= $1::timestamptz
            ORDER BY created_at DESC
            LIMIT $2::bigint
        ) AS recent
        GROUP BY failure_classification";

    /// The receipts with a status, and those of them whose report is not older than a time: both are written
    /// in one format, so that they compare as texts. The index finds a status in no order of time.
    RECENT_RECEIPTS = "status.recent_receipts", plan ["receipts_value_gin"], "
        SELECT count(*) AS examined, count(*) FILTER (WHERE at COLLATE \"C\" >= $2::text) AS found
        FROM (
            SELECT value ->> 'at' AS at FROM receipts WHERE value @> $1::text::jsonb LIMIT $3::bigint
        ) AS of_status";

    /// The malformed intents since a time, newest first, by code.
    RECENT_MALFORMED = "status.recent_malformed_intents", plan ["malformed_intents_recorded_idx"], "
        SELECT failure_code AS classification, count(*) AS rows
        FROM (
            SELECT failure_code FROM malformed_intents
            WHERE recorded_at >= $1::timestamptz
            ORDER BY recorded_at DESC
            LIMIT $2::bigint
        ) AS recent
        GROUP BY failure_code";

    /// The open dead letters since a time by channel, with the message of the newest.
    NEW_DEAD_LETTERS = "status.new_dead_letters", plan ["dead_letters_open_idx"], "
        SELECT channel AS name, count(*) AS failures, min(created_at) AS since,
            (array_agg(failure_message ORDER BY created_at DESC))[1] AS cause
        FROM (
            SELECT channel, created_at, failure_message FROM dead_letters
            WHERE discarded_at IS NULL AND created_at >= $1::timestamptz
            ORDER BY created_at DESC
            LIMIT $2::bigint
        ) AS recent
        GROUP BY channel
        ORDER BY channel
        LIMIT $3::bigint";

    /// The producers that sent only malformed intents since a time, with the message of the newest.
    ONLY_MALFORMED = "status.only_malformed", plan ["activity_parts_pkey", "malformed_intents_recorded_idx"], "
        SELECT name, failures, since, coalesce(cause, '') AS cause
        FROM (
            SELECT name, sum(malformed)::bigint AS failures, min(minute) AS since
            FROM activity_parts
            WHERE minute >= date_trunc('minute', $1::timestamptz) AND scope = 'producer' AND name <> ''
            GROUP BY name
            HAVING sum(malformed) > 0 AND sum(accepted + duplicates + conflicts) = 0
            ORDER BY sum(malformed) DESC, name
            LIMIT $3::bigint
        ) AS failing
        LEFT JOIN (
            SELECT producer, (array_agg(failure_code || ': ' || failure_message ORDER BY recorded_at DESC))[1] AS cause
            FROM (
                SELECT producer, failure_code, failure_message, recorded_at FROM malformed_intents
                WHERE recorded_at >= $1::timestamptz
                ORDER BY recorded_at DESC
                LIMIT $2::bigint
            ) AS recent
            GROUP BY producer
        ) AS newest ON newest.producer = failing.name
        ORDER BY failures DESC, name
        LIMIT $3::bigint";
}

fn cap() -> Parameter {
    parameter::bigint(COUNT_CAP as i64)
}

pub(super) fn due(channel: Channel, now: Timestamp) -> BoundStatement {
    DUE.bind([parameter::text(channel.as_str()), parameter::instant(now), cap()])
}

pub(super) fn failing() -> BoundStatement {
    FAILING.bind([parameter::text(RouteStatus::Failed.as_str()), cap()])
}

/// [`RECENT_DEAD_LETTERS`] or [`RECENT_MALFORMED`].
pub(super) fn recent(statement: &Statement, now: Timestamp) -> BoundStatement {
    statement.bind([parameter::instant(now - CAUSES_OF_LAST), cap()])
}

/// [`NEW_DEAD_LETTERS`] or [`ONLY_MALFORMED`].
pub(super) fn recent_failures(statement: &Statement, now: Timestamp) -> BoundStatement {
    statement.bind([parameter::instant(now - RECENT), cap(), parameter::rows(MAX_FAILING_PRODUCERS)])
}

pub(super) fn recent_receipts(status: ReceiptStatus, now: Timestamp) -> BoundStatement {
    let since = (now - CAUSES_OF_LAST).to_string();
    RECENT_RECEIPTS.bind([
        parameter::text(receipt_with(status)),
        parameter::text(since),
        parameter::rows(MAX_RECEIPTS),
    ])
}
