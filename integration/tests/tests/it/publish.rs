//! Publishing concurrently with rows that are locked, rejected, slow or unreadable, and during backlogs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::{Proxy, Service, ServiceBuilder, wait_for};
use serde_json::Value;

use crate::world::*;

/// The shortest TTL of markers with the settings of [`quick`].
const DEDUPE_TTL: Duration = Duration::from_secs(8);

/// Sets times so short that a marker that is not extended expires within the test.
fn quick(service: ServiceBuilder) -> ServiceBuilder {
    service
        .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "200ms")
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "1s")
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "1s")
        .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "8s")
}

/// Waits until exactly `live` routes of `records` records are left.
async fn live(world: &World, records: i64, live: i64) {
    let client = world.database.client().await;
    wait_for(&format!("{records} records with {live} live routes"), BOUND, async || {
        let sql = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL)";
        let row = client.query_one(sql, &[]).await.ok()?;
        ((row.get::<_, i64>(0), row.get::<_, i64>(1)) == (records, live)).then_some(())
    })
    .await;
}

/// Waits until every marker that was not extended has expired.
async fn receipts_would_have_ended() {
    let since = Instant::now();
    wait_for("receipts would have ended", BOUND, async || {
        (since.elapsed() > DEDUPE_TTL + Duration::from_secs(2)).then_some(())
    })
    .await;
}

/// The log lines with this message.
fn lines(service: &Service, message: &str) -> Vec<Value> {
    let lines = service.output();
    let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message))).collect()
}

// INV-09
#[tokio::test]
async fn a_row_that_an_operator_has_locked_delays_no_other_route_and_is_published_once() {
    let world = World::new().await;
    let _service = quick(world.service()).start().await;
    let _other = quick(world.service()).start().await;
    // The stream rejects, so that the routes are still live when the operator acts.
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(MAIL).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    world.send(0..11).await;
    live(&world, 11, 22).await;
    let operator = world.database.client().await;
    operator
        .batch_execute(
            "BEGIN; SELECT 1 FROM routes WHERE next_attempt_at IS NOT NULL ORDER BY notification_id LIMIT 1 FOR UPDATE",
        )
        .await
        .expect("the row is free");
    redis::cmd("DEL").arg(MAIL).query_async::<()>(&mut redis).await.expect("Redis is there");
    live(&world, 11, 1).await;
    world.send(11..20).await;
    live(&world, 20, 1).await;
    receipts_would_have_ended().await;
    operator.batch_execute("ROLLBACK").await.expect("is there");
    world.settled(20).await;
    published_once(&world, 20).await;
}

/// Checks that each of four routes of each record is published, and is in its stream once.
async fn published_once(world: &World, records: i64) {
    assert_eq!(world.number("SELECT count(*) FROM routes WHERE status = 'published'").await, records * 4);
    let outbound = world.outbound().await;
    assert_eq!(outbound.len() as i64, records * 4);
    let twice: Vec<_> = outbound.iter().filter(|(_, entries)| entries.len() != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    world.check_tables().await;
}

// INV-10
#[tokio::test]
async fn publications_that_postgresql_refuses_are_parked_reported_once_and_never_appended_again() {
    let world = World::new().await;
    world
        .execute("ALTER TABLE routes ADD CONSTRAINT refused CHECK (status <> 'published' OR recipient_ref <> 'user:u-3')")
        .await;
    let service = quick(world.service()).start().await;
    world.send(0..20).await;
    live(&world, 20, 2).await;
    receipts_would_have_ended().await;
    world.send(20..30).await;
    live(&world, 30, 2).await;
    let reported = lines(&service, "PostgreSQL refuses the completion of a route");
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported.iter().all(|line| line["error"].as_str().is_some_and(|error| error.contains("refused")))
    );
    let (_, ready) = service.get("/readyz").await;
    assert_eq!(ready["push"]["deferred_completions"], 1, "{ready}");

    world.execute("ALTER TABLE routes DROP CONSTRAINT refused").await;
    world.settled(30).await;
    world.check(0..30).await;
}

#[tokio::test]
async fn failed_attempts_that_postgresql_refuses_do_not_stop_their_channel() {
    let world = World::new().await;
    world
        .execute("ALTER TABLE routes ADD CONSTRAINT refused CHECK (attempt_count = 0 OR recipient_ref <> 'user:u-3')")
        .await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(MAIL).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    let service = quick(world.service()).start().await;
    world.send(0..20).await;
    wait_for("every other attempt is written down", BOUND, async || {
        let failed = world.number("SELECT count(*) FROM routes WHERE status = 'failed'").await;
        (failed == 39).then_some(())
    })
    .await;
    redis::cmd("DEL").arg(MAIL).query_async::<()>(&mut redis).await.expect("Redis is there");
    live(&world, 20, 1).await;
    assert_eq!(lines(&service, "PostgreSQL refuses the completion of a route").len(), 1);
    world.send(20..30).await;
    live(&world, 30, 1).await;

    world.execute("ALTER TABLE routes DROP CONSTRAINT refused").await;
    world.settled(30).await;
    published_once(&world, 30).await;
}

#[tokio::test]
async fn completions_that_are_too_slow_together_are_committed_in_smaller_parts() {
    let world = World::new().await;
    let client = world.database.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
             CREATE TRIGGER slow BEFORE UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await
        .expect("the superuser may");
    let _service = world.service().start().await;
    world.send(0..150).await;
    world.settled(150).await;
    world.check(0..150).await;
}

/// Inserts push routes with ids 1 to `count` that have been due for a while, in this order.
async fn backlog(world: &World, count: u32, next_attempt_at: &str) {
    let client = world.database.client().await;
    client
        .batch_execute(&format!(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json,
                idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             SELECT n || '-0', 'game.turn.ready', 'game_master', 'user', '{{}}', n::text, 'v1:', now(), now(), now(), now()
             FROM generate_series(1, {count}) n;
             INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
                created_at, updated_at)
             SELECT n || '-0', 'push:user:u', 'push', 'user:u', 'pending', 3, {next_attempt_at}, now(), now()
             FROM generate_series(1, {count}) n"
        ))
        .await
        .expect("rows");
}

// INV-11
#[tokio::test]
async fn the_routes_of_a_killed_replica_do_not_wait_for_the_end_of_a_backlog() {
    const BACKLOG: u32 = 30_000;
    const BATCH: u32 = 64;
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    let slow = |service: ServiceBuilder| service.env("NOTIFICATION_PUBLISH_BATCH_SIZE", BATCH.to_string());
    let first = slow(world.service_via(redis.port(), world.database.port())).start().await;
    world.send(0..1).await;
    world.settled(1).await;
    let appending = redis.hold_request(PUSH_APPEND.as_bytes());
    backlog(&world, BACKLOG, "timestamptz '2026-01-01' + n * interval '1 millisecond'").await;
    appending.reached(BOUND).await;
    first.kill().await;

    let _second = slow(world.service()).start().await;
    let client = world.database.client().await;
    let left = |condition: &'static str| {
        let client = &client;
        async move {
            let sql =
                format!("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL AND {condition}");
            client.query_one(&sql, &[]).await.expect("is there").get::<_, i64>(0)
        }
    };
    wait_for("the routes that the killed replica held are published", BOUND, async || {
        (left("next_attempt_at < timestamptz '2026-01-01' + interval '64.5 milliseconds'").await == 0)
            .then_some(())
    })
    .await;
    let rest = left("true").await;
    assert!(rest > i64::from(BACKLOG) / 10, "only {rest} routes of the backlog are left");
}

#[tokio::test]
async fn each_of_many_unreadable_rows_is_reported_exactly_once() {
    let world = World::new().await;
    backlog(&world, 1_100, "'-infinity'").await;
    let service = world.service().start().await;
    let reported = || -> BTreeMap<String, usize> {
        let mut times = BTreeMap::new();
        for line in lines(&service, "routes cannot be read") {
            let routes = line["routes"].as_str().expect("a list").to_owned();
            for route in serde_json::from_str::<Vec<String>>(&routes).expect("a list of texts") {
                *times.entry(route).or_insert(0) += 1;
            }
        }
        times
    };
    wait_for("every row is reported", BOUND, async || (reported().len() == 1_100).then_some(())).await;
    let since = Instant::now();
    wait_for("they are listed again", BOUND, async || (since.elapsed() > LEASE_TTL * 3).then_some(())).await;
    assert!(reported().values().all(|times| *times == 1));
    assert!(lines(&service, "routes cannot be read").len() <= 1_100 / 10);
    world.send(0..3).await;
    wait_for("other routes are published", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE status = 'published'").await == 12).then_some(())
    })
    .await;
}
