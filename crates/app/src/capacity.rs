//! The resources that a load needs, computed from the measured costs of an intent and a route.
//!
//! `bench --only capacity` measures the costs and reports whether these figures still hold.

mod costs;

use serde::Serialize;

pub use costs::{BYTES, BenchmarkRun, Cost, Costs, MEASURED, MEASURED_PAYLOAD_BYTES, MICROS, RUN};

/// The maximum of intents per second to plan for one installation: half of what it accepted in the measured
/// run.
pub const PLANNED_INTENTS: f64 = RUN.intents_per_second / 2.0;
/// The maximum of routes per second to plan for one installation: half of what it published in the measured
/// run.
pub const PLANNED_ROUTES: f64 = RUN.routes_per_second() / 2.0;
/// The maximum processor time of Redis to plan for one installation, in cores: half of the one core that
/// executes its commands.
pub const PLANNED_REDIS_CORES: f64 = 0.5;
/// The memory of a replica, in bytes: twice the maximum seen in any benchmark.
const REPLICA_MEMORY_BYTES: f64 = 128e6;
/// The time for which Redis keeps the marker of a published route, in seconds: the default of
/// `NOTIFICATION_PUBLISH_DEDUPE_TTL`.
const DEDUPE_SECONDS: f64 = 120.0;
/// Connections that a replica opens by default (`NOTIFICATION_POSTGRES_MAX_OPEN_CONNS`).
const CONNECTIONS_PER_REPLICA: f64 = 16.0;
/// The number of rows that a replay changes in one transaction, with one row of `operator_actions`.
const CHANGES_PER_ACTION: f64 = 500.0;
const DAY_SECONDS: f64 = 86_400.0;

/// The load of an installation, in figures that an operator has.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Intents per second, averaged over a day.
    pub intents_per_second: f64,
    /// The average number of routes of an intent.
    pub routes: f64,
    /// The size of a payload, in bytes.
    pub payload_bytes: f64,
    /// The retention of records (`NOTIFICATION_RECORD_RETENTION`), in seconds.
    pub retention_seconds: f64,
    /// The retention of entries on the streams, in seconds.
    pub stream_retention_seconds: f64,
    /// The share of intents that arrive by `POST /v1/intents`, each with a row of `idempotency_keys`, from 0
    /// to 1.
    pub http_share: f64,
    /// The retention of stored responses (`NOTIFICATION_IDEMPOTENCY_TTL`), in seconds.
    pub idempotency_seconds: f64,
    /// The share of routes for which consumers send receipts, from 0 to 1.
    pub receipts_share: f64,
    /// Dead letters that operators replay or discard per day.
    pub changes_per_day: f64,
    /// The retention of operators' actions (`NOTIFICATION_OPERATOR_ACTION_RETENTION`), in seconds.
    pub action_retention_seconds: f64,
    /// The number of replicas.
    pub replicas: f64,
}

/// The resources that a load needs. Sizes are in bytes, processor time in busy cores.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Needs {
    /// The size of table `records` with its indexes.
    pub records_bytes: f64,
    /// The size of table `routes` with its indexes.
    pub routes_bytes: f64,
    /// The size of table `idempotency_keys` with its indexes.
    pub idempotency_keys_bytes: f64,
    /// The size of table `receipts` with its indexes.
    pub receipts_bytes: f64,
    /// The size of table `operator_actions` with its indexes.
    pub operator_actions_bytes: f64,
    /// The sum of all tables.
    pub disk_bytes: f64,
    /// The minimum written to the WAL per day. Full-page images of large tables are not included.
    pub wal_bytes_per_day: f64,
    /// The size of the streams and the keys in Redis.
    pub redis_bytes: f64,
    /// The memory of one replica.
    pub replica_bytes: f64,
    /// Busy cores of PostgreSQL.
    pub postgres_cores: f64,
    /// Busy cores of Redis, which executes commands on one core.
    pub redis_cores: f64,
    /// Busy cores of all replicas together.
    pub service_cores: f64,
    /// Connections to PostgreSQL of all replicas together.
    pub connections: f64,
    /// True if the load exceeds [`PLANNED_INTENTS`], [`PLANNED_ROUTES`] or [`PLANNED_REDIS_CORES`].
    pub is_beyond_one_installation: bool,
}

impl Load {
    /// The resources for this load after it has lasted for its whole retention.
    pub fn needs(&self) -> Needs {
        let costs = &MEASURED;
        let rate = self.intents_per_second;
        let routes = rate * self.routes;
        // A payload is stored in its record and in every entry. A payload smaller than the measured one saves
        // the difference.
        let with_payload = |bytes: f64| bytes - MEASURED_PAYLOAD_BYTES + self.payload_bytes;
        let keys = rate * self.http_share;
        let receipts = routes * self.receipts_share;
        let actions_per_second = self.changes_per_day / CHANGES_PER_ACTION / DAY_SECONDS;
        let records_bytes = rate * self.retention_seconds * with_payload(costs.record);
        let routes_bytes = routes * self.retention_seconds * costs.route;
        let idempotency_keys_bytes = keys * self.idempotency_seconds * costs.idempotency_key;
        let receipts_bytes = receipts * self.retention_seconds * costs.receipt;
        let operator_actions_bytes =
            actions_per_second * self.action_retention_seconds * costs.operator_action;
        let wal_per_second = rate * with_payload(costs.intent_wal)
            + routes * costs.route_wal
            // A row of these tables is written and later deleted. The deletion costs about as many bytes as
            // the row.
            + 2.0 * (keys * costs.idempotency_key + receipts * costs.receipt);
        let on_streams =
            rate * with_payload(costs.intent_entry) + routes * with_payload(costs.outbound_entry);
        let cores = |intent: f64, route: f64| (rate * intent + routes * route) / 1e6;
        let redis_cores = cores(costs.intent_redis, costs.route_redis);
        Needs {
            records_bytes,
            routes_bytes,
            idempotency_keys_bytes,
            receipts_bytes,
            operator_actions_bytes,
            disk_bytes: records_bytes
                + routes_bytes
                + idempotency_keys_bytes
                + receipts_bytes
                + operator_actions_bytes,
            wal_bytes_per_day: wal_per_second * DAY_SECONDS,
            redis_bytes: on_streams * self.stream_retention_seconds
                + routes * costs.route_keys * DEDUPE_SECONDS,
            replica_bytes: REPLICA_MEMORY_BYTES,
            postgres_cores: cores(costs.intent_postgres, costs.route_postgres),
            redis_cores,
            service_cores: cores(costs.intent_service, costs.route_service),
            connections: self.replicas * CONNECTIONS_PER_REPLICA,
            is_beyond_one_installation: is_beyond_one_installation(rate, routes, redis_cores),
        }
    }
}

/// Returns true if one installation should not be planned for this load. Redis has a bound of its own because
/// it executes one command at a time.
fn is_beyond_one_installation(intents_per_second: f64, routes_per_second: f64, redis_cores: f64) -> bool {
    intents_per_second > PLANNED_INTENTS
        || routes_per_second > PLANNED_ROUTES
        || redis_cores > PLANNED_REDIS_CORES
}

#[cfg(test)]
mod tests;
