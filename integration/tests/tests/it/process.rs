//! The process: start, probes, stop, exit codes.

use std::time::Duration;

use harness::{Proxy, ServiceBuilder, wait_for};

use crate::world::*;

#[tokio::test]
async fn a_service_that_may_open_few_files_raises_that_limit_as_far_as_it_may() {
    let world = World::new().await;
    let service = world.service().soft_file_limit(200).start().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.pid())).expect("Linux");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let numbers: Vec<&str> = line.split_whitespace().take(2).collect();
    assert_ne!(numbers[0], "200", "{line}");
    assert_eq!(numbers[0], numbers[1], "{line}");
}

#[tokio::test]
async fn probes_distinguish_a_running_and_a_ready_process() {
    let world = World::new().await;
    let service = world.service().start().await;
    assert_eq!(service.get("/healthz").await, (200, serde_json::json!({"status": "ok"})));
    let (status, body) = service.get("/readyz").await;
    assert_eq!((status, body["status"].as_str()), (200, Some("ready")));
    assert!(
        body["push"]["last_pass_ms_ago"].is_u64() && body["email"]["last_pass_ms_ago"].is_u64(),
        "{body}"
    );
}

#[tokio::test]
async fn sigterm_under_load_ends_it_with_0_and_leaves_no_lease() {
    for signal in ["TERM", "INT"] {
        let world = World::new().await;
        let mut service = world.service().start().await;
        world.send(0..1000).await;
        wait_for("it is at work", BOUND, async || {
            (world.number("SELECT count(*) FROM records").await > 0).then_some(())
        })
        .await;
        service.signal(signal);
        let status = service.wait_exit(Duration::from_secs(30)).await;
        assert_eq!(status.code(), Some(0), "SIG{signal}");
        let mut redis = world.redis().await;
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("notification:route_leases:*")
            .query_async(&mut redis)
            .await
            .expect("Redis is there");
        for key in keys {
            let value: Option<String> =
                redis::cmd("GET").arg(&key).query_async(&mut redis).await.expect("Redis is there");
            assert!(value.is_none_or(|value| value.starts_with("published:")), "a lease is left");
        }
        // All accepted and dispatched routes are published; none waits for its time.
        let live = world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await;
        assert_eq!(live, 0, "routes are left to others");
        let _next = world.service().start().await;
        world.settled(1000).await;
        world.check(0..1000).await;
    }
}

#[tokio::test]
async fn a_collector_that_does_not_answer_keeps_a_stop_within_its_time_out() {
    let world = World::new().await;
    let dead = Proxy::start(world.redis.port()).await;
    dead.black_hole();
    let mut service = world
        .service()
        .env("OTEL_TRACES_EXPORTER", "otlp")
        .env("OTEL_METRICS_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", dead.addr()))
        .env("NOTIFICATION_SHUTDOWN_TIMEOUT", "2500ms")
        .start()
        .await;
    world.send(0..1).await;
    world.settled(1).await;
    service.signal("TERM");
    // With the three seconds that a flush may take otherwise, the watchdog would end the process with 1.
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(0));
}

#[tokio::test]
async fn while_it_stops_it_is_not_ready_and_a_second_signal_ends_it_at_once_with_1() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let mut service = world.service_via(world.redis.port(), postgres.port()).start().await;
    let held = postgres.hold_request(b"push:user:u-");
    world.send(0..1).await;
    held.reached(BOUND).await;
    service.signal("TERM");
    wait_for("the log reports the stop", BOUND, async || {
        let (status, body) = service.get("/readyz").await;
        (status == 503 && body["status"] == "stopping").then_some(())
    })
    .await;
    service.signal("TERM");
    assert_eq!(service.wait_exit(Duration::from_secs(5)).await.code(), Some(1));
}

#[tokio::test]
async fn a_dependency_that_is_unavailable_at_start_ends_it_with_1_and_is_named() {
    let mut world = World::new().await;
    let nowhere = Proxy::start(world.database.port()).await;
    nowhere.cut();
    let mut service = world.service_via(world.redis.port(), nowhere.port()).spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let said = "PostgreSQL at postgres://notificationservice@127.0.0.1";
    wait_for("the output contains the message", BOUND, async || {
        service.output().join("\n").contains(said).then_some(())
    })
    .await;

    world.redis.kill().await;
    let mut service = world.service().spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let said = format!("Redis at {} does not serve", world.redis.addr());
    wait_for("the output contains the message", BOUND, async || {
        service.output().join("\n").contains(&said).then_some(())
    })
    .await;
    // The message is in the log, and not a second time on standard error.
    assert_eq!(service.output().join("\n").matches(&said).count(), 1, "{:?}", service.output());
}

#[tokio::test]
async fn an_address_that_is_taken_ends_the_start_with_1_and_is_named_with_its_variable() {
    let world = World::new().await;
    let taken = world.redis.addr();
    let mut service = world.service().env("NOTIFICATION_INTERNAL_HTTP_ADDR", &taken).spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let said = format!("could not listen on {taken} (NOTIFICATION_INTERNAL_HTTP_ADDR): ");
    wait_for("the output contains the message", BOUND, async || {
        service.output().join("\n").contains(&said).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_black_hole_at_start_ends_it_with_1_within_half_a_minute() {
    let world = World::new().await;
    for (redis_is_dead, postgres_is_dead) in [(true, false), (false, true)] {
        let proxy = Proxy::start(world.database.port()).await;
        proxy.black_hole();
        let redis_port = if redis_is_dead { proxy.port() } else { world.redis.port() };
        let postgres_port = if postgres_is_dead { proxy.port() } else { world.database.port() };
        // The bound must hold however long one operation may take.
        let mut service = world
            .service_via(redis_port, postgres_port)
            .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "1m")
            .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "1m")
            .env("NOTIFICATION_ROUTE_LEASE_TTL", "2m")
            .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "15m")
            .spawn();
        assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    }
}

#[tokio::test]
async fn sigterm_while_it_waits_for_a_dependency_ends_it_with_0() {
    let world = World::new().await;
    let dead = Proxy::start(world.database.port()).await;
    dead.black_hole();
    let mut service = world.service_via(world.redis.port(), dead.port()).spawn();
    wait_for("it waits for PostgreSQL", BOUND, async || service.logged("waiting for a dependency")).await;
    service.signal("TERM");
    // Without the signal it would wait for some seconds more and end with 1.
    assert_eq!(service.wait_exit(Duration::from_secs(5)).await.code(), Some(0));
}

#[tokio::test]
async fn a_schema_without_rights_ends_the_start_with_1_and_the_missing_rights_are_named() {
    let world = World::new().await;
    world.execute("REVOKE ALL ON notification.records FROM notificationservice").await;
    world.execute("ALTER TABLE notification.records OWNER TO postgres").await;
    let mut service = world.service().spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let output = service.output().join("\n");
    assert!(
        output.contains(
            "the role lacks SELECT, INSERT, UPDATE, DELETE on records; `notification migrate --print-grants`"
        ),
        "{output}"
    );
}

#[tokio::test]
async fn locks_without_rights_end_the_start_with_1_and_say_which_table() {
    let world = World::new().await;
    world.execute("REVOKE UPDATE ON notification.fence_counters FROM notificationservice").await;
    let mut service = world.service().spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let output = service.output().join("\n");
    assert!(output.contains("the role lacks UPDATE on fence_counters"), "{output}");
    assert!(output.contains("the tables of the locks at"), "{output}");
}

#[tokio::test]
async fn a_database_that_is_newer_than_the_binary_is_served_as_long_as_it_has_what_is_needed() {
    let world = World::new().await;
    world
        .execute("INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (999, 'future', '2030-01-01T00:00:00Z', '1')")
        .await;
    world.execute("ALTER TABLE records ADD COLUMN tomorrow text").await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    service.kill().await;

    world.execute("ALTER TABLE routes RENAME COLUMN resolved_locale TO locale").await;
    let mut next = world.service().spawn();
    assert_eq!(next.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    assert!(next.output().join("\n").contains("resolved_locale"));
}

#[tokio::test]
async fn bad_configuration_ends_it_with_2_and_reports_every_error() {
    let mut service = ServiceBuilder::default()
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db/x?sslmode=often")
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "soon")
        .env("NOTIFICATION_REDIS_ADDR", "redis:6379")
        .spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(10)).await.code(), Some(2));
    let output = service.output().join("\n");
    for name in [
        "NOTIFICATION_REDIS_MASTER_ADDR",
        "NOTIFICATION_POSTGRES_PRIMARY_DSN",
        "NOTIFICATION_USER_SERVICE_BASE_URL",
        "NOTIFICATION_ROUTE_LEASE_TTL",
        "NOTIFICATION_REDIS_ADDR",
    ] {
        assert!(output.contains(name), "{name} is not named:\n{output}");
    }
    assert!(!output.contains("s3cret"));
}

#[tokio::test]
async fn migrate_applies_once_and_prints_it() {
    let world = World::with(harness::TestDatabase::empty().await, None).await;
    for expected in ["14 migrations were applied", "the database has every migration already"] {
        let mut migrate = ServiceBuilder::default()
            .arguments(["migrate"])
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn())
            .spawn();
        assert_eq!(migrate.wait_exit(BOUND).await.code(), Some(0));
        wait_for("the output contains the message", BOUND, async || {
            migrate.output().iter().any(|line| line == expected).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_send_without_an_answer_prints_how_to_repeat_it_so_that_it_counts_once() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    let send = |redis_port: u16, more: &str| {
        let payload = r#"{"game_id":"g-1","game_name":"Nova","turn_number":54}"#;
        let flags = "send --type game.turn.ready --producer game_master --user u-1 --key g-1:54 --payload";
        let arguments = flags.split(' ').chain([payload]).chain(more.split_whitespace());
        let service = world.service_via(redis_port, world.database.port());
        service.arguments(arguments).spawn()
    };
    redis.hold_reply(b"XADD");
    let mut first = send(redis.port(), "");
    assert_eq!(first.wait_exit(BOUND).await.code(), Some(1));
    let advice = wait_for("the advice is printed", BOUND, async || {
        let output = first.output().join("\n");
        let (_, advice) =
            output.split_once("it may have been appended all the same: to repeat it safely add ")?;
        Some(advice.to_owned())
    })
    .await;
    assert_eq!(send(world.redis.port(), &advice).wait_exit(BOUND).await.code(), Some(0));

    let _service = world.service().start().await;
    let last = world.last_entry().await;
    wait_for("both entries are read", BOUND, async || {
        (world.cached_entry_id().await.as_ref() == Some(&last)).then_some(())
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 1);
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
    let sent: u32 =
        redis::cmd("XLEN").arg(INTENTS).query_async(&mut world.redis().await).await.expect("Redis is there");
    assert_eq!(sent, 2);
}

// INV-16
#[tokio::test]
async fn no_secret_payload_or_address_is_logged() {
    let world = World::new().await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(MAIL).arg("x").query_async::<()>(&mut redis).await.expect("Redis is there");
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("r3dis-s3cret")
        .query_async::<()>(&mut redis)
        .await
        .expect("Redis is there");
    let service = world
        .service()
        .env("NOTIFICATION_REDIS_PASSWORD", "r3dis-s3cret")
        .env("NOTIFICATION_LOG_LEVEL", "debug")
        .env("NOTIFICATION_ROUTE_BACKOFF_MIN", "50ms")
        .start()
        .await;
    world.directory.set_user("u-1", "very.private@example.com", "en");
    for n in [1, 2] {
        intent(n).query_async::<String>(&mut redis).await.expect("Redis is there");
    }
    let mut broken = redis::cmd("XADD");
    broken.arg(INTENTS).arg("*").arg("payload_json").arg(r#"{"hidden":"payload-s3cret"}"#).arg("x").arg("y");
    broken.query_async::<String>(&mut redis).await.expect("Redis is there");
    wait_for("failures are logged", BOUND, async || {
        (service.logged("an attempt to publish failed").is_some()
            && service.logged("an entry was not accepted").is_some())
        .then_some(())
    })
    .await;
    let output = service.output().join("\n");
    for secret in ["r3dis-s3cret", "very.private", "payload-s3cret", "Nova"] {
        assert!(!output.contains(secret), "{secret} is in the log:\n{output}");
    }
}
