//! The counts of failing routes and of open dead letters.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::ports::{FailureCounts, StoreError};
use domain::route::{Channel, RouteStatus};
use pg::{BoundStatement, Session, parameter};

use crate::codec::{column, count, instant};
use crate::error::store_error;

/// The counts of each channel that has any.
pub(super) async fn counts(
    session: &Session,
    cap: usize,
) -> Result<HashMap<Channel, FailureCounts>, StoreError> {
    let mut counts: HashMap<Channel, FailureCounts> = HashMap::new();
    for row in session.query(failing(cap)).await.map_err(store_error)? {
        let name: String = column(&row, "routes.channel", "the failing routes")?;
        if let Ok(channel) = name.parse::<Channel>() {
            counts.entry(channel).or_default().failing = count(&row, "routes", "the failing routes")?;
        }
    }
    for row in session.query(open_dead_letters(cap)).await.map_err(store_error)? {
        let name: String = column(&row, "dead_letters.channel", "the open dead letters")?;
        if let Ok(channel) = name.parse::<Channel>() {
            let counts = counts.entry(channel).or_default();
            counts.dead_letters = count(&row, "routes", "the open dead letters")?;
            // A time outside the range is not shown: it was written by hand.
            counts.oldest_dead_letter = instant(&row, "dead_letters.created_at", &name).ok();
        }
    }
    Ok(counts)
}

pg::statements! {
    /// The failing routes of each channel, cut before they are counted.
    FAILING = "routes.count_failing", plan ["routes_unpublished_idx"], "
        SELECT channel, count(*) AS routes
        FROM (
            SELECT channel FROM routes
            WHERE status = $1::text AND status IN ('failed', 'dead_letter', 'skipped')
            LIMIT $2::bigint
        ) AS failing
        GROUP BY channel";

    /// The open dead letters of each channel up to a time, and the oldest one, cut before they are counted.
    OPEN_DEAD_LETTERS = "routes.count_open_dead_letters", plan ["dead_letters_open_idx"], "
        SELECT channel, count(*) AS routes, min(created_at) AS created_at
        FROM (
            SELECT channel, created_at FROM dead_letters
            WHERE discarded_at IS NULL AND created_at <= $1::timestamptz
            ORDER BY created_at, notification_id, route_id
            LIMIT $2::bigint
        ) AS open
        GROUP BY channel";
}

pub(super) fn failing(cap: usize) -> BoundStatement {
    FAILING.bind([parameter::text(RouteStatus::Failed.as_str()), parameter::rows(cap)])
}

pub(super) fn open_dead_letters(cap: usize) -> BoundStatement {
    OPEN_DEAD_LETTERS.bind([parameter::instant(Timestamp::MAX), parameter::rows(cap)])
}
