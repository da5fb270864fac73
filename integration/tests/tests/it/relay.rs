//! The relay of an outbox as operators run it: its start, both modes, outages, stops.

use std::time::{Duration, Instant};

use harness::{Proxy, ServiceBuilder, Stopwatch, wait_for};
use serde_json::json;

use crate::outbox::*;
use crate::world::*;

#[tokio::test]
async fn what_was_committed_becomes_a_notification_and_what_was_rolled_back_does_not() {
    let outbox = Outbox::new().await;
    let _service = outbox.world.service().start().await;
    let _relay = outbox.relay().start().await;
    outbox.insert(0..3).await;
    outbox.execute(&format!("BEGIN; {INSERT} {}; ROLLBACK", event_row(3))).await;
    outbox.insert(4..5).await;
    outbox.drained().await;
    outbox.world.settled(4).await;
    let mut accepted = outbox.world.column("SELECT idempotency_key FROM records").await;
    accepted.sort();
    assert_eq!(accepted, [0, 1, 2, 4].map(event_id));
    assert_eq!(outbox.world.number("SELECT count(*) FROM routes WHERE status = 'published'").await, 16);
    outbox.check_stream([0, 1, 2, 4]).await;
}

#[tokio::test]
async fn a_relay_inside_the_service_does_the_same_and_has_its_figures_at_stats() {
    let outbox = Outbox::new().await;
    let service = outbox.service_with_relay().start().await;
    outbox.insert(0..3).await;
    outbox.world.settled(3).await;
    outbox.check_stream(0..3).await;
    let body = shows(&service, "running").await;
    assert!(body["outbox_relay"]["relay"].is_string(), "{body}");
    outbox.drained().await;
    let (status, stats) = service.get("/stats").await;
    let expected = json!({
        "pending_count": 0, "retrying_count": 0, "scheduled_count": 0, "delivering_count": 0, "dead_count": 0,
        "oldest_age_sec": 0.0,
    });
    assert_eq!((status, stats), (200, expected));
}

#[tokio::test]
async fn a_service_without_a_relay_has_no_stats() {
    let world = World::new().await;
    let service = world.service().start().await;
    let (status, _) = service.get("/stats").await;
    assert_eq!(status, 404);
    assert!(service.get("/readyz").await.1["outbox_relay"].is_null());
}

#[tokio::test]
async fn a_relay_inside_the_service_waits_for_its_table_and_the_service_does_not() {
    let outbox = Outbox { world: World::new().await, database: harness::TestDatabase::empty().await };
    let service = outbox.service_with_relay().start().await;
    let body = shows(&service, "paused").await;
    let cause = body["outbox_relay"]["waiting_for"].as_str().unwrap_or_default();
    assert!(cause.contains("the outbox table openoutbox_events does not exist"), "{body}");
    assert_eq!(service.get("/stats").await.0, 503);
    outbox.world.send(0..1).await;
    outbox.world.settled(1).await;

    outbox.migrate().await;
    outbox.insert(10..11).await;
    shows(&service, "running").await;
    outbox.world.settled(2).await;
}

/// Starts a relay that cannot work, and returns its exit code and its output.
async fn fails_to_start(relay: ServiceBuilder) -> (Option<i32>, String) {
    let begun = Instant::now();
    let mut relay = relay.spawn();
    let status = relay.wait_exit(Duration::from_secs(30)).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    (status.code(), relay.output().join("\n"))
}

#[tokio::test]
async fn a_table_a_column_or_a_right_that_is_missing_ends_the_start_with_1_and_is_named() {
    let outbox = Outbox { world: World::new().await, database: harness::TestDatabase::empty().await };
    let (code, output) = fails_to_start(outbox.relay()).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("the outbox table openoutbox_events does not exist"), "{output}");

    outbox.migrate().await;
    let schema = "ALTER TABLE openoutbox_events RENAME COLUMN partition_key TO ordering_key";
    outbox.execute(schema).await;
    let (code, output) = fails_to_start(outbox.relay()).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("lacks partition_key"), "{output}");

    outbox.execute("ALTER TABLE openoutbox_events RENAME COLUMN ordering_key TO partition_key").await;
    let rights = "ALTER TABLE openoutbox_events OWNER TO postgres;
        GRANT SELECT, UPDATE ON openoutbox_events TO notificationservice";
    outbox.execute(rights).await;
    let (code, output) = fails_to_start(outbox.relay()).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("lacks rights on the outbox: DELETE on openoutbox_events"), "{output}");

    // Exactly these rights suffice.
    outbox.execute("GRANT DELETE ON openoutbox_events TO notificationservice").await;
    let _relay = outbox.relay().start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    outbox.check_stream(0..1).await;
}

#[tokio::test]
async fn a_producer_or_a_type_that_the_catalogue_does_not_know_is_exit_code_2() {
    let outbox = Outbox { world: World::new().await, database: harness::TestDatabase::empty().await };
    for (name, value) in [
        ("NOTIFICATION_OUTBOX_PRODUCER", "postman"),
        ("NOTIFICATION_OUTBOX_TYPES", "game.over"),
        ("NOTIFICATION_OUTBOX_PRODUCER", ""),
    ] {
        let (code, output) = fails_to_start(outbox.relay().env(name, value)).await;
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains(name), "{output}");
    }
}

#[tokio::test]
async fn a_dependency_that_is_unavailable_at_the_start_ends_it_with_1() {
    let outbox = Outbox::new().await;
    for relay in [outbox.relay_via(1, outbox.database.port()), outbox.relay_via(outbox.world.redis.port(), 1)]
    {
        let (code, output) = fails_to_start(relay).await;
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains("does not serve"), "{output}");
    }
}

#[tokio::test]
async fn a_relay_leaves_the_types_of_others_alone() {
    let outbox = Outbox::new().await;
    let types = ("NOTIFICATION_OUTBOX_TYPES", "game.turn.ready");
    let _relay = outbox.relay().env(types.0, types.1).start().await;
    let other = row(0, "game.finished", "{}");
    outbox.execute(&format!("{INSERT} {other}")).await;
    outbox.insert(1..3).await;
    outbox.becomes(&event_id(2), "DELIVERED").await;
    outbox.check_stream(1..3).await;
    assert_eq!(outbox.count("PENDING").await, 1, "the other type is left alone");

    // A relay of all types finds that it is malformed.
    let _all = outbox.relay().start().await;
    let error = outbox.becomes(&event_id(0), "DEAD").await;
    assert!(error.starts_with("audience_not_allowed") || error.starts_with("missing_field"), "{error}");
}

#[tokio::test]
async fn a_relay_that_listens_is_woken_by_an_insert() {
    let outbox = Outbox::new().await;
    let made = outbox.command(&["outbox", "migrate", "--with-notify", "New Events"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    // Without the notification the next poll would be a minute away.
    let relay = outbox
        .relay()
        .env("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", "New Events")
        .env("NOTIFICATION_OUTBOX_POLL_INTERVAL", "1m")
        .start()
        .await;
    shows(&relay, "running").await;
    for n in 0..3 {
        let since = Instant::now();
        outbox.insert(n..n + 1).await;
        outbox.drained().await;
        assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    }
    outbox.check_stream(0..3).await;
}

/// A relay connected through two proxies, which has delivered an event.
async fn relay_at_work(outbox: &Outbox) -> (harness::Service, Proxy, Proxy) {
    let redis = Proxy::start(outbox.world.redis.port()).await;
    let postgres = Proxy::start(outbox.database.port()).await;
    let relay = outbox.relay_via(redis.port(), postgres.port()).start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    (relay, redis, postgres)
}

// O-21
#[tokio::test]
async fn a_relay_is_paused_while_redis_is_unavailable_claims_nothing_and_counts_no_attempt() {
    let outbox = Outbox::new().await;
    let (relay, redis, _postgres) = relay_at_work(&outbox).await;
    let harms: [fn(&Proxy); 2] = [Proxy::cut, Proxy::black_hole];
    for (n, harm) in (1..).zip(harms) {
        harm(&redis);
        wait_for("the relay is paused because of Redis", BOUND, async || {
            let body = shows(&relay, "paused").await;
            body["waiting_for"].as_str()?.contains("Redis").then_some(())
        })
        .await;
        outbox.insert(n..n + 1).await;
        let since = Instant::now();
        wait_for("the outage lasts", BOUND, async || {
            (since.elapsed() > Duration::from_secs(2)).then_some(())
        })
        .await;
        assert_eq!(outbox.count("PENDING").await, 1);
        redis.heal();
        shows(&relay, "running").await;
        outbox.drained().await;
    }
    assert_eq!(outbox.number("SELECT sum(attempts) FROM openoutbox_events").await, 0);
    outbox.check_stream(0..3).await;
}

// O-21
#[tokio::test]
async fn a_redis_that_is_full_or_read_only_is_an_outage_and_no_attempt() {
    let outbox = Outbox::new().await;
    let relay = outbox.relay().start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    let harms: [(&[&str], &[&str]); 2] = [
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    ];
    for (n, (harm, repair)) in (1..).zip(harms) {
        let mut redis = outbox.world.redis().await;
        let command = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command
        };
        command(harm).query_async::<()>(&mut redis).await.expect("Redis is there");
        outbox.insert(n..n + 1).await;
        shows(&relay, "paused").await;
        command(repair).query_async::<()>(&mut redis).await.expect("Redis is there");
        outbox.drained().await;
        shows(&relay, "running").await;
    }
    assert_eq!(outbox.number("SELECT sum(attempts) FROM openoutbox_events").await, 0);
    outbox.check_stream(0..3).await;
}

#[tokio::test]
async fn a_relay_is_paused_while_its_database_is_unavailable_and_continues_by_itself() {
    let outbox = Outbox::new().await;
    let (relay, _redis, postgres) = relay_at_work(&outbox).await;
    let harms: [fn(&Proxy); 2] = [Proxy::cut, Proxy::black_hole];
    for (n, harm) in (1..).zip(harms) {
        harm(&postgres);
        shows(&relay, "paused").await;
        assert_eq!(relay.get("/healthz").await.0, 200);
        assert_eq!(relay.get("/stats").await.0, 503);
        outbox.insert(n..n + 1).await;
        postgres.heal();
        shows(&relay, "running").await;
        outbox.drained().await;
    }
    outbox.check_stream(0..3).await;
}

// O-22
#[tokio::test]
async fn after_sigterm_in_the_middle_what_is_on_the_stream_is_delivered_and_the_rest_is_pending() {
    let outbox = Outbox::new().await;
    let redis = Proxy::start(outbox.world.redis.port()).await;
    let builder = outbox.relay_via(redis.port(), outbox.database.port());
    outbox.insert(0..4_000).await;
    // Slow enough that it is stopped in the middle of a claim of eight chunks, and that an append is not an
    // outage.
    redis.delay(Duration::from_millis(100));
    let mut relay = builder
        .env("NOTIFICATION_OUTBOX_BATCH_SIZE", "4096")
        .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "6s")
        .env("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "60s")
        .start()
        .await;
    wait_for("a chunk is on the stream", BOUND, async || {
        (!outbox.entries(INTENTS).await.is_empty()).then_some(())
    })
    .await;
    relay.signal("TERM");
    let status = relay.wait_exit(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0));
    let on_stream = outbox.keys().await;
    let delivered = outbox.count("DELIVERED").await;
    assert_eq!(delivered, i64::try_from(on_stream.len()).expect("few"));
    assert_eq!(outbox.count("PENDING").await, 4_000 - delivered);
    assert!(delivered < 4_000, "it was stopped in the middle");
    assert_eq!(outbox.number("SELECT max(attempts)::bigint FROM openoutbox_events").await, 0);
    assert_eq!(outbox.number("SELECT count(*) FROM openoutbox_events WHERE locked_by IS NOT NULL").await, 0);

    let _next = outbox.relay().start().await;
    outbox.drained().await;
    outbox.check_stream(0..4_000).await;
}

#[tokio::test]
async fn sigterm_ends_it_within_its_time_out_whatever_is_unavailable() {
    let outbox = Outbox::new().await;
    let redis = Proxy::start(outbox.world.redis.port()).await;
    let postgres = Proxy::start(outbox.database.port()).await;
    let builder = outbox.relay_via(redis.port(), postgres.port());
    let mut relay = builder.env("NOTIFICATION_SHUTDOWN_TIMEOUT", "5s").start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    redis.black_hole();
    postgres.black_hole();
    outbox.insert(1..2).await;
    relay.signal("TERM");
    let since = Stopwatch::start();
    relay.wait_exit(Duration::from_secs(30)).await;
    assert!(since.elapsed() < Duration::from_secs(7), "{:?}", since.elapsed());
}

#[tokio::test]
async fn events_of_a_partition_key_are_appended_in_their_order_by_any_number_of_relays() {
    let outbox = Outbox::new().await;
    let rows = (0..600_u32).map(|n| {
        format!(
            "('{}', 'game.turn.ready', convert_to('{}', 'UTF8'), 'key-{}', now() + {n} * interval '1 microsecond')",
            event_id(n),
            payload(n),
            n % 7
        )
    });
    let insert =
        "INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key, created_at) VALUES";
    outbox.execute(&format!("{insert} {}", rows.collect::<Vec<_>>().join(","))).await;
    let builder = || outbox.relay().env("NOTIFICATION_OUTBOX_BATCH_SIZE", "20");
    let (_one, _two, _three) = tokio::join!(builder().start(), builder().start(), builder().start());
    outbox.drained().await;
    outbox.check_stream(0..600).await;
    let keys = outbox.keys().await;
    for group in 0..7 {
        let of_group = |key: &&String| key[24..].parse::<u32>().is_ok_and(|n| n % 7 == group);
        let in_order: Vec<&String> = keys.iter().filter(of_group).collect();
        assert!(in_order.is_sorted(), "key-{group}: {in_order:?}");
    }
}

#[tokio::test]
async fn a_relay_goes_on_by_itself_after_the_type_of_a_column_was_changed() {
    let outbox = Outbox::new().await;
    let relay = outbox.relay().start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    let columns = ["available_at", "created_at"];
    let columns = columns.map(|column| format!("ALTER COLUMN {column} TYPE timestamptz(3)")).join(", ");
    outbox.execute(&format!("ALTER TABLE openoutbox_events {columns}")).await;
    outbox.insert(1..3).await;
    outbox.drained().await;
    shows(&relay, "running").await;
    outbox.check_stream(0..3).await;
}
