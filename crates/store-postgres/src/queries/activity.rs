//! The activity of all replicas together, in steps.

use ambient::Timestamp;
use domain::ports::{Activity, StoreError};
use domain::query::{ActivityHistory, ActivityPeriod, StepCounts};
use domain::replica::{ActivityPart, Delays, PartActivity};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session, Statement};
use tokio_postgres::Row;

use crate::codec::{column, corrupt, instant};
use crate::error::store_error;

/// The most rows of parts that are read: 96 steps of 200 types and producers.
const MAX_PART_ROWS: usize = 20_000;

pub(super) async fn read(session: &Session, period: ActivityPeriod) -> Result<ActivityHistory, StoreError> {
    let rows = session.query(PRESENT.bind([])).await.map_err(store_error)?;
    let present = rows.first().map_or(Ok(Timestamp::UNIX_EPOCH), |row| instant(row, "at", ""))?;
    let rows = session.query(steps(&SUMS, period, present)).await.map_err(store_error)?;
    let totals = rows.iter().map(total).collect::<Result<_, _>>()?;
    let rows = session.query(steps(&PARTS, period, present)).await.map_err(store_error)?;
    let parts = rows.iter().map(part).collect::<Result<_, _>>()?;
    Ok(ActivityHistory::new(period, present, totals, parts))
}

pg::statements! {
    /// The present time.
    PRESENT = "activity.present", plan [], "SELECT now() AS at";

    /// A row for each replica and minute of the period, from the end of the primary key.
    SUMS = "activity.sums", plan ["activity_pkey"], "
        SELECT to_timestamp(floor(extract(epoch FROM minute) / $2::bigint) * $2::bigint) AS step,
            sum(accepted)::bigint AS accepted, sum(duplicates)::bigint AS duplicates,
            sum(conflicts)::bigint AS conflicts, sum(malformed)::bigint AS malformed,
            sum(published)::bigint AS published, sum(failed)::bigint AS failed,
            sum(dead_lettered)::bigint AS dead_lettered
        FROM activity
        WHERE minute >= $1::timestamptz
        GROUP BY 1
        ORDER BY 1
        LIMIT $3::bigint";

    /// A row for each part, replica and minute of the period, from the end of the primary key.
    PARTS = "activity.parts", plan ["activity_parts_pkey"], "
        SELECT to_timestamp(floor(extract(epoch FROM minute) / $2::bigint) * $2::bigint) AS step, scope, name,
            notification_type, sum(accepted)::bigint AS accepted, sum(duplicates)::bigint AS duplicates,
            sum(conflicts)::bigint AS conflicts, sum(malformed)::bigint AS malformed,
            sum(published)::bigint AS published, sum(failed)::bigint AS failed,
            sum(dead_lettered)::bigint AS dead_lettered,
            ARRAY[sum(delays[1]), sum(delays[2]), sum(delays[3]), sum(delays[4]), sum(delays[5]), sum(delays[6]),
                sum(delays[7]), sum(delays[8]), sum(delays[9]), sum(delays[10]), sum(delays[11]), sum(delays[12])
            ]::bigint[] AS delays
        FROM activity_parts
        WHERE minute >= $1::timestamptz
        GROUP BY 1, scope, name, notification_type
        ORDER BY 1 DESC, scope, name, notification_type
        LIMIT $3::bigint";
}

/// [`SUMS`] or [`PARTS`].
pub(super) fn steps(statement: &Statement, period: ActivityPeriod, present: Timestamp) -> BoundStatement {
    let step: Parameter = parameter::bigint(i64::try_from(period.step().as_secs()).unwrap_or(i64::MAX));
    statement.bind([parameter::instant(period.first_step(present)), step, parameter::rows(MAX_PART_ROWS)])
}

fn total(row: &Row) -> Result<StepCounts<Activity>, StoreError> {
    let step = instant(row, "step", "")?;
    Ok((step, counts(row, &step.to_string())?))
}

fn counts(row: &Row, key: &str) -> Result<Activity, StoreError> {
    let count = |place: &'static str| column::<i64>(row, place, key).map(i64::unsigned_abs);
    Ok(Activity {
        accepted: count("accepted")?,
        duplicates: count("duplicates")?,
        conflicts: count("conflicts")?,
        malformed: count("malformed")?,
        published: count("published")?,
        failed: count("failed")?,
        dead_lettered: count("dead_lettered")?,
    })
}

fn part(row: &Row) -> Result<StepCounts<(ActivityPart, PartActivity)>, StoreError> {
    let step = instant(row, "step", "")?;
    let key = step.to_string();
    let (scope, name): (String, String) = (column(row, "scope", &key)?, column(row, "name", &key)?);
    let part = match scope.as_str() {
        "producer" => ActivityPart::Producer(name),
        _ => ActivityPart::Routes {
            channel: name
                .parse()
                .map_err(|_| corrupt("activity_parts.name", &key, format!("{name} is not a channel")))?,
            notification_type: column(row, "notification_type", &key)?,
        },
    };
    let mut delays = Delays::default();
    let found: Vec<Option<i64>> = column(row, "delays", &key)?;
    for (count, found) in delays.0.iter_mut().zip(found) {
        *count = found.unwrap_or(0).unsigned_abs();
    }
    Ok((step, (part, PartActivity { activity: counts(row, &key)?, delays })))
}
