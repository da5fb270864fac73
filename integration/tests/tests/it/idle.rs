//! With nothing to do, next to nothing is done.

use std::time::{Duration, Instant};

use harness::{Proxy, wait_for};

use crate::world::*;

/// Long enough that a rate can be told from a burst.
const WINDOW: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_idle_replica_asks_redis_less_than_twice_and_postgresql_less_than_once_a_second() {
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
    let (commands, statements, since) = (redis.requests(), postgres.requests(), Instant::now());
    wait_for("the window is over", BOUND, async || (since.elapsed() >= WINDOW).then_some(())).await;
    let seconds = since.elapsed().as_secs_f64();
    let commands = (redis.requests() - commands) as f64 / seconds;
    let statements = (postgres.requests() - statements) as f64 / seconds;
    assert!(commands > 0.0 && commands < 2.0, "{commands:.1} Redis commands a second");
    assert!(statements > 0.0 && statements < 1.0, "{statements:.1} statements a second");
    assert_eq!(service.get("/healthz").await.0, 200);
}
