//! The list of dead letters, for reading and for selecting those that an operator changes.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::{DeadLetter, DeadLetterFilter, DeadLetterPlace, Page, PageLimit};
use domain::route::{Channel, RouteStatus, Version};
use pg::{BoundStatement, Session, parameter};
use tokio_postgres::Row;

use super::detail::discarded;
use super::{MAX_EXAMINED, examined, page};
use crate::codec::{column, instant, loggable, name, route_key, small_count};
use crate::error::store_error;

/// A dead letter and the version of its route.
pub(crate) struct DeadLetterRow {
    pub(crate) letter: DeadLetter,
    pub(crate) version: Version,
}

pub(super) async fn list(
    session: &Session,
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: PageLimit,
) -> Result<Page<DeadLetter, DeadLetterPlace>, StoreError> {
    let Page { items, next } = dead_letter_page(session, filter, after, limit.get()).await?;
    Ok(Page { items: items.into_iter().map(|row| row.letter).collect(), next })
}

/// At most `limit` dead letters after a position.
pub(crate) async fn dead_letter_page(
    session: &Session,
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: usize,
) -> Result<Page<DeadLetterRow, DeadLetterPlace>, StoreError> {
    let rows = session.query(listed(filter, after, limit)).await.map_err(store_error)?;
    Ok(page(examined(&rows, parse)?, limit, |row| row.letter.place()))
}

fn parse(row: &Row) -> Result<DeadLetterRow, StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    let text = |place| column::<String>(row, place, &shown);
    let letter = DeadLetter {
        notification_type: text("records.notification_type")?,
        channel: name(row, "dead_letters.channel", &shown)?,
        recipient_ref: text("dead_letters.recipient_ref")?,
        final_attempt_count: small_count(row, "dead_letters.final_attempt_count", &shown)?,
        max_attempts: small_count(row, "dead_letters.max_attempts", &shown)?,
        failure_classification: text("dead_letters.failure_classification")?,
        failure_message: text("dead_letters.failure_message")?,
        recovery_hint: text("dead_letters.recovery_hint")?,
        created_at: instant(row, "dead_letters.created_at", &shown)?,
        discarded: discarded(row, &shown)?,
        key,
    };
    let version = Version::read(instant(row, "routes.updated_at", &shown)?);
    Ok(DeadLetterRow { letter, version })
}

/// At most [`MAX_EXAMINED`] dead letters after a position, joined by their keys with record and route.
/// Returns the matching rows until the page is full, and the last one in any case. A row whose route is not a
/// dead letter, because it was edited by hand, does not match.
///
/// The conditions on the row alone are also evaluated before the joins: if few of many rows match, record and
/// route of the others are not read. A route is read by its whole key: in a plain join the planner may look
/// it up by the notification alone, and read all routes of an intent to a thousand users for each dead
/// letter.
macro_rules! listed_text {
    ($is_listed:literal) => {
        concat!(
            "
        SELECT d.*, r.notification_type, t.updated_at,
            ($6::text IS NULL OR d.channel = $6::text)
            AND ($7::text IS NULL OR d.failure_classification = $7::text)
            AND ($8::text IS NULL OR r.notification_type = $8::text) AND t.status = $9::text AS matches
        FROM (
            SELECT *, row_number() OVER (ORDER BY created_at DESC, notification_id DESC, route_id DESC) AS rows
            FROM dead_letters
            WHERE ",
            $is_listed,
            " AND (created_at, notification_id, route_id) < ($1::timestamptz, $2::text, $3::text)
                AND created_at >= $4::timestamptz
            ORDER BY created_at DESC, notification_id DESC, route_id DESC
            LIMIT $5::bigint
        ) AS d
        JOIN records r ON r.notification_id = d.notification_id
        JOIN LATERAL (
            SELECT status, updated_at FROM routes
            WHERE notification_id = d.notification_id AND route_id = d.route_id
            LIMIT 1
        ) AS t ON true
        WHERE (
            ($6::text IS NULL OR d.channel = $6::text)
            AND ($7::text IS NULL OR d.failure_classification = $7::text)
            OR d.rows = $5::bigint
        ) AND (
            ($8::text IS NULL OR r.notification_type = $8::text) AND t.status = $9::text
            OR d.rows = $5::bigint
        )
        ORDER BY d.created_at DESC, d.notification_id DESC, d.route_id DESC
        LIMIT $10::bigint"
        )
    };
}

pg::statements! {
    /// The dead letters that were not discarded.
    OPEN = "dead_letters.list_open", plan ["dead_letters_open_idx", "records_pkey", "routes_pkey"],
        listed_text!("discarded_at IS NULL");

    /// The dead letters that were discarded.
    DISCARDED = "dead_letters.list_discarded",
        plan ["dead_letters_discarded_idx", "records_pkey", "routes_pkey"],
        listed_text!("discarded_at IS NOT NULL");
}

pub(super) fn listed(
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: usize,
) -> BoundStatement {
    let before = filter.created_before.unwrap_or(Timestamp::MAX);
    let (at, id, route_id) = match after {
        Some(place) if place.created_at < before => {
            (place.created_at, place.key.notification_id.as_str(), place.key.route_id.as_str())
        }
        _ => (before, "", ""),
    };
    let statement = if filter.discarded { DISCARDED } else { OPEN };
    statement.bind([
        parameter::instant(at),
        parameter::text(id),
        parameter::text(route_id),
        parameter::instant(filter.created_after.unwrap_or(Timestamp::MIN)),
        parameter::rows(MAX_EXAMINED),
        parameter::optional_text(filter.channel.map(Channel::as_str)),
        parameter::optional_text(filter.classification.as_deref()),
        parameter::optional_text(filter.notification_type.as_deref()),
        parameter::text(RouteStatus::DeadLetter.as_str()),
        parameter::rows(limit),
    ])
}
