//! The frequency of each cause among the newest dead letters and malformed intents.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::{COUNT_CAP, Causes, DeadLetterCause, MAX_CAUSES, MalformedCause};
use pg::{PgError, Session, bind};
use sea_query::{Alias, Expr, ExprTrait, Func, Iden, Order, Query, SelectStatement};
use tokio_postgres::Row;

use crate::codec::{column, count, name};
use crate::error::store_error;
use crate::schema::{DeadLetters, Input, MalformedIntents};

pub(super) async fn of_dead_letters(session: &Session) -> Result<Causes<DeadLetterCause>, StoreError> {
    let rows = session.query(&dead_letters()).await.map_err(store_error)?;
    counted(&rows, |row| {
        let classification = column(row, "dead_letters.failure_classification", "")?;
        Ok(DeadLetterCause { channel: name(row, "dead_letters.channel", "")?, classification })
    })
}

pub(super) async fn of_malformed_intents(session: &Session) -> Result<Causes<MalformedCause>, StoreError> {
    let rows = session.query(&malformed_intents()).await.map_err(store_error)?;
    counted(&rows, |row| {
        let code = column(row, "malformed_intents.failure_code", "")?;
        Ok(MalformedCause { code, producer: column(row, "malformed_intents.producer", "")? })
    })
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&dead_letters()).await?;
    session.prepare(&malformed_intents()).await?;
    Ok(())
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

/// A part of `dead_letters_open_idx`, newest first, from the start of the list.
pub(super) fn dead_letters() -> SelectStatement {
    use DeadLetters as D;
    let mut some = Query::select();
    some.from(D::Table)
        .and_where(Expr::col(D::DiscardedAt).is_null())
        .and_where(Expr::col(D::CreatedAt).lt(bind::instant(Timestamp::MAX)))
        .order_by(D::CreatedAt, Order::Desc);
    by_causes([D::Channel, D::FailureClassification], some)
}

/// A part of `malformed_intents_recorded_idx`, newest first, from the start of the list.
pub(super) fn malformed_intents() -> SelectStatement {
    use MalformedIntents as M;
    let mut some = Query::select();
    some.from(M::Table)
        .and_where(Expr::col(M::RecordedAt).lt(bind::instant(Timestamp::MAX)))
        .order_by(M::RecordedAt, Order::Desc);
    by_causes([M::FailureCode, M::Producer], some)
}

/// The number of rows of `some` with each pair of values, and the total number.
fn by_causes(causes: [impl Iden + Copy + 'static; 2], mut some: SelectStatement) -> SelectStatement {
    let some = some.columns(causes).limit(COUNT_CAP).take();
    let all = Expr::cust("(sum(count(*)) OVER ())").cast_as(Alias::new("bigint"));
    Query::select()
        .columns(causes)
        .expr_as(Func::count(Expr::col(sea_query::Asterisk)), Input::Rows)
        .expr_as(all, Input::Matches)
        .from_subquery(some, Input::Table)
        .group_by_columns(causes)
        .order_by(Input::Rows, Order::Desc)
        .limit(MAX_CAUSES as u64)
        .take()
}
