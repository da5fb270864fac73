//! Appending: from lease to entry to marker.

use std::borrow::Cow;

use domain::ports::{Append, LeaseOutcome, LeaseStore, Outbound, OutboundInspection, StoreError};
use domain::route::Channel;
use redis::Value;
use store_redis::{RedisLeases, RedisOutbound};

use crate::*;

const GATEWAY: &str = "gateway:client-events";
const MAIL: &str = "mail:delivery_commands";

fn outbound(world: &World, max_len: Option<u64>) -> RedisOutbound {
    let target = |key: &str| StreamTarget { key: key.to_owned(), max_len };
    RedisOutbound::new(&world.client, &Keyspace::default(), target(GATEWAY), target(MAIL))
}

fn entry(key: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", key.to_string().into()), ("attempt", "1".into())])
}

/// Appends with the token of `win`.
async fn append_to(
    outbound: &RedisOutbound,
    channel: Channel,
    keys: &[&RouteKey],
) -> Result<Vec<Append>, StoreError> {
    let entries: Vec<_> = keys.iter().map(|key| entry(key)).collect();
    let given: Vec<_> = keys.iter().copied().zip(&entries).collect();
    outbound.append(channel, &given, &token("a"), DEDUPE_TTL, None).await.map(|appended| appended.entries)
}

async fn win(world: &World, keys: &[&RouteKey]) {
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    let won = leases.acquire_leases(keys, &token("a"), LEASE_TTL).await.expect("Redis is there");
    assert!(won.iter().all(|lease| *lease == LeaseOutcome::Won), "{won:?}");
}

async fn append(outbound: &RedisOutbound, keys: &[&RouteKey]) -> Result<Vec<Append>, StoreError> {
    append_to(outbound, Channel::Push, keys).await
}

#[track_caller]
fn id(append: &Append) -> String {
    let Append::Done(entry) = append else { panic!("not appended: {append:?}") };
    entry.entry_id.clone()
}

#[tokio::test]
async fn a_marker_takes_the_place_of_the_lease_and_lives_for_the_dedupe_ttl() {
    let world = World::new().await;
    win(&world, &keys(0..1)).await;
    let answers = append(&outbound(&world, None), &keys(0..1)).await.expect("Redis is there");
    assert_eq!(world.value(key(0)).await, Some(format!("published:{}", id(&answers[0]))));
    assert_life(world.pttl(key(0)).await, DEDUPE_TTL);
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    for who in ["a", "b"] {
        let found = leases.acquire_leases(&keys(0..1), &token(who), LEASE_TTL).await.expect("Redis is there");
        assert_eq!(found, [LeaseOutcome::Published(world.acknowledged(&id(&answers[0])).await)]);
    }
    // A publisher that releases its leases does not release its markers.
    leases.release_leases(&keys(0..1), &token("a")).await.expect("Redis is there");
    assert_life(world.pttl(key(0)).await, DEDUPE_TTL);
}

#[tokio::test]
async fn without_its_lease_nothing_is_appended() {
    let world = World::new().await;
    win(&world, &keys(0..5)).await;
    world.ask::<()>(&["DEL", &route_lease(key(1))]).await;
    world.put(key(2), "b").await;
    world.ask::<()>(&["DEL", &route_lease(key(3))]).await;
    world.ask::<()>(&["RPUSH", &route_lease(key(3)), "x"]).await;
    let answers = append(&outbound(&world, None), &keys(0..5)).await.expect("Redis is there");
    assert_eq!(answers[1..4], [Append::LeaseLost, Append::LeaseLost, Append::LeaseLost]);
    let (first, last) = (id(&answers[0]), id(&answers[4]));
    let found: Vec<(String, Vec<String>)> = world.ask(&["XRANGE", GATEWAY, "-", "+"]).await;
    assert_eq!(found.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&first, &last]);
    assert_eq!(world.value(key(1)).await, None);
    assert_eq!(world.value(key(2)).await.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_garbled_marker_is_no_marker() {
    let world = World::new().await;
    for garbage in ["published:", "published:foo", "published:5-1\0", "published:5-1 "] {
        world.put(key(0), garbage).await;
        let answers = append(&outbound(&world, None), &keys(0..1)).await.expect("Redis is there");
        assert_eq!(answers, [Append::LeaseLost], "{garbage:?}");
    }
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, 0);
}

#[tokio::test]
async fn a_stream_of_the_wrong_type_refuses_and_leaves_the_lease() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    win(&world, &keys(0..2)).await;
    world.ask::<()>(&["SET", GATEWAY, "no stream"]).await;
    for answer in append(&outbound, &keys(0..2)).await.expect("Redis is there") {
        assert!(matches!(&answer, Append::Refused(text) if text.starts_with("WRONGTYPE")), "{answer:?}");
    }
    assert_eq!(world.value(key(0)).await.as_deref(), Some("a"));
    assert_life(world.pttl(key(0)).await, LEASE_TTL);
    world.ask::<()>(&["DEL", GATEWAY]).await;
    id(&append(&outbound, &keys(0..1)).await.expect("Redis is there")[0]);
}

#[tokio::test]
async fn after_an_append_to_a_server_that_is_no_master_any_more_another_connection_is_opened() {
    let world = World::new().await;
    win(&world, &keys(0..1)).await;
    let connection = async || world.ask::<i64>(&["CLIENT", "ID"]).await;
    let before = connection().await;
    world.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let appended = append(&outbound(&world, None), &keys(0..1)).await.expect("it answers");
    assert!(matches!(appended[..], [Append::Outage(_)]), "{appended:?}");
    assert_ne!(connection().await, before, "the connection may lead to the former master for ever");
}

#[tokio::test]
async fn a_stream_whose_ids_are_used_up_refuses() {
    let world = World::new().await;
    win(&world, &keys(0..1)).await;
    let last = format!("{}-{}", u64::MAX, u64::MAX);
    world.ask::<String>(&["XADD", GATEWAY, &last, "a", "b"]).await;
    let answers = append(&outbound(&world, None), &keys(0..1)).await.expect("Redis is there");
    assert!(matches!(&answers[0], Append::Refused(_)), "{answers:?}");
    assert_eq!(world.value(key(0)).await.as_deref(), Some("a"));
}

#[tokio::test]
async fn a_bounded_stream_is_trimmed_roughly_and_an_unbounded_one_never() {
    let world = World::new().await;
    let (bounded, unbounded) = (outbound(&world, Some(200)), outbound(&world, None));
    for chunk in 0..4 {
        let keys = keys(chunk * 256..(chunk + 1) * 256);
        win(&world, &keys).await;
        append(&bounded, &keys).await.expect("Redis is there").iter().for_each(|answer| drop(id(answer)));
    }
    // Redis removes whole nodes of 100 entries.
    let length: i64 = world.ask(&["XLEN", GATEWAY]).await;
    assert!((200..=300).contains(&length), "{length}");
    let keys = keys(2000..2512);
    win(&world, &keys).await;
    append(&unbounded, &keys).await.expect("Redis is there").iter().for_each(|answer| drop(id(answer)));
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, length + 512);
}

#[tokio::test]
async fn fields_arrive_in_their_order_byte_for_byte() {
    let world = World::new().await;
    win(&world, &keys(0..2)).await;
    let texts = ["", "ü€😀", "a\r\nb\0c", "\"%s\" $1 {}", "-1"].map(Cow::from);
    let names = ["z", "a", "z", "payload_json", "5"];
    let fields: Vec<_> = names.into_iter().zip(texts).collect();
    let long = vec![("payload_json", Cow::from("x".repeat(1 << 20)))];
    let entries = [OutboundEntry(fields.clone()), OutboundEntry(long.clone())];
    let given: Vec<_> = [key(0), key(1)].into_iter().zip(&entries).collect();
    let answers = outbound(&world, None).append(Channel::Push, &given, &token("a"), DEDUPE_TTL, None).await;
    let answers = answers.expect("Redis is there").entries;
    let flat = |fields: &[(&'static str, Cow<'_, str>)]| {
        fields
            .iter()
            .flat_map(|(name, value)| [(*name).to_owned(), value.clone().into_owned()])
            .collect::<Vec<_>>()
    };
    let found: Vec<(String, Vec<String>)> = world.ask(&["XRANGE", GATEWAY, "-", "+"]).await;
    assert_eq!(found, [(id(&answers[0]), flat(&fields)), (id(&answers[1]), flat(&long))]);
}

#[tokio::test]
async fn five_hundred_and_twelve_entries_go_in_one_call_in_order() {
    let world = World::new().await;
    let keys = keys(0..512);
    win(&world, &keys).await;
    let answers = append(&outbound(&world, None), &keys).await.expect("Redis is there");
    let found: Vec<(String, Vec<String>)> = world.ask(&["XRANGE", GATEWAY, "-", "+"]).await;
    let appended: Vec<_> =
        answers.iter().zip(&keys).map(|(answer, key)| (id(answer), key.to_string())).collect();
    let found: Vec<_> = found.into_iter().map(|(id, mut fields)| (id, fields.swap_remove(1))).collect();
    assert_eq!(found, appended);
}

async fn permit(world: &World) {
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    leases.grant_permit(Channel::Push, &token("a"), LEASE_TTL).await.expect("Redis is there");
    assert_life(
        world.ask(&["PTTL", &Keyspace::default().permit(Channel::Push, &token("a"))]).await,
        LEASE_TTL,
    );
}

#[tokio::test]
async fn the_markers_of_a_large_chunk_under_a_permit_are_in_one_hash_that_expires() {
    let world = World::new().await;
    let (outbound, keys) = (outbound(&world, None), keys(0..4_096));
    permit(&world).await;
    let answers = append(&outbound, &keys).await.expect("Redis is there");
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, 4_096);
    assert_eq!(world.ask::<i64>(&["HLEN", &marker_hash(keys[0])]).await, 4_096);
    assert_life(world.ask(&["PTTL", &marker_hash(keys[0])]).await, DEDUPE_TTL);
    assert_eq!(world.value(keys[0]).await, None);
    assert_eq!(append(&outbound, &keys).await.expect("Redis is there"), answers);
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    let found = leases.acquire_leases(&keys, &token("b"), LEASE_TTL).await.expect("Redis is there");
    assert!(found.iter().all(|lease| matches!(lease, LeaseOutcome::Published(_))));
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, 4_096);
}

#[tokio::test]
async fn a_hash_of_markers_of_the_wrong_type_is_left_alone_and_nothing_is_appended_twice() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    world.ask::<()>(&["SET", &marker_hash(key(0)), "no hash"]).await;
    permit(&world).await;
    let answers = append(&outbound, &keys(0..2)).await.expect("Redis is there");
    assert_eq!(world.value(key(0)).await, Some(format!("published:{}", id(&answers[0]))));
    assert_life(world.pttl(key(0)).await, DEDUPE_TTL);
    assert_eq!(append(&outbound, &keys(0..2)).await.expect("Redis is there"), answers);
    win(&world, &keys(2..3)).await;
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, 2);
}

#[tokio::test]
async fn a_lease_of_the_wrong_type_is_respected_under_a_permit() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    world.ask::<()>(&["RPUSH", &route_lease(key(1)), "x"]).await;
    permit(&world).await;
    let answers = append(&outbound, &keys(0..3)).await.expect("Redis is there");
    assert_eq!(answers[1], Append::LeaseLost);
    let ids = [id(&answers[0]), id(&answers[2])];
    let found: Vec<(String, Vec<String>)> = world.ask(&["XRANGE", GATEWAY, "-", "+"]).await;
    assert_eq!(found.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), ids);
}

#[tokio::test]
async fn an_entry_that_was_appended_under_a_permit_is_not_appended_again() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    permit(&world).await;
    let answers = append(&outbound, &keys(0..3)).await.expect("Redis is there");
    // Consumers delete one; the marker of another is that of an entry which the stream does not have.
    world.ask::<i64>(&["XDEL", GATEWAY, &id(&answers[1])]).await;
    world.ask::<i64>(&["HSET", &marker_hash(key(2)), &route_lease(key(2)), "5-1"]).await;
    let entries: Vec<_> = keys(0..3).into_iter().map(entry).collect();
    let given: Vec<_> = keys(0..3).into_iter().zip(&entries).collect();
    let again = outbound.append_again(Channel::Push, &given, DEDUPE_TTL).await.expect("Redis is there");
    assert_eq!(again[..2], answers[..2]);
    assert!(id(&again[2]) > id(&answers[2]), "it was lost: {again:?}");
    for (key, append) in keys(0..3).into_iter().zip(&again) {
        assert_eq!(world.value(key).await, Some(format!("published:{}", id(append))));
    }
    assert_eq!(world.ask::<i64>(&["EXISTS", &marker_hash(key(0))]).await, 0, "the markers moved");
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_given_again() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    for n in 0..3 {
        world.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        win(&world, &[key(n)]).await;
        world.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        id(&append(&outbound, &[key(n)]).await.expect("Redis is there")[0]);
    }
    assert_eq!(world.ask::<i64>(&["XLEN", GATEWAY]).await, 3);
}

#[tokio::test]
async fn out_of_memory_is_an_outage_that_heals_and_no_refusal() {
    let world = World::new().await;
    let outbound = outbound(&world, None);
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    let server = world.server().await;
    win(&world, &keys(0..1)).await;
    world.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    match append(&outbound, &keys(0..1)).await {
        Ok(answers) => assert!(matches!(&answers[..], [Append::Outage(_)]), "{answers:?}"),
        Err(error) => assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}"),
    }
    let error = leases.acquire_leases(&keys(1..2), &token("a"), LEASE_TTL).await.expect_err("no memory");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let error = leases.extend_markers(&server, &[(key(0), "5-1")], DEDUPE_TTL).await.expect_err("no memory");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert_eq!(world.value(key(0)).await.as_deref(), Some("a"));
    assert_eq!(world.ask_bytes(&["EXISTS", GATEWAY]).await, Value::Int(0));
    world.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    id(&append(&outbound, &keys(0..1)).await.expect("there is memory again")[0]);
}
