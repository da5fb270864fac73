//! What a load needs, computed from what an intent and a route cost.
//!
//! The costs are measured by `bench --only capacity`, which also says whether they still hold. Sizes hold anywhere; processor time is that of
//! the machine of docs/performance.md.

use serde::Serialize;

/// What one thing costs: sizes in bytes, processor time in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// A record in PostgreSQL, with its indexes.
    pub record: f64,
    /// A published route in PostgreSQL, with its indexes and the row versions that it leaves.
    pub route: f64,
    /// WAL of an intent without its routes, from acceptance to deletion.
    pub intent_wal: f64,
    /// WAL of a route, from acceptance to deletion.
    pub route_wal: f64,
    /// An entry of the intents stream.
    pub intent_entry: f64,
    /// An entry of an outbound stream.
    pub outbound_entry: f64,
    /// What Redis keeps of a route besides its entry, for `NOTIFICATION_PUBLISH_DEDUPE_TTL`.
    pub route_keys: f64,
    /// A row of `idempotency_keys`, one for each request that changes something.
    pub idempotency_key: f64,
    /// A row of `receipts`, one for each route that was reported of.
    pub receipt: f64,
    /// A row of `operator_actions`, one for each chunk of a change.
    pub operator_action: f64,
    /// Processor time of PostgreSQL for an intent without its routes.
    pub intent_postgres_micros: f64,
    /// Processor time of PostgreSQL for a route.
    pub route_postgres_micros: f64,
    /// Processor time of Redis for an intent without its routes.
    pub intent_redis_micros: f64,
    /// Processor time of Redis for a route.
    pub route_redis_micros: f64,
    /// Processor time of the service for an intent without its routes.
    pub intent_service_micros: f64,
    /// Processor time of the service for a route.
    pub route_service_micros: f64,
}

/// One of the costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What costs it.
    pub name: &'static str,
    /// `bytes`, or `µs` of processor time.
    pub unit: &'static str,
    /// Its value.
    pub value: f64,
}

impl Cost {
    /// As a row of the table in docs/capacity.md.
    pub fn row(&self) -> String {
        format!("| {} | {} {} |\n", self.name, self.value, self.unit)
    }
}

const fn bytes(name: &'static str, value: f64) -> Cost {
    Cost { name, unit: "bytes", value }
}

const fn micros(name: &'static str, value: f64) -> Cost {
    Cost { name, unit: "µs", value }
}

/// The last measured costs, as a list.
pub const COSTS: [Cost; 16] = [
    bytes("a record in PostgreSQL", MEASURED.record),
    bytes("a route in PostgreSQL", MEASURED.route),
    bytes("WAL of an intent, from acceptance to deletion", MEASURED.intent_wal),
    bytes("WAL of a route, from acceptance to deletion", MEASURED.route_wal),
    bytes("an entry of the intents stream", MEASURED.intent_entry),
    bytes("an entry of an outbound stream", MEASURED.outbound_entry),
    bytes("other keys of Redis, a route", MEASURED.route_keys),
    bytes("a row of idempotency_keys", MEASURED.idempotency_key),
    bytes("a row of receipts", MEASURED.receipt),
    bytes("a row of operator_actions", MEASURED.operator_action),
    micros("CPU of PostgreSQL, an intent", MEASURED.intent_postgres_micros),
    micros("CPU of PostgreSQL, a route", MEASURED.route_postgres_micros),
    micros("CPU of Redis, an intent", MEASURED.intent_redis_micros),
    micros("CPU of Redis, a route", MEASURED.route_redis_micros),
    micros("CPU of the service, an intent", MEASURED.intent_service_micros),
    micros("CPU of the service, a route", MEASURED.route_service_micros),
];

/// The last measured costs.
pub const MEASURED: Measured = Measured {
    record: 720.0,
    route: 510.0,
    intent_wal: 1_200.0,
    route_wal: 850.0,
    intent_entry: 440.0,
    outbound_entry: 560.0,
    route_keys: 170.0,
    idempotency_key: 440.0,
    receipt: 280.0,
    operator_action: 310.0,
    intent_postgres_micros: 10.0,
    route_postgres_micros: 43.0,
    intent_redis_micros: 0.0,
    route_redis_micros: 34.0,
    intent_service_micros: 31.0,
    route_service_micros: 12.0,
};

/// The payload of the intents that were measured, in bytes.
pub const MEASURED_PAYLOAD_BYTES: f64 = 246.0;
/// The most intents a second that one installation should be planned for: half of what it accepted on two cores, with four routes each.
pub const PLANNED_INTENTS: f64 = 4_500.0;
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
    /// The part of the intents that comes by HTTP or whose key is claimed, from 0 to 1.
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
    /// Written to the WAL in a day.
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
    /// Whether the rate is beyond [`PLANNED_INTENTS`].
    pub is_beyond_one_installation: bool,
}

impl Load {
    /// What it needs, once it has lasted as long as its retention.
    pub fn needs(&self) -> Needs {
        let costs = &MEASURED;
        let rate = self.intents_per_second;
        let routes = rate * self.routes;
        // A payload is stored in its record and in every entry. A smaller one than was measured saves as much.
        let more = self.payload_bytes - MEASURED_PAYLOAD_BYTES;
        let with_payload = |bytes: f64| (bytes + more).max(bytes - MEASURED_PAYLOAD_BYTES);
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
            postgres_cores: cores(costs.intent_postgres_micros, costs.route_postgres_micros),
            redis_cores: cores(costs.intent_redis_micros, costs.route_redis_micros),
            service_cores: cores(costs.intent_service_micros, costs.route_service_micros),
            connections: self.replicas * CONNECTIONS_PER_REPLICA,
            is_beyond_one_installation: rate > PLANNED_INTENTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load {
        intents_per_second: 500.0,
        routes: 4.0,
        payload_bytes: MEASURED_PAYLOAD_BYTES,
        retention_seconds: 720.0 * 3_600.0,
        stream_retention_seconds: 86_400.0,
        http_share: 0.0,
        idempotency_seconds: 168.0 * 3_600.0,
        receipts_share: 0.0,
        changes_per_day: 0.0,
        action_retention_seconds: 8_760.0 * 3_600.0,
        replicas: 2.0,
    };

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() <= other.abs() * 1e-9
    }

    #[test]
    fn a_table_has_the_rows_of_its_retention() {
        let needs = LOAD.needs();
        let records = 500.0 * 720.0 * 3_600.0;
        assert!(near(needs.records_bytes, records * MEASURED.record));
        assert!(near(needs.routes_bytes, records * 4.0 * MEASURED.route));
        let empty = (needs.idempotency_keys_bytes, needs.receipts_bytes, needs.operator_actions_bytes);
        assert_eq!(empty, (0.0, 0.0, 0.0), "nothing comes by HTTP, nothing is reported, nothing is replayed");
        let half = Load { retention_seconds: LOAD.retention_seconds / 2.0, ..LOAD }.needs();
        assert!(near(half.disk_bytes * 2.0, needs.disk_bytes));
        assert!(near(half.wal_bytes_per_day, needs.wal_bytes_per_day), "what is kept is not written again");
    }

    #[test]
    fn a_larger_payload_is_kept_once_in_postgresql_and_in_every_entry() {
        let larger = Load { payload_bytes: MEASURED_PAYLOAD_BYTES + 1_000.0, ..LOAD }.needs();
        let needs = LOAD.needs();
        assert!(near(larger.records_bytes - needs.records_bytes, 500.0 * LOAD.retention_seconds * 1_000.0));
        assert!(near(larger.redis_bytes - needs.redis_bytes, 500.0 * 5.0 * 86_400.0 * 1_000.0));
        assert!(near(larger.routes_bytes, needs.routes_bytes));
        let none = Load { payload_bytes: 0.0, ..LOAD }.needs();
        assert!(none.redis_bytes > 0.0 && none.redis_bytes < needs.redis_bytes);
    }

    #[test]
    fn keys_receipts_and_actions_are_counted_by_what_makes_them() {
        let load = Load { http_share: 0.5, receipts_share: 1.0, changes_per_day: 50_000.0, ..LOAD };
        let needs = load.needs();
        assert!(near(
            needs.idempotency_keys_bytes,
            250.0 * load.idempotency_seconds * MEASURED.idempotency_key
        ));
        assert!(near(needs.receipts_bytes, 2_000.0 * load.retention_seconds * MEASURED.receipt));
        assert!(near(needs.operator_actions_bytes, 100.0 * 365.0 * MEASURED.operator_action));
        assert!(needs.wal_bytes_per_day > LOAD.needs().wal_bytes_per_day);
    }

    #[test]
    fn a_rate_beyond_one_installation_is_said_to_be() {
        assert!(!LOAD.needs().is_beyond_one_installation);
        let beyond = Load { intents_per_second: PLANNED_INTENTS + 1.0, ..LOAD };
        assert!(beyond.needs().is_beyond_one_installation);
        assert!(near(LOAD.needs().connections, 32.0));
    }
}
