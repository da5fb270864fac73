//! The statements of operators' changes.

use ambient::Timestamp;
use domain::operations::{CANCELLED, Changeable, RequeuedRoute, Target};
use domain::route::{RouteKey, RouteStatus};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Statement};

use crate::routes;

// The status of a dead letter is a parameter: as a literal it would make the planner read the index of routes
// that are not published.
pg::statements! {
    /// The routes with these keys, dead or not.
    ROUTES_NAMED = "operations.routes_named", plan ["routes_pkey", "records_pkey", "dead_letters_pkey"], "
        SELECT r.notification_id, r.route_id, r.channel, r.status, r.updated_at, r.attempt_count,
            r.published_entry_id, c.notification_type,
            d.failure_classification, d.discarded_at IS NOT NULL AS discarded
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        JOIN records c ON c.notification_id = r.notification_id
        LEFT JOIN dead_letters d ON d.notification_id = r.notification_id AND d.route_id = r.route_id";

    /// The targets that still have their version. A dead letter that was edited by hand without a higher
    /// version is excluded.
    UNCHANGED = "operations.unchanged", plan ["routes_pkey", "dead_letters_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        JOIN dead_letters d ON d.notification_id = r.notification_id AND d.route_id = r.route_id
        WHERE r.updated_at = g.expected AND r.status = $4::text";

    /// The rows of [`UNCHANGED`] whose route and dead letter are not locked by another transaction; locks
    /// them.
    LOCK = "operations.lock", plan ["routes_pkey", "dead_letters_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        JOIN dead_letters d ON d.notification_id = r.notification_id AND d.route_id = r.route_id
        WHERE r.updated_at = g.expected AND r.status = $4::text
        FOR UPDATE OF r, d SKIP LOCKED";

    /// The targets that have one of these statuses at the version that was read.
    UNCHANGED_ROUTES = "operations.unchanged_routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.updated_at = g.expected AND r.status = ANY ($4::text[])";

    /// The rows of [`UNCHANGED_ROUTES`] that are not locked by another transaction; locks them.
    LOCK_ROUTES = "operations.lock_routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS g (notification_id, route_id, expected)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        WHERE r.updated_at = g.expected AND r.status = ANY ($4::text[])
        FOR NO KEY UPDATE OF r SKIP LOCKED";

    /// Skips locked live routes, with the classification and the message of a cancellation.
    CANCEL = "operations.cancel", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($5::timestamptz, r.updated_at + interval '1 microsecond'), status = $6::text,
            next_attempt_at = NULL, skipped_at = $5::timestamptz, last_error_classification = $3::text,
            last_error_message = $4::text
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.status = ANY ($7::text[])";

    /// Ends the keeping of locked routes by holds.
    RELEASE_HELD = "operations.release_held", plan ["held_routes_pkey"], "
        DELETE FROM held_routes
        WHERE (notification_id, route_id) IN (SELECT unnest($1::text[]), unnest($2::text[]))";

    /// Gives locked routes their new budget. Columns that are not listed here are unchanged.
    REPLAY_ROUTES = "operations.replay_routes", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($7::timestamptz, r.updated_at + interval '1 microsecond'), status = g.status,
            attempt_count = g.attempt_count, max_attempts = g.max_attempts, next_attempt_at = g.next_attempt_at,
            dead_lettered_at = NULL
        FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[])
            AS g (notification_id, route_id, status, attempt_count, max_attempts, next_attempt_at)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.status = $8::text";

    /// Makes locked published routes pending again, with their new budget. The entry and the time of the
    /// publication stay until the next one.
    RESEND = "operations.resend", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($7::timestamptz, r.updated_at + interval '1 microsecond'), status = g.status,
            attempt_count = g.attempt_count, max_attempts = g.max_attempts, next_attempt_at = g.next_attempt_at,
            resent_at = $7::timestamptz, resent_by = $8::text, resend_reason = $9::text,
            replaced_entry_id = r.published_entry_id
        FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[])
            AS g (notification_id, route_id, status, attempt_count, max_attempts, next_attempt_at)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.status = $10::text";

    /// Raises the versions of locked routes, so that a decision on the older version is a conflict.
    TOUCH = "operations.touch", plan ["routes_pkey"], "
        UPDATE routes r
        SET updated_at = greatest($3::timestamptz, r.updated_at + interval '1 microsecond')
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.status = $4::text";

    /// Deletes the dead letters of locked routes.
    DELETE = "operations.delete", plan ["dead_letters_pkey"], "
        DELETE FROM dead_letters
        WHERE (notification_id, route_id) IN (SELECT unnest($1::text[]), unnest($2::text[]))";

    /// Marks the dead letters of locked routes as discarded.
    DISCARD = "operations.discard", plan ["dead_letters_pkey"], "
        UPDATE dead_letters d
        SET discarded_at = $3::timestamptz, discarded_by = $4::text, discard_reason = $5::text
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        WHERE d.notification_id = g.notification_id AND d.route_id = g.route_id";
}

pub(super) fn routes_named(keys: &[&RouteKey]) -> BoundStatement {
    ROUTES_NAMED.bind(routes::keys(keys.iter().copied()))
}

pub(super) fn unchanged(state: Changeable, chunk: &[Target]) -> BoundStatement {
    as_read([&UNCHANGED, &UNCHANGED_ROUTES], state, chunk)
}

pub(super) fn lock(state: Changeable, chunk: &[Target]) -> BoundStatement {
    as_read([&LOCK, &LOCK_ROUTES], state, chunk)
}

/// The first statement for dead letters, the second for other routes.
fn as_read([dead, others]: [&Statement; 2], state: Changeable, chunk: &[Target]) -> BoundStatement {
    let [notification_ids, route_ids] = keys(chunk);
    let versions = parameter::instants(chunk.iter().map(|target| target.version.updated_at()));
    let (statement, status) = match state {
        Changeable::DeadLetters => (dead, self::dead()),
        Changeable::Live | Changeable::Published => (others, parameter::texts(state.statuses())),
    };
    statement.bind([notification_ids, route_ids, versions, status])
}

fn dead() -> Parameter {
    parameter::text(RouteStatus::DeadLetter.as_str())
}

fn keys(targets: &[Target]) -> [Parameter; 2] {
    routes::keys(targets.iter().map(|target| &target.key))
}

pub(super) fn replay_routes(routes: &[(&Target, RequeuedRoute)], now: Timestamp) -> BoundStatement {
    REPLAY_ROUTES.bind(requeued(routes).into_iter().chain([parameter::instant(now), dead()]))
}

/// Resends routes, for an operator and a reason.
pub(super) fn resend_routes(
    routes: &[(&Target, RequeuedRoute)],
    (actor, reason): (&str, &str),
    now: Timestamp,
) -> BoundStatement {
    let said = [parameter::instant(now), parameter::text(actor), parameter::text(reason)];
    let published = parameter::text(RouteStatus::Published.as_str());
    RESEND.bind(requeued(routes).into_iter().chain(said).chain([published]))
}

/// The keys of routes and their new values.
fn requeued(routes: &[(&Target, RequeuedRoute)]) -> [Parameter; 6] {
    let bigints = |value: fn(&RequeuedRoute) -> u32| {
        parameter::bigints(routes.iter().map(|(_, requeued)| value(requeued).into()))
    };
    let [notification_ids, route_ids] = routes::keys(routes.iter().map(|(target, _)| &target.key));
    [
        notification_ids,
        route_ids,
        parameter::texts(routes.iter().map(|(_, requeued)| requeued.status.as_str())),
        bigints(|requeued| requeued.attempt_count),
        bigints(|requeued| requeued.max_attempts),
        parameter::instants(routes.iter().map(|(_, requeued)| requeued.next_attempt_at)),
    ]
}

pub(super) fn touch(targets: &[Target], now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids] = keys(targets);
    TOUCH.bind([notification_ids, route_ids, parameter::instant(now), dead()])
}

pub(super) fn delete(targets: &[Target]) -> BoundStatement {
    DELETE.bind(keys(targets))
}

pub(super) fn discard(targets: &[Target], actor: &str, reason: &str, now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids] = keys(targets);
    let (actor, reason) = (parameter::text(actor), parameter::text(reason));
    DISCARD.bind([notification_ids, route_ids, parameter::instant(now), actor, reason])
}

pub(super) fn cancel(targets: &[Target], message: &str, now: Timestamp) -> BoundStatement {
    let [notification_ids, route_ids] = keys(targets);
    CANCEL.bind([
        notification_ids,
        route_ids,
        parameter::text(CANCELLED),
        parameter::text(message),
        parameter::instant(now),
        parameter::text(RouteStatus::Skipped.as_str()),
        routes::live_statuses(),
    ])
}

pub(super) fn release_held(targets: &[Target]) -> BoundStatement {
    RELEASE_HELD.bind(keys(targets))
}
