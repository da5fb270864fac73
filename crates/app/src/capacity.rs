//! What a load needs, computed from what an intent and a route cost.
//!
//! The costs are measured by `bench --only capacity`, which also says whether they still hold.

mod costs;

use serde::Serialize;

pub use costs::{BYTES, Cost, Costs, MEASURED, MEASURED_PAYLOAD_BYTES, MICROS, RUN, Run};

/// The most intents a second that one installation should be planned for: half of what it accepted.
pub const PLANNED_INTENTS: f64 = RUN.intents_per_second / 2.0;
/// The most routes a second that one installation should be planned for: half of what it published.
pub const PLANNED_ROUTES: f64 = RUN.routes_per_second() / 2.0;
/// The most processor time of Redis that one installation should be planned for, in cores: half of the one
/// that executes its commands.
pub const PLANNED_REDIS_CORES: f64 = 0.5;
/// The memory of a replica, in bytes: twice the most that any benchmark saw.
const REPLICA_MEMORY_BYTES: f64 = 128e6;
/// How long Redis keeps what it knows of a published route: the default of `NOTIFICATION_PUBLISH_DEDUPE_TTL`.
const DEDUPE_SECONDS: f64 = 120.0;
/// Connections that a replica opens by default (`NOTIFICATION_POSTGRES_MAX_OPEN_CONNS`).
const CONNECTIONS_PER_REPLICA: f64 = 16.0;
/// Rows that a replay changes in one transaction, with a row of `operator_actions`.
const CHANGES_PER_ACTION: f64 = 500.0;
const DAY_SECONDS: f64 = 86_400.0;

/// A load, as an operator knows it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// On average, over a day.
    pub intents_per_second: f64,
    /// Of an intent, on average.
    pub routes: f64,
    /// The bytes of a payload.
    pub payload_bytes: f64,
    /// How long records are kept (`NOTIFICATION_RECORD_RETENTION`), in seconds.
    pub retention_seconds: f64,
    /// How long entries stay on the streams, in seconds.
    pub stream_retention_seconds: f64,
    /// The part of the intents that comes by `POST /v1/intents`, each with a row of `idempotency_keys`, from
    /// 0 to 1.
    pub http_share: f64,
    /// How long answers are kept (`NOTIFICATION_IDEMPOTENCY_TTL`), in seconds.
    pub idempotency_seconds: f64,
    /// The part of the routes that consumers report receipts of, from 0 to 1.
    pub receipts_share: f64,
    /// Dead letters that operators replay or discard, a day.
    pub changes_per_day: f64,
    /// How long operators' actions are kept (`NOTIFICATION_OPERATOR_ACTION_RETENTION`), in seconds.
    pub action_retention_seconds: f64,
    /// How many replicas run.
    pub replicas: f64,
}

/// What a load needs. Sizes in bytes, processor time in cores that are busy.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Needs {
    /// Table `records` with its indexes.
    pub records_bytes: f64,
    /// Table `routes` with its indexes.
    pub routes_bytes: f64,
    /// Table `idempotency_keys` with its indexes.
    pub idempotency_keys_bytes: f64,
    /// Table `receipts` with its indexes.
    pub receipts_bytes: f64,
    /// Table `operator_actions` with its indexes.
    pub operator_actions_bytes: f64,
    /// All of these.
    pub disk_bytes: f64,
    /// Written to the WAL in a day, at least: full pages of large tables come on top.
    pub wal_bytes_per_day: f64,
    /// The streams and the keys of Redis.
    pub redis_bytes: f64,
    /// Of one replica.
    pub replica_bytes: f64,
    /// Busy cores of PostgreSQL.
    pub postgres_cores: f64,
    /// Busy cores of Redis, which has one for its commands.
    pub redis_cores: f64,
    /// Busy cores of all replicas together.
    pub service_cores: f64,
    /// Connections to PostgreSQL of all replicas together.
    pub connections: f64,
    /// Whether the load is beyond [`PLANNED_INTENTS`], [`PLANNED_ROUTES`] or [`PLANNED_REDIS_CORES`].
    pub is_beyond_one_installation: bool,
}

impl Load {
    /// What it needs, once it has lasted as long as its retention.
    pub fn needs(&self) -> Needs {
        let costs = &MEASURED;
        let rate = self.intents_per_second;
        let routes = rate * self.routes;
        // A payload is stored in its record and in every entry. A smaller one than was measured saves as
        // much.
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
            // A row of these tables is written and deleted: its bytes, and about as much for its end.
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

/// Whether an installation should not be planned for this. Redis counts by itself: it executes one command at
/// a time.
fn is_beyond_one_installation(intents_per_second: f64, routes_per_second: f64, redis_cores: f64) -> bool {
    intents_per_second > PLANNED_INTENTS
        || routes_per_second > PLANNED_ROUTES
        || redis_cores > PLANNED_REDIS_CORES
}

#[cfg(test)]
mod tests;
