//! The activity of all replicas together, minute by minute.

use domain::ports::{Activity, StoreError};
use domain::query::{ACTIVITY_MINUTES, ActivityHistory, MinuteActivity};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, Order, Query, SelectStatement};
use tokio_postgres::Row;

use crate::codec::{column, instant};
use crate::error::store_error;
use crate::schema::{Activity as A, Input};

/// The counts, in the order of the fields of [`Activity`].
const COUNTS: [A; 7] =
    [A::Accepted, A::Duplicates, A::Conflicts, A::Malformed, A::Published, A::Failed, A::DeadLettered];

pub(super) async fn read(session: &Session) -> Result<ActivityHistory, StoreError> {
    let rows = session.query(&present()).await.map_err(store_error)?;
    let none = ambient::Timestamp::UNIX_EPOCH;
    let present = rows.first().map_or(Ok(none), |row| instant(row, "at", ""))?;
    let rows = session.query(&sums()).await.map_err(store_error)?;
    let minutes = rows.iter().map(sum).collect::<Result<_, _>>()?;
    Ok(ActivityHistory { present, minutes })
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&present()).await?;
    session.prepare(&sums()).await?;
    Ok(())
}

fn present() -> SelectStatement {
    Query::select().expr_as(Expr::cust("date_trunc('minute', now())"), Input::At).take()
}

/// The end of the primary key: a row for each replica and minute of the last hour.
fn sums() -> SelectStatement {
    let minutes = bind::bigint(ACTIVITY_MINUTES as i64).mul(Expr::cust("interval '1 minute'"));
    let mut sums = Query::select();
    sums.column(A::Minute)
        .from(A::Table)
        .and_where(Expr::col(A::Minute).gt(Expr::cust("date_trunc('minute', now())").sub(minutes)))
        .group_by_col(A::Minute)
        .order_by(A::Minute, Order::Asc)
        .limit(ACTIVITY_MINUTES as u64 + 1);
    for count in COUNTS {
        sums.expr_as(Func::sum(Expr::col(count)).cast_as("bigint"), count);
    }
    sums.take()
}

fn sum(row: &Row) -> Result<MinuteActivity, StoreError> {
    let minute = instant(row, "activity.minute", "")?;
    let key = minute.to_string();
    let count = |place: &'static str| column::<i64>(row, place, &key).map(i64::unsigned_abs);
    let activity = Activity {
        accepted: count("activity.accepted")?,
        duplicates: count("activity.duplicates")?,
        conflicts: count("activity.conflicts")?,
        malformed: count("activity.malformed")?,
        published: count("activity.published")?,
        failed: count("activity.failed")?,
        dead_lettered: count("activity.dead_lettered")?,
    };
    Ok(MinuteActivity { minute, activity })
}
