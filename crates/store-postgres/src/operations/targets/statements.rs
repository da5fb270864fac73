//! The statements that select routes by a filter.

use ambient::Timestamp;
use domain::operations::{Changeable, LivePlace, RouteFilter, TargetPlace};
use domain::record::NotificationId;
use domain::route::{Channel, RouteStatus};
use pg::BoundStatement;
use pg::parameter::{self, Parameter};

use super::{MAX_EXAMINED_RECORDS, MAX_PUBLISH_DELAY};
use crate::queries::MAX_EXAMINED;

pg::statements! {
    /// Live routes of a channel after a position, cut from the index before anything is joined to it. Returns
    /// the matching ones until the page is full, and the last one that was examined in any case. The
    /// conditions on the route alone are evaluated before the join.
    LIVE = "operations.live", plan ["routes_due_idx", "records_pkey"], "
        SELECT * FROM (
            SELECT r.*, c.notification_type, r.of_route AND ($7::text IS NULL OR c.notification_type = $7::text)
                AND ($8::text IS NULL OR c.producer = $8::text) AS matches
            FROM (
                SELECT notification_id, route_id, channel, updated_at, attempt_count, published_entry_id, next_attempt_at,
                    next_attempt_at::text AS next_attempt_at_text,
                    created_at >= $9::timestamptz AND created_at < $10::timestamptz
                        AND (cardinality($6::text[]) = 0 OR recipient_ref = ANY ($6::text[])) AS of_route,
                    row_number() OVER (ORDER BY next_attempt_at, notification_id, route_id) AS rows
                FROM routes
                WHERE channel = $1::text AND next_attempt_at IS NOT NULL
                    AND (next_attempt_at, notification_id, route_id) > ($2::text::timestamptz, $3::text, $4::text)
                ORDER BY next_attempt_at, notification_id, route_id
                LIMIT $5::bigint
            ) AS r
            JOIN records c ON c.notification_id = r.notification_id
            WHERE r.of_route OR r.rows = $5::bigint
        ) AS compared
        WHERE matches OR rows = $5::bigint
        ORDER BY next_attempt_at, notification_id, route_id
        LIMIT $11::bigint";

    /// The published routes of a page of records, the newest first. The first record is continued after a
    /// route. The last record that was examined has a row in any case. Both lists come in the order of their
    /// indexes, so that nothing is sorted beyond the limit.
    PUBLISHED = "operations.published", plan ["records_listing_idx", "routes_pkey"], "
        SELECT page.notification_id, page.accepted_at, page.notification_type, page.rows, r.route_id, r.channel,
            r.updated_at, r.attempt_count, '' AS published_entry_id
        FROM (
            SELECT notification_id, accepted_at, notification_type, producer,
                row_number() OVER (ORDER BY accepted_at DESC, notification_id DESC) AS rows
            FROM records
            WHERE (accepted_at, notification_id) <= ($1::timestamptz, $2::text) AND accepted_at >= $3::timestamptz
            ORDER BY accepted_at DESC, notification_id DESC
            LIMIT $4::bigint
        ) AS page
        LEFT JOIN LATERAL (
            SELECT route_id, channel, updated_at, attempt_count FROM routes
            WHERE notification_id = page.notification_id AND status = $5::text
                AND (page.notification_id <> $2::text OR route_id > $6::text)
                AND published_at >= $7::timestamptz AND greatest(published_at, resent_at) < $8::timestamptz
                AND ($9::text IS NULL OR channel = $9::text)
                AND (cardinality($10::text[]) = 0 OR recipient_ref = ANY ($10::text[]))
                AND ($11::text IS NULL OR page.notification_type = $11::text)
                AND ($12::text IS NULL OR page.producer = $12::text)
            ORDER BY route_id
            LIMIT $13::bigint
        ) AS r ON true
        WHERE r.route_id IS NOT NULL OR page.rows = $4::bigint
        ORDER BY page.accepted_at DESC, page.notification_id DESC
        LIMIT $13::bigint";

    /// The routes of a notification after a position.
    OF_NOTIFICATION = "operations.of_notification", plan ["routes_pkey", "records_pkey"], "
        SELECT r.notification_id, r.route_id, r.channel, r.updated_at, r.attempt_count, r.published_entry_id,
            c.notification_type
        FROM routes r
        JOIN records c ON c.notification_id = r.notification_id
        WHERE r.notification_id = $1::text AND r.route_id > $2::text AND r.status = ANY ($3::text[])
            AND ($4::text IS NULL OR r.channel = $4::text)
            AND (cardinality($5::text[]) = 0 OR r.recipient_ref = ANY ($5::text[]))
            AND ($6::text IS NULL OR c.notification_type = $6::text) AND ($7::text IS NULL OR c.producer = $7::text)
            AND CASE WHEN $10::boolean
                THEN r.published_at >= $8::timestamptz AND greatest(r.published_at, r.resent_at) < $9::timestamptz
                ELSE r.created_at >= $8::timestamptz AND r.created_at < $9::timestamptz
            END
        ORDER BY r.route_id
        LIMIT $11::bigint";
}

pub(in crate::operations) fn live(filter: &RouteFilter, place: &LivePlace, limit: usize) -> BoundStatement {
    let [recipients, of_type, producer, since, until] = conditions(filter);
    LIVE.bind([
        parameter::text(place.channel.as_str()),
        parameter::text(&*place.next_attempt_at),
        parameter::text(place.key.notification_id.as_str()),
        parameter::text(&*place.key.route_id),
        parameter::rows(MAX_EXAMINED),
        recipients,
        of_type,
        producer,
        since,
        until,
        parameter::rows(limit),
    ])
}

pub(in crate::operations) fn of_notification(
    state: Changeable,
    id: &NotificationId,
    filter: &RouteFilter,
    after: &str,
    limit: usize,
) -> BoundStatement {
    let [recipients, of_type, producer, since, until] = conditions(filter);
    OF_NOTIFICATION.bind([
        parameter::text(id.as_str()),
        parameter::text(after),
        parameter::texts(state.statuses()),
        parameter::optional_text(filter.channel.map(Channel::as_str)),
        recipients,
        of_type,
        producer,
        since,
        until,
        parameter::boolean(state == Changeable::Published),
        parameter::rows(limit),
    ])
}

pub(in crate::operations) fn published(
    filter: &RouteFilter,
    after: Option<&TargetPlace>,
    limit: usize,
) -> BoundStatement {
    let [recipients, of_type, producer, since, until] = conditions(filter);
    let (accepted_at, notification_id, route_id) = match after {
        Some(TargetPlace::Published(at, key)) => (*at, key.notification_id.as_str(), key.route_id.as_str()),
        // A route is published after its acceptance. No record has an empty id.
        _ => (filter.until.unwrap_or(Timestamp::MAX), "", ""),
    };
    let accepted_since = filter.since.map_or(Timestamp::MIN, |since| since - MAX_PUBLISH_DELAY);
    PUBLISHED.bind([
        parameter::instant(accepted_at),
        parameter::text(notification_id),
        parameter::instant(accepted_since),
        parameter::rows(MAX_EXAMINED_RECORDS),
        parameter::text(RouteStatus::Published.as_str()),
        parameter::text(route_id),
        since,
        until,
        parameter::optional_text(filter.channel.map(Channel::as_str)),
        recipients,
        of_type,
        producer,
        parameter::rows(limit),
    ])
}

/// The conditions of a filter other than notification and channel: recipients, type, producer, both times.
fn conditions(filter: &RouteFilter) -> [Parameter; 5] {
    // An empty list selects every recipient.
    let recipients = filter.recipients();
    [
        parameter::texts(recipients.iter().map(String::as_str)),
        parameter::optional_text(filter.notification_type.as_deref()),
        parameter::optional_text(filter.producer.as_deref()),
        parameter::instant(filter.since.unwrap_or(Timestamp::MIN)),
        parameter::instant(filter.until.unwrap_or(Timestamp::MAX)),
    ]
}
