//! A real Cluster of three primaries, on each of which is one of the streams.

use std::collections::BTreeSet;

use domain::checkpoint::{CachedCheckpoint, Checkpoint};
use domain::entry::RawFields;
use domain::ports::{
    Append, CheckpointCache, FoundEntries, IntentProducer, IntentStream, LeaseOutcome, LeaseStore, Outbound,
    OutboundInspection, ReadLimit, StoreError, StreamRead, Swap,
};
use domain::republish::EntryState;
use domain::route::Channel;
use harness::{RedisCluster, RedisClusterOptions};
use store_redis::{
    KeyUse, LeaderNotice, OutboxAppend, OutboxEntry, RedisCheckpoints, RedisIntentProducer,
    RedisIntentStream, RedisLeases, RedisOutbound, RedisOutboxStreams, UnusableStream, claim_stream,
};

use crate::*;

const INTENTS: &str = "notification:intents";
const GATEWAY: &str = "gateway:client-events";
/// On another node than the other two.
const MAIL: &str = "orders";
const LIMIT: ReadLimit = ReadLimit { entries: 100, bytes: 1 << 20 };

struct Nodes {
    cluster: RedisCluster,
    client: RedisClient,
    leases: RedisLeases,
    outbound: RedisOutbound,
    intents: RedisIntentStream,
}

impl Nodes {
    async fn new() -> Self {
        let options = RedisClusterOptions { replicas: 0, ..RedisClusterOptions::default() };
        let cluster = RedisCluster::start(options).await.expect("a private Cluster starts");
        let client = client_of_nodes(&cluster.nodes[0].client_addr());
        // In a Cluster, old names are not used, even by a process that has just started.
        let keyspace = Keyspace::new(INTENTS, GATEWAY, MAIL).with_old_names(DEDUPE_TTL);
        let target = |key: &str| StreamTarget { key: key.to_owned(), max_len: None };
        Self {
            leases: RedisLeases::new(&client, &keyspace),
            outbound: RedisOutbound::new(&client, &keyspace, target(GATEWAY), target(MAIL)),
            intents: RedisIntentStream::new(&client, INTENTS.to_owned()),
            client,
            cluster,
        }
    }

    /// The index of the node that has the slot of `key`.
    async fn node_of(&self, key: &str) -> usize {
        self.cluster.primary_of(key).await.expect("a node responds").expect("a node has it")
    }

    async fn publish(&self, route: &RouteKey) -> Append {
        let acquired = self.leases.acquire_leases(&[route], &token("a"), LEASE_TTL).await;
        assert_eq!(acquired.expect("its node is there"), [LeaseOutcome::Won]);
        self.append(route).await.expect("its node is there")
    }

    async fn append(&self, route: &RouteKey) -> Result<Append, StoreError> {
        let entry = entry(route);
        let entries = [(route, &entry)];
        let appended = self.outbound.append(route.channel(), &entries, &token("a"), DEDUPE_TTL, None).await?;
        Ok(appended.entries.into_iter().next().expect("one for each"))
    }

    async fn find(&self, route: &RouteKey, id: &str) -> FoundEntries {
        let id = id.parse().expect("an id");
        let found = self.outbound.find_entries(route.channel(), &[(route, id)]).await;
        found.expect("its node is there")
    }

    /// Begins to move the slot of `key` to another node. Returns both, and the slot.
    async fn begin_move(&self, key: &str) -> Move {
        let from = self.node_of(key).await;
        let to = (from + 1) % self.cluster.nodes.len();
        let slot = self.cluster.slot(key).await.expect("a node responds").to_string();
        let [source, target] = [from, to].map(|node| &self.cluster.nodes[node]);
        let id = async |node: &Redis| node.ask::<String>(&["CLUSTER", "MYID"]).await.expect("it responds");
        let (source_id, target_id) = (id(source).await, id(target).await);
        let set = |state: &'static str, id: String| {
            ["CLUSTER".to_owned(), "SETSLOT".to_owned(), slot.clone(), state.to_owned(), id]
        };
        ask(target, &set("IMPORTING", source_id)).await;
        ask(source, &set("MIGRATING", target_id.clone())).await;
        Move { from, to, slot, target_id }
    }

    /// Moves the keys of a slot.
    async fn move_keys(&self, moved: &Move, keys: &[String]) {
        let port = self.cluster.nodes[moved.to].port().to_string();
        let mut words: Vec<String> =
            ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"].map(str::to_owned).into();
        words.extend(keys.iter().cloned());
        ask(&self.cluster.nodes[moved.from], &words).await;
    }

    /// The keys of a slot that its former node still has.
    async fn keys_of(&self, moved: &Move) -> Vec<String> {
        let words = ["CLUSTER", "GETKEYSINSLOT", &moved.slot, "1000"];
        self.cluster.nodes[moved.from].ask(&words).await.expect("it responds")
    }

    async fn end_move(&self, moved: &Move) {
        for node in [moved.to, moved.from] {
            ask(
                &self.cluster.nodes[node],
                &["CLUSTER", "SETSLOT", &moved.slot, "NODE", &moved.target_id].map(str::to_owned),
            )
            .await;
        }
    }
}

/// A slot that is being moved.
struct Move {
    from: usize,
    to: usize,
    slot: String,
    target_id: String,
}

async fn ask(node: &Redis, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done: Value = node.ask(&words).await.expect("it is carried out");
    assert_eq!(done, Value::Okay, "{words:?}");
}

fn client_of_nodes(addr: &str) -> RedisClient {
    let topology = Topology::Cluster { addrs: vec![addr.to_owned()] };
    let settings = RedisSettings { topology, password: None, db: 0, operation_timeout: OPERATION_TIMEOUT };
    RedisClient::new(settings).expect("an address")
}

fn route(channel: Channel, n: u64) -> RouteKey {
    let notification_id = NotificationId::of(EntryId::new(1_775_121_700_000, n), 0);
    RouteKey { notification_id, route_id: format!("{channel}:user:u1") }
}

fn entry(route: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", route.to_string().into()), ("attempt", "1".into())])
}

#[track_caller]
fn done(append: Append) -> Acknowledged {
    let Append::Done(entry) = append else { panic!("not appended: {append:?}") };
    entry
}

#[track_caller]
fn assert_moving<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    let Err(error @ StoreError::Unavailable { .. }) = &result else { panic!("no outage: {result:?}") };
    let text = domain::ports::error_chain(error);
    assert!(text.contains("the slot of these keys is being moved to another node"), "{text}");
}

#[tokio::test]
async fn every_call_goes_to_the_node_of_its_stream() {
    let it = Nodes::new().await;
    let nodes: BTreeSet<usize> =
        [it.node_of(INTENTS).await, it.node_of(GATEWAY).await, it.node_of(MAIL).await].into();
    assert_eq!(nodes.len(), 3, "each stream is on a node of its own");
    // Leases, markers, scan locks, appends, of both channels in one call.
    let both = Channel::ALL.map(|channel| route(channel, 1));
    let asked: Vec<&RouteKey> = both.iter().collect();
    let won = it.leases.acquire_leases(&asked, &token("a"), LEASE_TTL).await.expect("the nodes are there");
    assert_eq!(won, [LeaseOutcome::Won, LeaseOutcome::Won]);
    for route in &both {
        let lock = it.leases.acquire_scan_lock(route.channel(), &token("a"), LEASE_TTL).await;
        assert!(lock.expect("the node is there"));
        let entry = done(it.append(route).await.expect("the node is there"));
        assert_eq!(it.find(route, &entry.entry_id).await.states, [EntryState::Present]);
        let observed = it.outbound.observe(route.channel()).await.expect("the node is there");
        assert_eq!(observed.server, entry.server);
        let markers = [(route, entry.entry_id.as_str())];
        assert!(it.leases.extend_markers(&entry.server, &markers, DEDUPE_TTL).await.expect("it is there"));
        let again = it.leases.acquire_leases(&[route], &token("b"), LEASE_TTL).await.expect("it is there");
        assert_eq!(again, [LeaseOutcome::Published(entry.clone())]);
        let lost = entry_of_another_round(route);
        let appended = it.outbound.append_again(route.channel(), &[(route, &lost)], DEDUPE_TTL).await;
        assert_eq!(done(appended.expect("it is there").remove(0)), entry);
    }
    it.leases.release_leases(&asked, &token("a")).await.expect("the nodes are there");
    // Intake.
    let checkpoints = RedisCheckpoints::new(&it.client);
    let at = Checkpoint { fence: 1, last_entry_id: EntryId::new(5, 1) };
    assert_eq!(checkpoints.load(INTENTS).await.expect("it is there"), CachedCheckpoint::Missing);
    assert_eq!(checkpoints.save(INTENTS, at).await.expect("it is there"), Swap::Applied);
    assert_eq!(checkpoints.load(INTENTS).await.expect("it is there"), CachedCheckpoint::At(at));
    assert_eq!(claim_stream(&it.client, INTENTS, "us").await.expect("it is there"), "us");
    let notice = LeaderNotice::new(&it.client, INTENTS, "intake");
    notice.announce().await.expect("it is there");
    notice.wait(BOUND).await.expect("it is there");
    let producer = RedisIntentProducer::new(&it.client, INTENTS.to_owned());
    let id = producer.append(&RawFields::from_iter([("a", "b")])).await.expect("it is there");
    let read = it.intents.read(EntryId::ZERO, LIMIT, BOUND).await.expect("it is there");
    let StreamRead::Entries(entries) = read else { panic!("too large") };
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [id]);
    // A relay.
    let relay = RedisOutboxStreams::new(&it.client, INTENTS, DEDUPE_TTL).watching();
    let server = relay.server("outbox").await.expect("it is there").expect("it is watched");
    let deadline = relay.deadline(LEASE_TTL).await.expect("it is there");
    let event = OutboxEntry {
        stream: INTENTS,
        producer: "p",
        event_id: "e".to_owned(),
        partition_key: "",
        fields: vec![(b"id".into(), b"e".into())],
    };
    let appended = relay.append(&[event], deadline, server.number).await.expect("it is there");
    assert!(matches!(appended[..], [OutboxAppend::Done(_)]), "{appended:?}");
    let found = relay.find_markers("p", &[(INTENTS, "e".to_owned())]).await.expect("it is there");
    assert_eq!(found, [true]);
    let streams = [(KeyUse::Intents, INTENTS), (KeyUse::Outbound, GATEWAY), (KeyUse::Outbound, MAIL)];
    let missing = it.client.missing_permissions(KeyUse::Own, &streams).await.expect("it is there");
    assert_eq!(missing, Vec::<String>::new());
    assert_eq!(it.client.primaries().await.len(), 3);
}

fn entry_of_another_round(route: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", route.to_string().into()), ("attempt", "2".into())])
}

#[tokio::test]
async fn while_a_slot_is_moved_its_calls_wait_and_then_go_on_without_a_second_entry() {
    let it = Nodes::new().await;
    let [before, leased, new] = [1, 2, 3].map(|n| route(Channel::Push, n));
    let entry = done(it.publish(&before).await);
    let won = it.leases.acquire_leases(&[&leased], &token("a"), LEASE_TTL).await.expect("it is there");
    assert_eq!(won, [LeaseOutcome::Won]);
    let moved = it.begin_move(GATEWAY).await;
    // A lease that does not exist may be on either node.
    assert_moving(it.leases.acquire_leases(&[&new], &token("a"), LEASE_TTL).await);
    let (streams, keys): (Vec<String>, Vec<String>) =
        it.keys_of(&moved).await.into_iter().partition(|key| key == GATEWAY);
    it.move_keys(&moved, &streams).await;
    assert_moving(it.append(&leased).await);
    assert_moving(it.outbound.observe(Channel::Push).await);
    // The other channel and the intents are on other nodes.
    done(it.publish(&route(Channel::Email, 1)).await);
    it.move_keys(&moved, &keys).await;
    assert_moving(it.append(&leased).await);
    it.end_move(&moved).await;
    let append = || async { it.append(&leased).await.ok() };
    let appended = harness::wait_for("the slot is moved", BOUND, append).await;
    assert_ne!(done(appended).server, entry.server, "another node acknowledges");
    let again = it.leases.acquire_leases(&[&before], &token("b"), LEASE_TTL).await.expect("it is there");
    let [LeaseOutcome::Published(found)] = &again[..] else { panic!("its marker is gone: {again:?}") };
    assert_eq!(found.entry_id, entry.entry_id);
    assert_eq!(it.find(&before, &entry.entry_id).await.states, [EntryState::Present]);
    done(it.publish(&new).await);
    let length: i64 = it.cluster.nodes[moved.to].ask(&["XLEN", GATEWAY]).await.expect("it responds");
    assert_eq!(length, 3);
}

#[tokio::test]
async fn a_read_that_waits_ends_when_its_slot_is_moved_and_the_next_one_reads_on_the_other_node() {
    let it = Nodes::new().await;
    let producer = RedisIntentProducer::new(&it.client, INTENTS.to_owned());
    let first = producer.append(&RawFields::from_iter([("a", "1")])).await.expect("it is there");
    assert_eq!(read(&it.intents, EntryId::ZERO, Duration::ZERO).await.expect("it is there"), [first]);
    let waiting = {
        let intents = it.intents.clone();
        tokio::spawn(async move { read(&intents, first, BOUND).await })
    };
    let from = &it.cluster.nodes[it.node_of(INTENTS).await];
    harness::wait_for("the read waits", BOUND, async || {
        let clients: String = from.ask(&["INFO", "clients"]).await.ok()?;
        clients.contains("blocked_clients:1").then_some(())
    })
    .await;
    let moved = it.begin_move(INTENTS).await;
    let keys = it.keys_of(&moved).await;
    it.move_keys(&moved, &keys).await;
    it.end_move(&moved).await;
    let ended = tokio::time::timeout(BOUND, waiting).await.expect("in time").expect("no panic");
    assert!(matches!(ended, Err(StoreError::Unavailable { .. })), "{ended:?}");
    let append = || async { producer.append(&RawFields::from_iter([("a", "2")])).await.ok() };
    let second = harness::wait_for("the producer follows", BOUND, append).await;
    // One error says that it is another server; the reader looks again where to resume.
    let next = || async { read(&it.intents, first, Duration::ZERO).await.ok() };
    assert_eq!(harness::wait_for("the reader follows", BOUND, next).await, [second]);
}

async fn read(
    intents: &RedisIntentStream,
    after: EntryId,
    block: Duration,
) -> Result<Vec<EntryId>, StoreError> {
    match intents.read(after, LIMIT, block).await? {
        StreamRead::Entries(entries) => Ok(entries.into_iter().map(|entry| entry.id).collect()),
        StreamRead::TooLarge => panic!("too large"),
    }
}

#[tokio::test]
async fn a_node_that_is_down_is_an_outage_of_its_stream_alone() {
    let mut it = Nodes::new().await;
    done(it.publish(&route(Channel::Push, 1)).await);
    let node = it.node_of(MAIL).await;
    it.cluster.nodes[node].kill().await;
    let mail = route(Channel::Email, 1);
    let lost = it.leases.acquire_leases(&[&mail], &token("a"), LEASE_TTL).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    it.cluster.nodes[node].start_again().await.expect("it starts");
    let acquire = || async { it.leases.acquire_leases(&[&mail], &token("a"), LEASE_TTL).await.ok() };
    let won = harness::wait_for("the Cluster is complete", BOUND, acquire).await;
    assert_eq!(won, [LeaseOutcome::Won]);
}

#[tokio::test]
async fn streams_without_a_possible_slot_are_refused_in_a_cluster_only() {
    let cluster = client_of_nodes("127.0.0.1:1");
    let relayed = |stream| (KeyUse::Relayed, stream);
    let check =
        |streams: &[(KeyUse, &str)]| cluster.check_streams(streams).map_err(|error| error.to_string());
    assert_eq!(check(&[(KeyUse::Intents, INTENTS), relayed("{o}:a"), relayed("{o}:b")]), Ok(()));
    let without = cluster.check_streams(&[(KeyUse::Outbound, "a}b")]);
    assert!(matches!(without, Err(UnusableStream::WithoutTag(stream)) if stream == "a}b"));
    let other = cluster.check_streams(&[relayed("a"), relayed("b")]);
    assert!(matches!(other, Err(UnusableStream::OtherSlot(..))));
    let single = client_of("127.0.0.1:1", OPERATION_TIMEOUT);
    assert!(single.check_streams(&[(KeyUse::Outbound, "a}b"), relayed("a"), relayed("b")]).is_ok());
}
