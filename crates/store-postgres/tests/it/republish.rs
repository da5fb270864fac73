//! Reading publications page by page, and replacing their entry ids, where the contract suite of the port
//! does not cover them.

use domain::ports::{Completion, Published, PublishedPage, RecordCursor, RepublishStore};
use domain::route::{RouteKey, Version};
use harness::contract::acknowledged;

use crate::*;

/// Intents `1..=count`, accepted a second apart, whose routes were all published at the same times.
async fn published(count: i64) -> World {
    let world = World::new().await;
    for n in 1..=count {
        world.accept([n as u64], at(n)).await;
    }
    world
        .execute(
            "UPDATE routes SET status = 'published', next_attempt_at = NULL, published_at = created_at,
             published_entry_id = split_part(notification_id, '-', 1) || '-7'",
        )
        .await;
    world
}

async fn page(world: &World, before: &RecordCursor, records: usize) -> PublishedPage {
    world.store.list_published_entries(before, at(0), records).await.expect("is there")
}

/// The first page.
async fn newest(world: &World) -> PublishedPage {
    page(world, &RecordCursor::before(at(1_000)), 100).await
}

fn names(page: &PublishedPage) -> Vec<String> {
    page.entries.iter().map(|entry| format!("{} {}", entry.key, entry.entry_id)).collect()
}

/// Every page.
async fn all(world: &World, records: usize) -> Vec<String> {
    let mut before = RecordCursor::before(at(1_000));
    let mut found = Vec::new();
    loop {
        let page = page(world, &before, records).await;
        found.extend(names(&page));
        match page.next {
            Some(next) => before = next,
            None => return found,
        }
    }
}

#[tokio::test]
async fn routes_that_are_not_published_are_not_listed() {
    let world = published(3).await;
    world
        .execute(
            "UPDATE routes SET status = 'pending', next_attempt_at = now() WHERE notification_id LIKE '%1-0'",
        )
        .await;
    world.execute("UPDATE routes SET status = 'dead_letter' WHERE notification_id LIKE '%2-0'").await;
    assert_eq!(all(&world, 1).await.len(), 2);
}

#[tokio::test]
async fn a_page_that_a_large_record_cuts_leaves_that_record_to_the_next() {
    let world = published(4).await;
    world
        .execute(
            "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at,
                updated_at, published_at, published_entry_id)
             SELECT notification_id, 'push:user:x' || n, 'push', 'user:x' || n, 'published', 3, accepted_at, accepted_at,
                accepted_at, '5-' || n
             FROM records, generate_series(1, 1998) n",
        )
        .await;
    let first = newest(&world).await;
    assert_eq!(first.entries.len(), 4_000, "two whole records");
    assert_eq!(all(&world, 100).await.len(), 8_000);
}

#[tokio::test]
async fn an_entry_id_that_cannot_be_read_harms_only_its_route() {
    let world = published(2).await;
    world.execute("UPDATE routes SET published_entry_id = 'x' WHERE notification_id LIKE '%1-0' AND channel = 'push'").await;
    let page = newest(&world).await;
    assert_eq!((page.entries.len(), page.corrupt.len()), (3, 1));
    let error = page.corrupt[0].to_string();
    assert!(error.starts_with("routes.published_entry_id of "), "{error}");
}

async fn read(world: &World, keys: &[RouteKey]) -> Vec<(RouteKey, Version)> {
    let keys: Vec<&RouteKey> = keys.iter().collect();
    let page = world.store.get_published_routes(&keys).await.expect("is there");
    page.routes.into_iter().map(|route| (route.key, route.version)).collect()
}

async fn keys_of(world: &World) -> Vec<RouteKey> {
    newest(world).await.entries.into_iter().map(|entry| entry.key).collect()
}

// INV-03
#[tokio::test]
async fn replacing_an_entry_id_changes_nothing_else_but_the_version() {
    let world = published(1).await;
    let rows = async || {
        world.column("SELECT (to_jsonb(routes) - 'updated_at' - 'published_entry_id')::text FROM routes ORDER BY 1").await
    };
    let before = rows().await;
    let read = read(&world, &keys_of(&world).await).await;
    let replaced: Vec<Published> = read
        .iter()
        .map(|(key, version)| Published { key: key.clone(), version: *version, entry: acknowledged("9-9") })
        .collect();
    let swaps = world.store.replace_published_entries(&replaced, at(0)).await.expect("is there");
    assert_eq!(swaps, [Completion::Applied; 2]);
    assert_eq!(rows().await, before);
    assert_eq!(world.column("SELECT DISTINCT published_entry_id FROM routes").await, ["9-9"]);
}

// INV-13
#[tokio::test]
async fn a_route_that_another_transaction_has_locked_delays_no_other() {
    let world = published(3).await;
    let read = read(&world, &keys_of(&world).await).await;
    let replaced: Vec<Published> = read
        .iter()
        .map(|(key, version)| Published { key: key.clone(), version: *version, entry: acknowledged("9-9") })
        .collect();
    let other = world.database.client().await;
    other
        .batch_execute("BEGIN; SELECT FROM routes WHERE channel = 'push' FOR UPDATE")
        .await
        .expect("the role owns the table");
    let completions =
        world.store.replace_published_entries(&replaced, at(9)).await.expect("it does not wait");
    for ((key, _), completion) in read.iter().zip(completions) {
        let is_locked = key.route_id.starts_with("push:");
        assert_eq!(completion, if is_locked { Completion::Locked } else { Completion::Applied }, "{key}");
    }
    other.batch_execute("ROLLBACK").await.expect("is there");
    let completions = world.store.replace_published_entries(&replaced, at(9)).await.expect("is there");
    let applied = completions.iter().filter(|done| **done == Completion::Applied).count();
    assert_eq!(applied, 3, "the others have a higher version by now");
}

#[tokio::test]
async fn a_route_that_was_deleted_or_is_live_again_is_a_conflict() {
    let world = published(2).await;
    let read = read(&world, &keys_of(&world).await).await;
    world.execute("DELETE FROM records WHERE notification_id LIKE '%1-0'").await;
    world
        .execute("UPDATE routes SET status = 'pending', next_attempt_at = now() WHERE channel = 'push'")
        .await;
    let replaced: Vec<Published> = read
        .iter()
        .map(|(key, version)| Published { key: key.clone(), version: *version, entry: acknowledged("9-9") })
        .collect();
    let swaps = world.store.replace_published_entries(&replaced, at(9)).await.expect("is there");
    let applied: Vec<&RouteKey> = read
        .iter()
        .zip(&swaps)
        .filter(|(_, swap)| **swap == Completion::Applied)
        .map(|((key, _), _)| key)
        .collect();
    assert_eq!(applied.len(), 1, "{swaps:?}");
    assert!(applied[0].route_id.starts_with("email:"));
}
