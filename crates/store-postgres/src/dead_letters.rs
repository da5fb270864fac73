//! Dead letters, written in the transaction in which the last attempt of a route failed.

use domain::dead_letter::recovery_hint;
use domain::ports::Failed;
use pg::{BoundStatement, parameter};

pg::statements! {
    /// Inserts a dead letter for each of the routes. A route that an operator has retried may become a dead
    /// letter again: its row is then replaced and needs attention again.
    INSERT = "dead_letters.insert", plan ["routes_pkey"], "
        INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
        SELECT r.notification_id, r.route_id, r.channel, r.recipient_ref, r.attempt_count, r.max_attempts,
            r.last_error_classification, r.last_error_message, g.recovery_hint, r.dead_lettered_at
        FROM unnest($1::text[], $2::text[], $3::text[]) AS g (notification_id, route_id, recovery_hint)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        ON CONFLICT (notification_id, route_id) DO UPDATE
        SET final_attempt_count = excluded.final_attempt_count,
            failure_classification = excluded.failure_classification, failure_message = excluded.failure_message,
            recovery_hint = excluded.recovery_hint, created_at = excluded.created_at, discarded_at = NULL";
}

pub(crate) fn insert(routes: &[&Failed]) -> BoundStatement {
    INSERT.bind([
        parameter::texts(routes.iter().map(|route| route.key.notification_id.as_str())),
        parameter::texts(routes.iter().map(|route| route.key.route_id.as_str())),
        parameter::texts(routes.iter().map(|route| recovery_hint(route.channel, route.classification))),
    ])
}
