//! An idle service does almost no work.

use std::time::{Duration, Instant};

use harness::{Proxy, wait_for};

use crate::world::*;

/// Twice the longest interval of regular work, so that the start of the window has little effect on the rate.
const WINDOW: Duration = Duration::from_secs(20);

#[tokio::test]
async fn an_idle_replica_calls_redis_less_than_twice_and_postgresql_less_than_once_a_second() {
    let world = World::new().await;
    let (redis, postgres) =
        (Proxy::start(world.redis.port()).await, Proxy::start(world.database.port()).await);
    let service = world
        .service_via(redis.port(), postgres.port())
        .env("NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT", "2s")
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "5s")
        .start()
        .await;
    world.send(0..10).await;
    world.settled(10).await;
    // Work after a publication does not count: the last ids of the outbound streams are saved within 10 s.
    wait_for("the last ids are saved", BOUND, async || {
        let saved = "SELECT count(*) FROM outbound_streams WHERE last_generated_id <> '0-0'";
        (world.number(saved).await == 2).then_some(())
    })
    .await;
    // Once two more reports are written, each regular statement is prepared on its connection.
    let reported = async || world.column("SELECT seen_at::text FROM replicas").await;
    for _ in 0..2 {
        let last = reported().await;
        wait_for("the replica has reported itself", BOUND, async || (reported().await != last).then_some(()))
            .await;
    }
    let (commands, statements, since) = (redis.requests(), postgres.requests(), Instant::now());
    wait_for("the window is over", BOUND, async || (since.elapsed() >= WINDOW).then_some(())).await;
    let seconds = since.elapsed().as_secs_f64();
    let commands = (redis.requests() - commands) as f64 / seconds;
    let statements = (postgres.requests() - statements) as f64 / seconds;
    eprintln!("{statements:.2} statements a second");
    assert!(commands > 0.0 && commands < 2.0, "{commands:.1} Redis commands a second");
    assert!(statements > 0.0 && statements < 1.0, "{statements:.1} statements a second");
    assert_eq!(service.get("/healthz").await.0, 200);
}
