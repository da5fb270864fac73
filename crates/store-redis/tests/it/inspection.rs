//! Inspecting the outbound streams, and appending lost entries again.

use domain::outbound::OutboundEntry;
use domain::ports::{Append, LeaseStore, Outbound, OutboundInspection, OutboundState, StoreError};
use domain::route::Channel;
use store_redis::{Keyspace, RedisLeases, RedisOutbound};

use crate::*;

const GATEWAY: &str = "gateway:client-events";
const MAIL: &str = "mail:delivery_commands";

fn outbound(world: &World) -> RedisOutbound {
    let target = |key: &str| StreamTarget { key: key.to_owned(), max_len: None };
    RedisOutbound::new(&world.client, &Keyspace::default(), target(GATEWAY), target(MAIL))
}

fn entry(key: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", key.to_string().into()), ("attempt", "1".into())])
}

async fn append_again(outbound: &RedisOutbound, keys: &[&RouteKey]) -> Vec<Append> {
    let entries: Vec<_> = keys.iter().map(|key| entry(key)).collect();
    let given: Vec<_> = keys.iter().copied().zip(&entries).collect();
    outbound.append_again(Channel::Push, &given, DEDUPE_TTL).await.expect("Redis is there")
}

#[track_caller]
fn id(append: &Append) -> EntryId {
    let Append::Done(id) = append else { panic!("not appended: {append:?}") };
    id.parse().expect("an id")
}

async fn add(world: &World, stream: &str, id: &str, name: &RouteKey) {
    world.ask::<String>(&["XADD", stream, id, "event_id", &name.to_string()]).await;
}

async fn length(world: &World) -> i64 {
    world.ask(&["XLEN", GATEWAY]).await
}

#[tokio::test]
async fn a_server_keeps_its_ids_until_it_is_started_again_and_its_streams_are_distinguished() {
    let mut world = World::new().await;
    let outbound = outbound(&world);
    add(&world, MAIL, "5-1", key(0)).await;
    add(&world, MAIL, "5-2", key(1)).await;
    world.ask::<i64>(&["XDEL", MAIL, "5-1"]).await;
    let first = outbound.observe().await.expect("Redis is there");
    let mail = OutboundState {
        first: Some(EntryId::new(5, 2)),
        last_generated: EntryId::new(5, 2),
        max_deleted: EntryId::new(5, 1),
    };
    assert_eq!(
        first.streams,
        [(Channel::Push, GATEWAY.to_owned(), None), (Channel::Email, MAIL.to_owned(), Some(mail))]
    );
    assert_eq!(outbound.observe().await.expect("Redis is there"), first);
    world.redis.kill().await;
    world.redis.start_again().await.expect("it starts");
    let again = harness::wait_for("it is seen again", BOUND, async || outbound.observe().await.ok()).await;
    assert_ne!(again.run_id, first.run_id);
    assert_eq!(again.streams, first.streams);
}

#[tokio::test]
async fn a_replica_is_not_inspected_and_its_promotion_changes_the_replication_id() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let before = outbound.observe().await.expect("Redis is there");
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let replica = outbound.observe().await;
    assert!(matches!(replica, Err(StoreError::Unavailable { .. })), "{replica:?}");
    world.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let after = outbound.observe().await.expect("it is a master");
    assert_eq!(after.run_id, before.run_id);
    assert_ne!(after.replication_id, before.replication_id);
}

// INV-09
#[tokio::test]
async fn a_key_of_another_type_is_no_stream_and_does_not_hide_the_other_stream() {
    let world = World::new().await;
    let outbound = outbound(&world);
    world.ask::<()>(&["SET", GATEWAY, "no stream"]).await;
    add(&world, MAIL, "5-1", key(0)).await;
    let seen = outbound.observe().await.expect("Redis is there").streams;
    let states: Vec<bool> = seen.iter().map(|(_, _, state)| state.is_some()).collect();
    assert_eq!(states, [false, true]);
    let found = outbound.find_entries(Channel::Push, &[(key(0), EntryId::new(5, 1))]).await;
    assert_eq!(found.expect("Redis is there"), (None, vec![false]));
}

#[tokio::test]
async fn an_entry_is_found_only_under_its_id_and_with_its_routes_name() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let (one, two) = (EntryId::new(5, 1), EntryId::new(5, 2));
    let asked = [(key(0), one), (key(1), one), (key(1), two), (key(2), EntryId::new(5, 3))];
    let absent = outbound.find_entries(Channel::Push, &asked).await.expect("Redis is there");
    assert_eq!(absent, (None, vec![false; 4]));
    add(&world, GATEWAY, "5-1", key(0)).await;
    add(&world, GATEWAY, "5-2", key(1)).await;
    let (state, found) = outbound.find_entries(Channel::Push, &asked).await.expect("Redis is there");
    assert_eq!(state.expect("it is there").first, Some(one));
    assert_eq!(found, [true, false, true, false]);
}

// INV-13
#[tokio::test]
async fn an_entry_that_is_appended_again_has_a_receipt_and_is_not_appended_twice() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let first = append_again(&outbound, &keys(0..3)).await;
    assert_eq!(length(&world).await, 3);
    assert_eq!(world.value(key(1)).await, Some(format!("published:{}", id(&first[1]))));
    assert_life(world.pttl(key(1)).await, DEDUPE_TTL);
    assert_eq!(append_again(&outbound, &keys(0..3)).await, first, "as after a reply that was lost");
    assert_eq!(length(&world).await, 3);
}

// INV-13
#[tokio::test]
async fn a_receipt_that_is_found_again_lives_on_for_as_long_as_a_new_one() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let first = append_again(&outbound, &keys(0..1)).await;
    world.ask::<()>(&["PEXPIRE", &route_lease(key(0)), "20000"]).await;
    assert_eq!(append_again(&outbound, &keys(0..1)).await, first);
    assert_life(world.pttl(key(0)).await, DEDUPE_TTL);
}

#[tokio::test]
async fn a_receipt_whose_entry_is_gone_or_of_another_route_is_no_receipt() {
    let world = World::new().await;
    let outbound = outbound(&world);
    add(&world, GATEWAY, "5-1", key(9)).await;
    world.put(key(0), "published:4-1").await;
    world.put(key(1), "published:5-1").await;
    // No id of an entry is so large.
    world.put(key(2), "published:99999999999999999999999-0").await;
    let appended = append_again(&outbound, &keys(0..3)).await;
    assert_eq!(length(&world).await, 4);
    assert!(appended.iter().all(|append| id(append) > EntryId::new(5, 1)), "{appended:?}");
}

#[tokio::test]
async fn a_lease_that_a_publisher_holds_is_left_alone_and_a_garbled_one_is_given_an_end() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let won = RedisLeases::new(&world.client, &Keyspace::default())
        .acquire_leases(&keys(0..1), &token("a"), LEASE_TTL)
        .await;
    assert_eq!(won.expect("Redis is there").len(), 1);
    world.put(key(1), "published:nonsense").await;
    world.ask::<()>(&["RPUSH", &route_lease(key(2)), "x"]).await;
    let appended = append_again(&outbound, &keys(0..4)).await;
    assert_eq!(appended[..3], [Append::LeaseLost, Append::LeaseLost, Append::LeaseLost]);
    assert_eq!(length(&world).await, 1);
    assert_eq!(world.value(key(0)).await.as_deref(), Some("a"));
    for garbled in keys(1..3) {
        assert_life(world.pttl(garbled).await, DEDUPE_TTL);
    }
}

#[tokio::test]
async fn a_publisher_that_finds_the_receipt_of_a_republished_route_appends_nothing() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let again = append_again(&outbound, &keys(0..1)).await;
    let entry = entry(key(0));
    let published =
        outbound.append(Channel::Push, &[(key(0), &entry)], &token("a"), DEDUPE_TTL).await.expect("is there");
    assert_eq!(published, again);
    assert_eq!(length(&world).await, 1);
}

#[tokio::test]
async fn a_server_without_memory_reports_it_for_each_entry() {
    let world = World::new().await;
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let outbound = outbound(&world);
    let entry = entry(key(0));
    let appended = outbound.append_again(Channel::Push, &[(key(0), &entry)], DEDUPE_TTL).await;
    let is_outage = match &appended {
        Ok(answers) => matches!(answers[..], [Append::Outage(_)]),
        Err(error) => matches!(error, StoreError::Unavailable { .. }),
    };
    assert!(is_outage, "{appended:?}");
}
