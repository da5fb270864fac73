//! Several installations on one Redis, and schemas that are configured for another stream.

use std::time::Duration;

use harness::{ServiceBuilder, TestDatabase};

use crate::world::*;

const OTHER_STREAM: &str = "other:intents";
const OTHER_KEY: &str = "notification:installations:{other:intents}:b3RoZXI6aW50ZW50cw";
const DEFAULT_KEY: &str = "notification:installations:{notification:intents}:bm90aWZpY2F0aW9uOmludGVudHM";

/// A service with its own schema on the Redis of `world`, and with its own intents and outbound streams.
fn other(world: &World, database: &TestDatabase) -> ServiceBuilder {
    world
        .service()
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", database.dsn())
        .env("NOTIFICATION_INTENTS_STREAM", OTHER_STREAM)
        .env("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", "other:push")
        .env("NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM", "other:mail")
}

async fn ends_with(service: ServiceBuilder, code: i32) -> String {
    let mut service = service.spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(code), "{:?}", service.output());
    service.output().join("\n")
}

// INV-15
#[tokio::test]
async fn two_installations_on_one_redis_with_the_same_entry_ids_each_append_every_route() {
    let world = World::new().await;
    let database = TestDatabase::new().await;
    let _first = world.service().start().await;
    let _second = other(&world, &database).start().await;
    let mut redis = world.redis().await;
    // Sequentially, so that the markers of the first exist when the second acquires leases.
    for stream in [INTENTS, OTHER_STREAM] {
        for n in 0..10_u32 {
            let mut add = redis::cmd("XADD");
            add.arg(stream).arg(format!("1775121700000-{n}"));
            for (name, value) in intent_fields(n) {
                add.arg(name).arg(value);
            }
            add.query_async::<()>(&mut redis).await.expect("Redis is there");
        }
        world.settled(10).await;
    }
    world.check(0..10).await;
    harness::wait_for("the second has appended its routes", BOUND, async || {
        let mut count = 0_u64;
        for stream in ["other:push", "other:mail"] {
            count += redis::cmd("XLEN").arg(stream).query_async::<u64>(&mut redis.clone()).await.ok()?;
        }
        let published = "SELECT count(*) FROM routes WHERE status = 'published'";
        let row = database.client().await.query_one(published, &[]).await.ok()?;
        (row.get::<_, i64>(0) == 40).then(|| assert_eq!(count, 40))
    })
    .await;
}

// INV-15
#[tokio::test]
async fn a_second_installation_on_the_same_stream_ends_with_1_and_names_the_key_to_delete() {
    let world = World::new().await;
    let database = TestDatabase::new().await;
    let first = world.service().start().await;
    let second = || world.service().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", database.dsn());
    let output = ends_with(second(), 1).await;
    assert!(output.contains("another installation") && output.contains(DEFAULT_KEY), "{output}");
    // Nothing was written under the wrong name, and the first installation continues.
    assert_eq!(world.number("SELECT count(*) FROM installation").await, 1);
    world.send(0..3).await;
    world.settled(3).await;
    first.kill().await;
    redis::cmd("DEL")
        .arg(DEFAULT_KEY)
        .query_async::<()>(&mut world.redis().await)
        .await
        .expect("it is there");
    let _second = second().start().await;
}

// INV-15
#[tokio::test]
async fn a_schema_that_serves_another_stream_ends_the_start_with_2_and_names_both() {
    let world = World::new().await;
    let first = world.service().start().await;
    first.kill().await;
    let output = ends_with(world.service().env("NOTIFICATION_INTENTS_STREAM", OTHER_STREAM), 2).await;
    assert!(output.contains(INTENTS) && output.contains(OTHER_STREAM), "{output}");
    let claimed: bool =
        redis::cmd("EXISTS").arg(OTHER_KEY).query_async(&mut world.redis().await).await.expect("it is there");
    assert!(!claimed, "the stream is left to another schema");
}

#[tokio::test]
async fn an_installation_that_redis_lost_is_written_again() {
    let world = World::new().await;
    world.service().start().await.kill().await;
    let mut redis = world.redis().await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.expect("Redis is there");
    let _again = world.service().start().await;
    let told: Option<String> =
        redis::cmd("GET").arg(DEFAULT_KEY).query_async(&mut redis).await.expect("it is there");
    assert_eq!(told.into_iter().collect::<Vec<_>>(), world.column("SELECT id FROM installation").await);
}
