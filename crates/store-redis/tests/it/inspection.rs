//! Inspecting the outbound streams, and appending lost entries again.

use domain::outbound::OutboundEntry;
use domain::ports::{Append, LeaseStore, OutboundInspection, StoreError};
use domain::republish::{EntryState, entry_state};
use domain::route::Channel;
use store_redis::{Keyspace, RedisLeases, RedisOutbound, server_changes};

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
    let Append::Done(entry) = append else { panic!("not appended: {append:?}") };
    entry.entry_id.parse().expect("an id")
}

async fn add(world: &World, stream: &str, id: &str, name: &RouteKey) {
    world.ask::<String>(&["XADD", stream, id, "event_id", &name.to_string()]).await;
}

async fn length(world: &World) -> i64 {
    world.ask(&["XLEN", GATEWAY]).await
}

#[tokio::test]
async fn a_replica_is_not_inspected_and_its_promotion_changes_the_replication_id() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let before = outbound.observe(Channel::Push).await.expect("Redis is there");
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let replica = outbound.observe(Channel::Push).await;
    assert!(matches!(replica, Err(StoreError::Unavailable { .. })), "{replica:?}");
    world.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let after = outbound.observe(Channel::Push).await.expect("it is a master");
    assert_eq!(after.server.run_id, before.server.run_id);
    assert_ne!(after.server.replication_id, before.server.replication_id);
}

// INV-09
#[tokio::test]
async fn a_key_of_another_type_is_no_stream_and_does_not_hide_the_other_stream() {
    let world = World::new().await;
    let outbound = outbound(&world);
    world.ask::<()>(&["SET", GATEWAY, "no stream"]).await;
    add(&world, MAIL, "5-1", key(0)).await;
    for (channel, is_there) in [(Channel::Push, false), (Channel::Email, true)] {
        assert_eq!(outbound.observe(channel).await.expect("Redis is there").state.is_some(), is_there);
    }
    let found = outbound.find_entries(Channel::Push, &[(key(0), EntryId::new(5, 1))]).await;
    let found = found.expect("Redis is there");
    assert_eq!((found.stream, found.states), (None, vec![EntryState::NoStream]));
}

// INV-13
#[tokio::test]
async fn a_marker_of_an_entry_that_is_appended_again_names_it_and_lives_as_long_as_asked() {
    let world = World::new().await;
    let outbound = outbound(&world);
    let first = append_again(&outbound, &keys(0..3)).await;
    assert_eq!(length(&world).await, 3);
    assert_eq!(world.value(key(1)).await, Some(format!("published:{}", id(&first[1]))));
    assert_life(world.pttl(key(1)).await, DEDUPE_TTL);
}

#[tokio::test]
async fn a_marker_of_an_entry_that_this_server_never_had_or_of_another_route_is_no_marker() {
    let world = World::new().await;
    let outbound = outbound(&world);
    add(&world, GATEWAY, "5-1", key(9)).await;
    world.put(key(0), "published:4-1").await;
    world.put(key(1), "published:5-1").await;
    // No id of an entry is that large.
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

// INV-13
#[tokio::test]
async fn a_server_that_came_back_without_a_tail_never_had_its_ids_and_says_so_after_more_appends() {
    let mut world = World::with_snapshots().await;
    let first = append_again(&outbound(&world), &keys(0..2)).await;
    world.ask::<()>(&["SAVE"]).await;
    let lost = id(&append_again(&outbound(&world), &keys(2..3)).await[0]);
    world.restart_from_snapshot().await;
    // Consumers removed the remaining entries, and publishers append before anything is observed.
    world.ask::<i64>(&["XTRIM", GATEWAY, "MAXLEN", "0"]).await;
    append_again(&outbound(&world), &keys(3..5)).await;
    let found =
        outbound(&world).find_entries(Channel::Push, &[(key(0), id(&first[0])), (key(2), lost)]).await;
    assert_eq!(found.expect("Redis is there").states, [EntryState::Trimmed, EntryState::Lost]);
}

// INV-13
#[tokio::test]
async fn more_changes_of_server_than_are_kept_hide_no_loss_that_may_still_be_compared() {
    const LINES: u64 = 1_000;
    let world = World::new().await;
    let outbound = outbound(&world);
    let key = server_changes(GATEWAY).key;
    // A loss on the oldest server, then a restart every second.
    let now = 1_775_000_000_000_u64;
    let line = |n: u64| format!("{n:x}/r {0}-1 {0}-2", now - n * 1_000);
    let noted = async |oldest: String| {
        world.ask::<i64>(&["DEL", GATEWAY]).await;
        let lines: Vec<String> = (1..LINES).map(line).chain([oldest]).collect();
        world.ask::<()>(&["SET", &key, &lines.join("\n")]).await;
        world.ask::<String>(&["XADD", GATEWAY, &format!("{now}-0"), "x", "y"]).await;
        append_again(&outbound, &keys(0..1)).await;
        let found = outbound.find_entries(Channel::Push, &[]).await.expect("Redis is there");
        let text: String = world.ask(&["GET", &key]).await;
        assert_eq!(text.lines().count() as u64, LINES);
        found.stream.expect("it exists")
    };
    let lost = EntryId::new(now - 2_000_001, 0);
    let recent = noted(format!("loss/r {}-0 {}-0", now - 2_000_002, now - 2_000_000)).await;
    assert_eq!(entry_state(lost, false, Some(&recent)), EntryState::Lost);
    assert_eq!(&*recent.gaps.last().expect("many").server.run_id, format!("{:x}", LINES - 1));
    // No comparison reads back as far as that publication.
    let old = noted("loss/r 1-0 3-0".to_owned()).await;
    assert_eq!(entry_state(EntryId::new(2, 0), false, Some(&old)), EntryState::Trimmed);
    assert_eq!(entry_state(lost, false, Some(&old)), EntryState::Trimmed, "it is not made up");
}
