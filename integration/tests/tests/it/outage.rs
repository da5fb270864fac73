//! Dependencies that become unavailable, recover, do not respond, or execute a call whose reply is lost.

use std::time::{Duration, Instant};

use harness::{Proxy, Service, wait_for};
use serde_json::Value;

use crate::world::*;

/// The time for which a dependency is unavailable.
const GONE: Duration = Duration::from_secs(10);

/// Waits until the service has detected the outage itself, and the outage has lasted its time.
async fn outage_lasts(service: &Service, since: Instant) {
    wait_for("the outage is noticed and has lasted", BOUND, async || {
        let noticed = service.logged("worker failed; retrying").is_some();
        (noticed && since.elapsed() >= GONE).then_some(())
    })
    .await;
    assert_eq!(service.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn postgresql_killed_and_gone_for_ten_seconds_costs_nothing_but_time() {
    let mut world = World::with_own_postgres().await;
    let service = world.service().start().await;
    world.send(0..500).await;
    let mut postgres = world.postgres.take().expect("its own");
    postgres.kill().await;
    let since = Instant::now();
    world.send(500..600).await;
    outage_lasts(&service, since).await;
    postgres.start_again().await.expect("it starts again");
    world.send(600..700).await;
    world.settled(700).await;
    world.check(0..700).await;
}

#[tokio::test]
async fn redis_killed_and_gone_for_ten_seconds_costs_nothing_but_time() {
    let mut world = World::new().await;
    let service = world.service().start().await;
    world.send(0..500).await;
    world.redis.kill().await;
    let since = Instant::now();
    outage_lasts(&service, since).await;
    world.redis.start_again().await.expect("it starts again");
    world.send(500..600).await;
    world.settled(600).await;
    world.check(0..600).await;
}

#[tokio::test]
async fn both_restarted_at_once_are_found_again() {
    let mut world = World::with_own_postgres().await;
    let service = world.service().start().await;
    world.send(0..300).await;
    let mut postgres = world.postgres.take().expect("its own");
    world.redis.kill().await;
    postgres.stop().await;
    postgres.start_again().await.expect("it starts again");
    world.redis.start_again().await.expect("it starts again");
    world.send(300..400).await;
    world.settled(400).await;
    world.check(0..400).await;
    drop(service);
}

#[tokio::test]
async fn every_connection_killed_under_load_is_opened_again() {
    let world = World::new().await;
    let _service = world.service().start().await;
    let mut redis = world.redis().await;
    for round in 0..5_u32 {
        world.send(round * 100..(round + 1) * 100).await;
        world
            .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'notificationservice' AND datname = current_database()")
            .await;
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        let mut command = redis::cmd(kill[0]);
        for word in &kill[1..] {
            command.arg(word);
        }
        command.query_async::<i64>(&mut redis).await.expect("Redis is there");
    }
    world.settled(500).await;
    world.check(0..500).await;
}

// INV-12
#[tokio::test]
async fn a_black_holed_postgresql_holds_nothing_for_ever() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let service = world.service_via(world.redis.port(), postgres.port()).start().await;
    world.send(0..200).await;
    postgres.black_hole();
    let since = Instant::now();
    world.send(200..300).await;
    outage_lasts(&service, since).await;
    postgres.heal();
    world.settled(300).await;
    world.check(0..300).await;
}

// INV-12
#[tokio::test]
async fn a_black_holed_redis_holds_nothing_for_ever() {
    let world = World::new().await;
    let redis = Proxy::start(world.redis.port()).await;
    let service = world.service_via(redis.port(), world.database.port()).start().await;
    world.send(0..200).await;
    redis.black_hole();
    let since = Instant::now();
    world.send(200..300).await;
    outage_lasts(&service, since).await;
    redis.heal();
    world.settled(300).await;
    world.check(0..300).await;
}

// CRASH-03
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_accepted_once() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let _service = world.service_via(world.redis.port(), postgres.port()).start().await;
    let lost = postgres.lose_reply(b"push:user:u-");
    world.send(0..10).await;
    lost.reached(BOUND).await;
    world.settled(10).await;
    world.check(0..10).await;
}

#[tokio::test]
async fn an_answer_of_redis_that_is_lost_is_asked_for_again_and_nothing_is_done_twice() {
    // A permit, both appends, the cached checkpoint: each is executed, and the service never receives the
    // reply.
    for step in ["notification:publish_permits:", PUSH_APPEND, MAIL_APPEND, "notification:stream_offsets:"] {
        let world = World::new().await;
        let redis = Proxy::start(world.redis.port()).await;
        let _service = world.service_via(redis.port(), world.database.port()).start().await;
        world.send(0..1).await;
        world.settled(1).await;
        let lost = redis.lose_reply(step.as_bytes());
        world.send(1..10).await;
        lost.reached(BOUND).await;
        world.settled(10).await;
        world.check(0..10).await;
    }
}

#[tokio::test]
async fn while_the_directory_is_unavailable_the_stream_waits_and_reports_the_cause() {
    let mut world = World::new().await;
    let service = world.service().start().await;
    world.directory.stop().await;
    world.send(0..5).await;
    let waiting = intake_waits(&service).await;
    let first = waiting["entry_id"].as_str().expect("it names the entry").to_owned();
    assert!(waiting["cause"].as_str().expect("it names the cause").contains("user directory"), "{waiting}");
    wait_for("the log has it, too", BOUND, async || {
        let output = service.output();
        let mut lines = output.iter().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.find(|line| {
            line["message"] == "worker failed; retrying"
                && line["worker"] == "intake"
                && line["entry_id"] == *first
        })
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);
    assert!(world.column("SELECT last_entry_id FROM intake").await.iter().all(|progress| *progress < first));

    world.directory.start_again().await.expect("its port is free");
    world.settled(5).await;
    world.check(0..5).await;
}

#[tokio::test]
async fn a_user_that_cannot_be_looked_up_delays_no_entry_before_it() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.directory.set_fault("u-7", harness::UserFault::Hang);
    world.send(0..10).await;
    intake_waits(&service).await;
    world.settled(7).await;
    world.check(0..7).await;
    world.directory.clear_faults();
    world.settled(10).await;
    world.check(0..10).await;
}

#[tokio::test]
async fn a_redis_without_memory_is_waited_for_and_costs_no_attempt() {
    // Redis runs out of memory before the permit is granted, or between it and the append.
    for step in ["notification:publish_permits:", PUSH_APPEND] {
        let world = World::new().await;
        let proxy = Proxy::start(world.redis.port()).await;
        // The held request must not time out before Redis is out of memory.
        let service = world
            .service_via(proxy.port(), world.database.port())
            .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "10s")
            .env("NOTIFICATION_ROUTE_LEASE_TTL", "20s")
            .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "3m")
            .start()
            .await;
        let held = proxy.hold_request(step.as_bytes());
        world.send(0..5).await;
        held.reached(BOUND).await;
        set_memory(&world, "1").await;
        proxy.heal();
        wait_for("push meets a Redis without memory", BOUND, async || {
            let failed = |line: &Value| {
                let error = line["error"].as_str().unwrap_or_default();
                line["worker"] == "push" && error.contains("OOM")
            };
            let attempts = world.number("SELECT count(*) FROM routes WHERE attempt_count > 0").await;
            assert_eq!(attempts, 0, "no attempt is counted");
            let lines = service.output();
            lines.iter().filter_map(|line| serde_json::from_str(line).ok()).find(failed)
        })
        .await;
        let outbound = world.outbound().await;
        assert!(!outbound.keys().any(|id| id.contains("/push:")), "nothing went out: {outbound:?}");
        set_memory(&world, "0").await;
        world.send(5..10).await;
        world.settled(10).await;
        world.check(0..10).await;
    }
}

/// Limits the memory of Redis, and disables eviction.
async fn set_memory(world: &World, bytes: &str) {
    let mut redis = world.redis().await;
    for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", bytes)] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        set.query_async::<()>(&mut redis).await.expect("Redis is there");
    }
}

// INV-07, CRASH-14
#[tokio::test]
async fn a_postgresql_that_was_restored_to_an_older_state_gets_its_intents_again_from_the_stream() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let kept = world.column("SELECT last_entry_id FROM intake").await.remove(0);
    world.send(3..6).await;
    world.settled(6).await;
    // The state after a restore of an older backup while the service keeps running.
    let forget = format!("UPDATE intake SET last_entry_id = '{kept}'");
    world.execute("DELETE FROM records WHERE idempotency_key IN ('game-1:turn-3', 'game-1:turn-4', 'game-1:turn-5')").await;
    world.execute(&forget).await;
    world.send(6..7).await;
    world.settled(7).await;
    // Their markers still existed: nothing was published twice.
    world.check(0..7).await;
    assert!(
        service
            .logged(
                "the checkpoint in PostgreSQL is not where this replica left it; determining where to resume"
            )
            .is_some()
    );
}
