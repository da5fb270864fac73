//! The activity of all replicas together, minute by minute.

use domain::ports::{Activity, StoreError};
use domain::query::{ACTIVITY_MINUTES, ActivityHistory, MinuteActivity};
use pg::{Session, parameter};
use tokio_postgres::Row;

use crate::codec::{column, instant};
use crate::error::store_error;

pub(super) async fn read(session: &Session) -> Result<ActivityHistory, StoreError> {
    let rows = session.query(PRESENT.bind([])).await.map_err(store_error)?;
    let none = ambient::Timestamp::UNIX_EPOCH;
    let present = rows.first().map_or(Ok(none), |row| instant(row, "at", ""))?;
    let rows = session.query(SUMS.bind([parameter::rows(ACTIVITY_MINUTES)])).await.map_err(store_error)?;
    let minutes = rows.iter().map(sum).collect::<Result<_, _>>()?;
    Ok(ActivityHistory { present, minutes })
}

pg::statements! {
    /// The present minute.
    PRESENT = "activity.present", plan [], "SELECT date_trunc('minute', now()) AS at";

    /// The end of the primary key: a row for each replica and minute of the last hour.
    SUMS = "activity.sums", plan ["activity_pkey"], "
        SELECT minute, sum(accepted)::bigint AS accepted, sum(duplicates)::bigint AS duplicates,
            sum(conflicts)::bigint AS conflicts, sum(malformed)::bigint AS malformed,
            sum(published)::bigint AS published, sum(failed)::bigint AS failed,
            sum(dead_lettered)::bigint AS dead_lettered
        FROM activity
        WHERE minute > date_trunc('minute', now()) - $1::bigint * interval '1 minute'
        GROUP BY minute
        ORDER BY minute
        LIMIT $1::bigint + 1";
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
