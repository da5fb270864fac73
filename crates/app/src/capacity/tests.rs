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
    assert!(near(needs.idempotency_keys_bytes, 250.0 * load.idempotency_seconds * MEASURED.idempotency_key));
    assert!(near(needs.receipts_bytes, 2_000.0 * load.retention_seconds * MEASURED.receipt));
    assert!(near(needs.operator_actions_bytes, 100.0 * 365.0 * MEASURED.operator_action));
    assert!(needs.wal_bytes_per_day > LOAD.needs().wal_bytes_per_day);
}

#[test]
fn a_load_beyond_one_installation_is_said_to_be() {
    assert!(!LOAD.needs().is_beyond_one_installation);
    for beyond in [
        Load { intents_per_second: PLANNED_INTENTS + 1.0, routes: 0.0, ..LOAD },
        Load { intents_per_second: 1_000.0, routes: PLANNED_ROUTES / 1_000.0 + 1.0, ..LOAD },
    ] {
        assert!(beyond.needs().is_beyond_one_installation, "{beyond:?}");
    }
    let at_the_limit = (PLANNED_INTENTS, PLANNED_ROUTES, PLANNED_REDIS_CORES);
    for (intents, routes, redis, expected) in [
        (at_the_limit.0, at_the_limit.1, at_the_limit.2, false),
        (at_the_limit.0 + 1.0, 0.0, 0.0, true),
        (0.0, at_the_limit.1 + 1.0, 0.0, true),
        (0.0, 0.0, at_the_limit.2 + 0.01, true),
    ] {
        assert_eq!(
            is_beyond_one_installation(intents, routes, redis),
            expected,
            "{intents} {routes} {redis}"
        );
    }
}

#[test]
fn the_rate_of_the_run_at_its_costs_takes_no_more_than_the_cores_of_its_machine() {
    let needs = Load { intents_per_second: RUN.intents_per_second, routes: RUN.routes, ..LOAD }.needs();
    let busy = needs.postgres_cores + needs.redis_cores + needs.service_cores;
    assert!(busy <= RUN.cores, "{busy} of {} cores: costs and rate are of different runs", RUN.cores);
    assert!(busy > RUN.cores / 2.0, "{busy} of {} cores: costs and rate are of different runs", RUN.cores);
    assert!(needs.redis_cores <= 1.0, "{}", needs.redis_cores);
}

#[test]
fn replicas_open_their_default_number_of_connections() {
    assert!(near(LOAD.needs().connections, 32.0));
}
