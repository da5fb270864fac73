//! The frequency of each cause among the newest dead letters and malformed intents.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::{COUNT_CAP, Causes, DeadLetterCause, MAX_CAUSES, MalformedCause};
use pg::{BoundStatement, Session, Statement, parameter};
use tokio_postgres::Row;

use crate::codec::{column, count, name};
use crate::error::store_error;

pub(super) async fn of_dead_letters(session: &Session) -> Result<Causes<DeadLetterCause>, StoreError> {
    let rows = session.query(newest(&DEAD_LETTERS)).await.map_err(store_error)?;
    counted(&rows, |row| {
        let classification = column(row, "dead_letters.failure_classification", "")?;
        Ok(DeadLetterCause { channel: name(row, "dead_letters.channel", "")?, classification })
    })
}

pub(super) async fn of_malformed_intents(session: &Session) -> Result<Causes<MalformedCause>, StoreError> {
    let rows = session.query(newest(&MALFORMED_INTENTS)).await.map_err(store_error)?;
    counted(&rows, |row| {
        let code = column(row, "malformed_intents.failure_code", "")?;
        Ok(MalformedCause { code, producer: column(row, "malformed_intents.producer", "")? })
    })
}

fn counted<C: Ord>(
    rows: &[Row],
    cause: impl Fn(&Row) -> Result<C, StoreError>,
) -> Result<Causes<C>, StoreError> {
    let counts = rows.iter().map(|row| Ok((cause(row)?, count(row, "rows", "")?)));
    let counts = counts.collect::<Result<Vec<_>, StoreError>>()?;
    // The total, which is the same in each row.
    let all = rows.first().map_or(Ok(0), |row| count(row, "matches", ""))?;
    Ok(Causes::new(counts, all))
}

pg::statements! {
    /// A part of the open dead letters, newest first, from the start of the list. The total is that of all
    /// causes.
    DEAD_LETTERS = "causes.dead_letters", plan ["dead_letters_open_idx"], "
        SELECT channel, failure_classification, count(*) AS rows,
            (sum(count(*)) OVER ())::bigint AS matches
        FROM (
            SELECT channel, failure_classification FROM dead_letters
            WHERE discarded_at IS NULL AND created_at < $1::timestamptz
            ORDER BY created_at DESC
            LIMIT $2::bigint
        ) AS newest
        GROUP BY channel, failure_classification
        ORDER BY rows DESC
        LIMIT $3::bigint";

    /// A part of the malformed intents, newest first, from the start of the list. The total is that of all
    /// causes.
    MALFORMED_INTENTS = "causes.malformed_intents", plan ["malformed_intents_recorded_idx"], "
        SELECT failure_code, producer, count(*) AS rows, (sum(count(*)) OVER ())::bigint AS matches
        FROM (
            SELECT failure_code, producer FROM malformed_intents
            WHERE recorded_at < $1::timestamptz
            ORDER BY recorded_at DESC
            LIMIT $2::bigint
        ) AS newest
        GROUP BY failure_code, producer
        ORDER BY rows DESC
        LIMIT $3::bigint";
}

/// [`DEAD_LETTERS`] or [`MALFORMED_INTENTS`].
pub(super) fn newest(statement: &Statement) -> BoundStatement {
    let (counted, causes) = (parameter::bigint(COUNT_CAP as i64), parameter::rows(MAX_CAUSES));
    statement.bind([parameter::instant(Timestamp::MAX), counted, causes])
}
