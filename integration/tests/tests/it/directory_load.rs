//! A user directory that sheds load, or is slow, does not prevent any intent from being published.

use std::time::Duration;

use domain::intent::{IntentDraft, Recipients};
use harness::{DirectoryLoad, wait_for};
use store_redis::append_command;

use crate::world::*;

/// An intent for this many users.
fn for_users(key: u32, count: u32) -> redis::Cmd {
    let users = (0..count).map(|n| format!("user-{n}")).collect();
    let draft = IntentDraft { recipients: Recipients::Users(users), ..intent_draft(key) };
    append_command(INTENTS, &draft.into_entry())
}

async fn all_routes_are_published(world: &World, count: i64) {
    wait_for("all routes are published", BOUND, async || {
        let published = world.number("SELECT count(*) FROM routes WHERE status = 'published'").await;
        (published == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_intent_of_a_hundred_users_passes_a_directory_that_serves_eight_at_a_time() {
    let world = World::new().await;
    world.directory.set_load(DirectoryLoad {
        latency: Duration::from_millis(50),
        at_most: 8,
        ..DirectoryLoad::default()
    });
    let service = world.service().env("NOTIFICATION_USER_SERVICE_TIMEOUT", "10s").start().await;
    let mut redis = world.redis().await;
    for_users(1, 100).query_async::<String>(&mut redis).await.expect("Redis is there");
    world.send(2..4).await;
    all_routes_are_published(&world, 2 * 100 + 2 * 4).await;
    // Delays of a busy machine do not count.
    let waited = service.output().iter().any(|line| line.contains("user directory"));
    assert!(!waited, "an entry had to wait for the user directory");
}

#[tokio::test]
async fn an_intent_of_a_thousand_users_passes_a_slow_directory_that_refuses_one_request_in_fifty() {
    let world = World::new().await;
    world.directory.set_load(DirectoryLoad {
        latency: Duration::from_millis(150),
        refuse_every: 50,
        ..DirectoryLoad::default()
    });
    let _service = world.service().env("NOTIFICATION_USER_SERVICE_TIMEOUT", "10s").start().await;
    let mut redis = world.redis().await;
    for_users(1, 1_000).query_async::<String>(&mut redis).await.expect("Redis is there");
    all_routes_are_published(&world, 2 * 1_000).await;
}
