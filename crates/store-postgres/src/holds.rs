//! Holds of operators, and the routes that they keep (ADR 0058).
//!
//! A kept route has a row in `held_routes`, and its `next_attempt_at` is `infinity`: it is live, but in no
//! list of due routes. Both change in one transaction.
//!
//! Crash recovery: a release marks the hold, and the routes become due in chunks, by whichever replica looks.
//! A crash leaves the rest to the next look. A publisher that still sees a hold after its release keeps a
//! route under the released hold, whose row exists as long as it keeps one; once the row is gone, nothing can
//! be kept under it.

use std::collections::HashSet;

use ambient::Timestamp;
use domain::document::{COUNT_CAP, Counted};
use domain::hold::{Hold, HoldActor, HoldChange, HoldKey, HoldPlan, HoldScope, HoldsInForce, RouteToHold};
use domain::operations::PLAN_IDS;
use domain::ports::{HoldChanges, HoldStore, StoreError};
use domain::route::RouteKey;
use pg::parameter::{instant, instants, rows, text, texts};
use pg::{BoundStatement, Session, Statement};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{self, column, name, one_row, optional_instant, route_key, route_keys};
use crate::error::store_error;
use crate::operator_actions::insert_action;
use crate::routes::{keys, live_statuses};

/// The most live routes that the plan of a hold examines.
const MAX_PLANNED: usize = 100_000;

pg::statements! {
    /// The holds in force.
    IN_FORCE = "holds.in_force", plan ["Seq Scan on holds"], "
        SELECT scope, name FROM holds WHERE released_at IS NULL ORDER BY since, scope, name";

    /// The holds that were released.
    RELEASED = "holds.released", plan ["Seq Scan on holds"], "
        SELECT scope, name FROM holds WHERE released_at IS NOT NULL ORDER BY released_at, scope, name";

    /// All holds, with the routes that each keeps, counted up to a limit.
    LIST = "holds.list", plan ["Seq Scan on holds", "held_routes_hold_idx"], "
        SELECT h.scope, h.name, h.since, h.actor, h.reason, h.released_at, (
                SELECT count(*) FROM (
                    SELECT FROM held_routes r WHERE r.scope = h.scope AND r.name = h.name LIMIT $1::bigint
                ) AS kept
            ) AS routes
        FROM holds h
        ORDER BY h.since, h.scope, h.name";

    /// Keeps routes: those that are live at the version that was read, are not locked, and whose hold is in
    /// force.
    HOLD_ROUTES = "holds.hold_routes", plan ["routes_pkey"], "
        WITH given AS (
            SELECT g.*, r.next_attempt_at AS due_at
            FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::text[])
                AS g (notification_id, route_id, expected, scope, name)
            JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
            WHERE r.updated_at = g.expected AND r.status = ANY ($7::text[])
                AND EXISTS (SELECT FROM holds h WHERE h.scope = g.scope AND h.name = g.name AND h.released_at IS NULL)
            FOR NO KEY UPDATE OF r SKIP LOCKED),
        held AS (
            UPDATE routes r
            SET updated_at = greatest($6::timestamptz, r.updated_at + interval '1 microsecond'),
                next_attempt_at = 'infinity'
            FROM given g
            WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id AND r.updated_at = g.expected
                AND r.status = ANY ($7::text[]))
        INSERT INTO held_routes (notification_id, route_id, scope, name, due_at)
        SELECT notification_id, route_id, scope, name, due_at FROM given
        ON CONFLICT (notification_id, route_id) DO UPDATE SET scope = excluded.scope, name = excluded.name
        RETURNING notification_id, route_id";

    /// Makes routes of a hold due. A route that an operator has given another time by hand keeps it.
    RELEASE_ROUTES = "holds.release_routes", plan ["held_routes_hold_idx", "routes_pkey"], "
        WITH first AS (
            SELECT k.notification_id, k.route_id
            FROM held_routes k
            JOIN routes r ON r.notification_id = k.notification_id AND r.route_id = k.route_id
            WHERE k.scope = $1::text AND k.name = $2::text
            ORDER BY k.scope, k.name, k.due_at, k.notification_id, k.route_id
            LIMIT $3::bigint
            FOR NO KEY UPDATE OF k, r SKIP LOCKED),
        due AS (
            UPDATE routes r
            SET updated_at = greatest($4::timestamptz, r.updated_at + interval '1 microsecond'),
                next_attempt_at = $4::timestamptz
            FROM first f
            WHERE r.notification_id = f.notification_id AND r.route_id = f.route_id AND r.next_attempt_at = 'infinity'
                AND r.status = ANY ($5::text[]))
        DELETE FROM held_routes k USING first f
        WHERE k.notification_id = f.notification_id AND k.route_id = f.route_id";

    /// Deletes a released hold that keeps no route. The foreign key refuses it if one is kept at this moment.
    END = "holds.end", plan ["holds_pkey", "held_routes_hold_idx"], "
        DELETE FROM holds h
        WHERE h.scope = $1::text AND h.name = $2::text AND h.released_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM held_routes k WHERE k.scope = $1::text AND k.name = $2::text)";

    /// Makes a hold, also again after its release, at the time of the server.
    MAKE = "holds.make", plan [], "
        INSERT INTO holds AS h (scope, name, since, actor, reason)
        VALUES ($1::text, $2::text, clock_timestamp(), $3::text, $4::text)
        ON CONFLICT (scope, name) DO UPDATE
            SET since = excluded.since, actor = excluded.actor, reason = excluded.reason, released_at = NULL
            WHERE h.released_at IS NOT NULL";

    /// Releases a hold, at the time of the server.
    RELEASE = "holds.release", plan ["holds_pkey"], "
        UPDATE holds SET released_at = clock_timestamp()
        WHERE scope = $1::text AND name = $2::text AND released_at IS NULL";

    /// Live routes that a hold would keep: some ids, and the number of all. Examines a bounded number of live
    /// routes, and returns how many.
    PLAN = "holds.plan", plan ["routes_due_idx", "records_pkey"], "
        WITH live AS MATERIALIZED (
            SELECT notification_id, route_id, channel FROM routes
            WHERE channel = ANY ($3::text[]) AND next_attempt_at < 'infinity' LIMIT $4::bigint),
        found AS MATERIALIZED (
            SELECT l.notification_id, l.route_id
            FROM live l JOIN records c ON c.notification_id = l.notification_id
            WHERE $1::text = 'channel' OR $2::text = CASE $1::text WHEN 'type' THEN c.notification_type ELSE c.producer END)
        SELECT (SELECT count(*) FROM live) AS examined, (SELECT count(*) FROM found) AS routes, f.notification_id, f.route_id
        FROM (SELECT) one LEFT JOIN (SELECT * FROM found LIMIT $5::bigint) f ON true";

    /// Routes that a hold keeps, the first to be released first.
    HELD = "holds.held", plan ["held_routes_hold_idx"], "
        SELECT notification_id, route_id FROM held_routes
        WHERE scope = $1::text AND name = $2::text
        ORDER BY scope, name, due_at, notification_id, route_id
        LIMIT $3::bigint";
}

impl HoldStore for PgStore {
    async fn list_holds(&self) -> Result<Vec<Hold>, StoreError> {
        list(&self.session("list the holds").await?).await
    }

    async fn holds_in_force(&self) -> Result<HoldsInForce, StoreError> {
        let session = self.session("read the holds").await?;
        Ok(HoldsInForce::new(hold_keys(&session, &IN_FORCE).await?))
    }

    async fn hold_routes(
        &self,
        routes: &[RouteToHold],
        now: Timestamp,
    ) -> Result<HashSet<RouteKey>, StoreError> {
        let session = self.session("hold routes").await?;
        let [notification_ids, route_ids] = keys(routes.iter().map(|route| &route.key));
        let statement = HOLD_ROUTES.bind([
            notification_ids,
            route_ids,
            instants(routes.iter().map(|route| route.version.updated_at())),
            texts(routes.iter().map(|route| route.hold.scope.as_str())),
            texts(routes.iter().map(|route| route.hold.name.as_str())),
            instant(now),
            live_statuses(),
        ]);
        route_keys(&session.query(statement).await.map_err(store_error)?)
    }

    async fn released_holds(&self) -> Result<Vec<HoldKey>, StoreError> {
        hold_keys(&self.session("read the released holds").await?, &RELEASED).await
    }

    async fn release_routes(&self, hold: &HoldKey, limit: usize, now: Timestamp) -> Result<u64, StoreError> {
        let session = self.session("release held routes").await?;
        let [scope, name] = parameters(hold);
        let statement = RELEASE_ROUTES.bind([scope, name, rows(limit), instant(now), live_statuses()]);
        session.execute(statement).await.map_err(store_error)
    }

    async fn end_hold(&self, hold: &HoldKey) -> Result<bool, StoreError> {
        let session = self.session("end a hold").await?;
        let ended = session.execute(END.bind(parameters(hold))).await.map_err(store_error)?;
        one_row(ended, "holds", &hold.name)
    }
}

impl HoldChanges for PgStore {
    async fn plan_hold(&self, key: &HoldKey, change: &HoldChange) -> Result<HoldPlan, StoreError> {
        let session = self.plans.session("plan the change of a hold").await.map_err(store_error)?;
        let hold = list(&session).await?.into_iter().find(|hold| hold.key == *key);
        let (routes, first) = match change {
            HoldChange::Hold { .. } => live(&session, key).await?,
            HoldChange::Release => {
                let [scope, name] = parameters(key);
                let held = session.query(HELD.bind([scope, name, rows(PLAN_IDS)])).await;
                let first = held.map_err(store_error)?.iter().map(route_key).collect::<Result<_, _>>()?;
                (hold.as_ref().map_or_else(Counted::default, |hold| hold.routes), first)
            }
        };
        Ok(HoldPlan { routes, first, hold })
    }

    async fn change_hold(
        &self,
        key: &HoldKey,
        change: &HoldChange,
        actor: HoldActor<'_>,
    ) -> Result<bool, StoreError> {
        let session = self.session("change a hold").await?;
        let changed = write(&session, key, change, actor).await;
        if !matches!(changed, Ok(true)) {
            // If this fails too, the session closes its connection. Either way the first error is the one to
            // report.
            drop(session.rollback().await);
        }
        changed
    }
}

async fn write(
    session: &Session,
    key: &HoldKey,
    change: &HoldChange,
    actor: HoldActor<'_>,
) -> Result<bool, StoreError> {
    session.begin().await.map_err(store_error)?;
    let [scope, name] = parameters(key);
    let statement = match change {
        HoldChange::Hold { reason } => MAKE.bind([scope, name, text(actor.name), text(reason)]),
        HoldChange::Release => RELEASE.bind([scope, name]),
    };
    if !one_row(session.execute(statement).await.map_err(store_error)?, "holds", &key.name)? {
        return Ok(false);
    }
    let arguments = change.arguments(key, actor.idempotency_key).to_string();
    let insert = insert_action((actor.name, actor.request_id), change.action(), &arguments, 1);
    session.execute(insert).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)?;
    Ok(true)
}

/// All holds, with the routes that they keep.
pub(crate) async fn list(session: &Session) -> Result<Vec<Hold>, StoreError> {
    let limit = usize::try_from(COUNT_CAP).unwrap_or(usize::MAX);
    let holds = session.query(LIST.bind([rows(limit)])).await.map_err(store_error)?;
    holds.iter().map(hold).collect()
}

fn hold(row: &Row) -> Result<Hold, StoreError> {
    let key = hold_key(row)?;
    let shown = key.to_string();
    Ok(Hold {
        since: codec::instant(row, "holds.since", &shown)?,
        actor: column(row, "holds.actor", &shown)?,
        reason: column(row, "holds.reason", &shown)?,
        released_at: optional_instant(row, "holds.released_at", &shown)?,
        routes: Counted::up_to_cap(codec::count(row, "routes", &shown)?),
        key,
    })
}

async fn live(session: &Session, key: &HoldKey) -> Result<(Counted, Vec<RouteKey>), StoreError> {
    let rows = session.query(plan(key)).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok((Counted::default(), Vec::new())) };
    let found = codec::count(row, "routes", "the plan of a hold")?;
    let capped = codec::count(row, "examined", "the plan of a hold")? >= MAX_PLANNED as u64;
    let first = if found == 0 { Vec::new() } else { rows.iter().map(route_key).collect::<Result<_, _>>()? };
    Ok((Counted { count: found, capped }, first))
}

/// [`PLAN`].
fn plan(key: &HoldKey) -> BoundStatement {
    let [scope, name] = parameters(key);
    let every = domain::route::Channel::ALL.map(domain::route::Channel::as_str);
    let channels = match key.scope {
        HoldScope::Channel => texts([key.name.as_str()]),
        HoldScope::Type | HoldScope::Producer => texts(every),
    };
    PLAN.bind([scope, name, channels, rows(MAX_PLANNED), rows(PLAN_IDS)])
}

async fn hold_keys(session: &Session, statement: &Statement) -> Result<Vec<HoldKey>, StoreError> {
    let rows = session.query(statement.bind([])).await.map_err(store_error)?;
    rows.iter().map(hold_key).collect()
}

pub(crate) fn hold_key(row: &Row) -> Result<HoldKey, StoreError> {
    let held: String = column(row, "holds.name", "")?;
    Ok(HoldKey { scope: name(row, "holds.scope", &held)?, name: held })
}

fn parameters(key: &HoldKey) -> [pg::parameter::Parameter; 2] {
    [text(key.scope.as_str()), text(&key.name)]
}
