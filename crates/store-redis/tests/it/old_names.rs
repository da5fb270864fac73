//! Keys of versions before hash tags, beside the present ones: a replica of such a version is played by
//! leases and markers under their old names.

use domain::checkpoint::{CachedCheckpoint, Checkpoint};
use domain::ports::{Append, CheckpointCache, LeaseOutcome, LeaseStore, Outbound, OutboundInspection};
use domain::route::Channel;
use store_redis::{
    OutboxAppend, OutboxEntry, RedisCheckpoints, RedisLeases, RedisOutbound, RedisOutboxStreams,
    checkpoint_key, claim_stream, installation_key, outbox_marker, server_changes,
};

use crate::*;

const GATEWAY: &str = "gateway:client-events";
const MAIL: &str = "mail:delivery_commands";

/// A process that has just started, on a new server.
struct Upgraded {
    world: World,
    leases: RedisLeases,
    outbound: RedisOutbound,
}

impl Upgraded {
    async fn new() -> Self {
        let it = Self::with(Keyspace::default().with_old_names(DEDUPE_TTL)).await;
        it.older_version().await;
        it
    }

    /// Leaves a sign of an older version.
    async fn older_version(&self) {
        self.world.ask::<()>(&["SET", &checkpoint_key("notification:intents").old, "1-1"]).await;
    }

    async fn with(keyspace: Keyspace) -> Self {
        let world = World::new().await;
        let target = |key: &str| StreamTarget { key: key.to_owned(), max_len: None };
        let leases = RedisLeases::new(&world.client, &keyspace);
        let outbound = RedisOutbound::new(&world.client, &keyspace, target(GATEWAY), target(MAIL));
        Self { world, leases, outbound }
    }

    async fn put_old(&self, key: &RouteKey, value: &str) {
        self.world.ask::<()>(&["SET", &old(key), value, "PX", "60000"]).await;
    }

    async fn values(&self, key: &RouteKey) -> [Option<String>; 2] {
        [self.world.value(key).await, self.world.ask(&["GET", &old(key)]).await]
    }

    async fn acquire(&self, numbers: std::ops::Range<usize>, name: &str) -> Vec<LeaseOutcome> {
        self.leases.acquire_leases(&keys(numbers), &token(name), LEASE_TTL).await.expect("Redis is there")
    }

    async fn append(&self, n: usize, name: &str) -> Append {
        let entry = entry(key(n));
        let appended =
            self.outbound.append(Channel::Push, &[(key(n), &entry)], &token(name), DEDUPE_TTL, None).await;
        appended.expect("Redis is there").entries.remove(0)
    }

    async fn length(&self) -> i64 {
        self.world.ask(&["XLEN", GATEWAY]).await
    }
}

fn old(key: &RouteKey) -> String {
    Keyspace::default().route_lease(key).old
}

fn entry(key: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", key.to_string().into()), ("attempt", "1".into())])
}

fn published(value: &str) -> bool {
    value.starts_with("published:")
}

#[tokio::test]
async fn a_route_that_an_older_replica_leased_or_published_is_not_leased() {
    let it = Upgraded::new().await;
    it.put_old(key(0), "of another replica").await;
    it.put_old(key(1), "published:5-1").await;
    let outcomes = it.acquire(0..3, "a").await;
    let server = it.world.server().await;
    let found = Acknowledged { entry_id: "5-1".to_owned(), server };
    assert_eq!(outcomes, [LeaseOutcome::Held, LeaseOutcome::Published(found), LeaseOutcome::Won]);
    assert_eq!(it.values(key(0)).await, [None, Some("of another replica".to_owned())]);
    assert_eq!(it.values(key(1)).await, [None, Some("published:5-1".to_owned())]);
    assert_eq!(it.values(key(2)).await, [Some("a".to_owned()), Some("a".to_owned())]);
}

#[tokio::test]
async fn an_older_replica_finds_the_leases_and_markers_of_a_newer_one() {
    let it = Upgraded::new().await;
    assert_eq!(it.acquire(0..2, "a").await, [LeaseOutcome::Won, LeaseOutcome::Won]);
    let Append::Done(appended) = it.append(0, "a").await else { panic!("it is leased") };
    let marker = format!("published:{}", appended.entry_id);
    assert_eq!(it.values(key(0)).await, [Some(marker.clone()), Some(marker)]);
    assert_life(it.world.ask(&["PTTL", &old(key(0))]).await, DEDUPE_TTL);
    it.leases.release_leases(&keys(0..2), &token("a")).await.expect("Redis is there");
    assert_eq!(it.values(key(1)).await, [None, None]);
    let markers = [(key(1), "7-1")];
    let extended = it.leases.extend_markers(&it.world.server().await, &markers, DEDUPE_TTL).await;
    assert!(extended.expect("Redis is there"));
    let marker = Some("published:7-1".to_owned());
    assert_eq!(it.values(key(1)).await, [marker.clone(), marker]);
}

#[tokio::test]
async fn under_a_permit_an_older_replica_is_respected_and_finds_the_markers() {
    let it = Upgraded::new().await;
    it.leases.grant_permit(Channel::Push, &token("a"), LEASE_TTL).await.expect("Redis is there");
    it.put_old(key(0), "of another replica").await;
    it.put_old(key(1), "published:5-1").await;
    assert_eq!(it.append(0, "a").await, Append::LeaseLost);
    let Append::Done(found) = it.append(1, "a").await else { panic!("it has a marker") };
    assert_eq!(found.entry_id, "5-1");
    let Append::Done(appended) = it.append(2, "a").await else { panic!("it is free") };
    let marker = format!("published:{}", appended.entry_id);
    assert_eq!(it.values(key(2)).await, [Some(marker.clone()), Some(marker)]);
    assert_eq!(it.length().await, 1);
}

#[tokio::test]
async fn a_lost_entry_is_not_appended_again_beside_an_older_replica() {
    let it = Upgraded::new().await;
    it.put_old(key(0), "of another replica").await;
    let first = entry(key(1));
    assert_eq!(it.acquire(1..2, "a").await, [LeaseOutcome::Won]);
    let Append::Done(before) = it.append(1, "a").await else { panic!("it is leased") };
    it.world.ask::<i64>(&["DEL", &route_lease(key(1))]).await;
    let second = entry(key(0));
    let entries = [(key(0), &second), (key(1), &first)];
    let appended =
        it.outbound.append_again(Channel::Push, &entries, DEDUPE_TTL).await.expect("Redis is there");
    assert_eq!(appended, [Append::LeaseLost, Append::Done(before)]);
    assert_eq!(it.length().await, 1);
}

#[tokio::test]
async fn old_names_are_left_alone_once_the_time_is_over() {
    let it = Upgraded::with(Keyspace::default().with_old_names(Duration::ZERO)).await;
    it.older_version().await;
    it.put_old(key(0), "of another replica").await;
    assert_eq!(it.acquire(0..2, "a").await, [LeaseOutcome::Won, LeaseOutcome::Won]);
    assert!(matches!(it.append(0, "a").await, Append::Done(_)));
    assert!(it.values(key(0)).await[0].as_deref().is_some_and(published));
    assert_eq!(it.values(key(0)).await[1].as_deref(), Some("of another replica"));
    assert_eq!(it.values(key(1)).await, [Some("a".to_owned()), None]);
}

#[tokio::test]
async fn old_names_are_left_alone_where_no_older_version_has_been() {
    let it = Upgraded::with(Keyspace::default().with_old_names(DEDUPE_TTL)).await;
    assert_eq!(it.acquire(0..1, "a").await, [LeaseOutcome::Won]);
    assert_eq!(it.values(key(0)).await, [Some("a".to_owned()), None]);
}

#[tokio::test]
async fn server_changes_go_on_from_those_of_an_older_replica() {
    let it = Upgraded::new().await;
    let changes = server_changes(GATEWAY);
    it.world.ask::<()>(&["SET", &changes.old, "abc/def 3-1 4-1"]).await;
    let before = it.outbound.observe(Channel::Push).await.expect("Redis is there");
    assert_eq!(before.state, None);
    assert_eq!(it.acquire(0..1, "a").await, [LeaseOutcome::Won]);
    assert!(matches!(it.append(0, "a").await, Append::Done(_)));
    let after = it.outbound.observe(Channel::Push).await.expect("Redis is there").state.expect("it exists");
    let servers: Vec<String> = after.gaps.iter().map(|gap| gap.server.to_string()).collect();
    assert_eq!(servers, [before.server.to_string(), "abc/def".to_owned()]);
    let noted: String = it.world.ask(&["GET", &changes.key]).await;
    assert!(noted.ends_with("\nabc/def 3-1 4-1"), "{noted}");
}

#[tokio::test]
async fn the_checkpoint_and_the_installation_are_those_of_the_older_version() {
    let it = Upgraded::new().await;
    let (stream, client) = ("notification:intents", &it.world.client);
    let (checkpoints, checkpoint) = (RedisCheckpoints::new(client), checkpoint_key(stream));
    it.world.ask::<()>(&["SET", &checkpoint.old, "5-1@000000000000007"]).await;
    let at = |id: u64| Checkpoint { fence: 7, last_entry_id: EntryId::new(id, 1) };
    let load = async || checkpoints.load(stream).await.expect("Redis is there");
    assert_eq!(load().await, CachedCheckpoint::At(at(5)));
    let _ = checkpoints.save(stream, at(6)).await.expect("Redis is there");
    assert_eq!(load().await, CachedCheckpoint::At(at(6)));
    let key = installation_key(stream);
    it.world.ask::<()>(&["SET", &key.old, "older"]).await;
    assert_eq!(claim_stream(client, stream, "new").await.expect("Redis is there"), "older");
    assert_eq!(it.world.ask::<i64>(&["EXISTS", &key.old]).await, 0, "it was moved");
    it.world.ask::<i64>(&["DEL", &key.key]).await;
    assert_eq!(claim_stream(client, stream, "new").await.expect("Redis is there"), "new");
}

#[tokio::test]
async fn an_event_that_an_older_relay_appended_is_not_appended_again() {
    let world = World::new().await;
    let streams = RedisOutboxStreams::new(&world.client, "s", DEDUPE_TTL);
    let event = |id: &str| OutboxEntry {
        stream: "s",
        producer: "p",
        event_id: id.to_owned(),
        partition_key: "",
        fields: vec![(b"id".into(), id.as_bytes().to_vec().into())],
    };
    world.ask::<()>(&["SET", &outbox_marker("s", "p", "old").old, "5-1", "PX", "60000"]).await;
    let deadline = streams.deadline(LEASE_TTL).await.expect("Redis is there");
    let appended = streams.append(&[event("old"), event("new")], deadline, 0).await.expect("Redis is there");
    assert_eq!(appended[0], OutboxAppend::Done("5-1".to_owned()));
    let OutboxAppend::Done(id) = &appended[1] else { panic!("{appended:?}") };
    let key = outbox_marker("s", "p", "new");
    for name in [&key.key, &key.old] {
        assert_eq!(world.ask::<String>(&["GET", name]).await, *id, "{name}");
    }
}
