//! The contract suites of the ports, run on Redis.

use domain::ports::{
    CheckpointCache, IntentProducer, IntentStream, LeaseStore, Outbound, OutboundInspection, StreamQueries,
};
use domain::route::Channel;
use harness::contract::backlog::BacklogFixture;
use harness::contract::checkpoints::CheckpointsFixture;
use harness::contract::inspection::InspectionFixture;
use harness::contract::publishing::PublishingFixture;
use harness::contract::streams::StreamsFixture;
use memory_stores::PublishedFields;
use store_redis::{
    RedisCheckpoints, RedisIntentProducer, RedisIntentStream, RedisLeases, RedisOutbound, checkpoint_key,
    server_changes,
};

use crate::*;

const INTENTS: &str = "notification:intents";

struct Publishing {
    world: World,
    leases: RedisLeases,
    outbound: RedisOutbound,
}

impl Publishing {
    async fn new() -> Self {
        let world = World::new().await;
        let keyspace = Keyspace::default();
        let target = |channel: Channel| StreamTarget { key: stream_of(channel).to_owned(), max_len: None };
        let leases = RedisLeases::new(&world.client, &keyspace);
        let outbound =
            RedisOutbound::new(&world.client, &keyspace, target(Channel::Push), target(Channel::Email));
        Self { world, leases, outbound }
    }
}

fn stream_of(channel: Channel) -> &'static str {
    match channel {
        Channel::Push => "gateway:client-events",
        Channel::Email => "mail:delivery_commands",
    }
}

impl PublishingFixture for Publishing {
    fn leases(&self) -> &impl LeaseStore {
        &self.leases
    }

    fn outbound(&self) -> &impl Outbound {
        &self.outbound
    }

    async fn expire(&self, key: &RouteKey) {
        let expired: i64 = self.world.ask(&["PEXPIREAT", &route_lease(key), "1"]).await;
        let in_hash: i64 = self.world.ask(&["HDEL", &marker_hash(key), &route_lease(key)]).await;
        assert_eq!(expired + in_hash, 1, "it lives, in one place");
    }

    async fn expire_permit(&self, channel: Channel, token: &LeaseToken) {
        let deleted: i64 = self.world.ask(&["DEL", &Keyspace::default().permit(channel, token)]).await;
        assert_eq!(deleted, 1, "it lives");
    }

    async fn remaining(&self, key: &RouteKey) -> Option<Duration> {
        let in_hash: i64 = self.world.ask(&["HEXISTS", &marker_hash(key), &route_lease(key)]).await;
        let millis = match in_hash {
            0 => self.world.pttl(key).await,
            _ => self.world.ask(&["PTTL", &marker_hash(key)]).await,
        };
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    async fn entries(&self, channel: Channel) -> Vec<(EntryId, PublishedFields)> {
        let found: Vec<(String, Vec<String>)> =
            self.world.ask(&["XRANGE", stream_of(channel), "-", "+"]).await;
        let pairs =
            |flat: Vec<String>| flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let entry = |(id, flat): (String, _)| (id.parse().expect("an entry id"), pairs(flat));
        found.into_iter().map(entry).collect()
    }
}

impl InspectionFixture for Publishing {
    fn inspection(&self) -> &impl OutboundInspection {
        &self.outbound
    }

    async fn delete(&self, channel: Channel, id: EntryId) {
        let deleted: i64 = self.world.ask(&["XDEL", stream_of(channel), &id.to_string()]).await;
        assert_eq!(deleted, 1, "it is there");
    }

    async fn delete_stream(&self, channel: Channel, with_changes: bool) {
        let stream = stream_of(channel);
        let newest: Vec<(String, Vec<String>)> =
            self.world.ask(&["XREVRANGE", stream, "+", "-", "COUNT", "1"]).await;
        let last: EntryId = newest[0].0.parse().expect("an id");
        self.world.ask::<i64>(&["DEL", stream]).await;
        if with_changes {
            let deleted: i64 = self.world.ask(&["DEL", &server_changes(stream).key]).await;
            assert_eq!(deleted, 1, "it is there");
        }
        // The next id differs.
        harness::wait_for("a millisecond passes", BOUND, async || {
            let (seconds, micros): (u64, u64) = self.world.ask(&["TIME"]).await;
            (seconds * 1_000 + micros / 1_000 > last.millis).then_some(())
        })
        .await;
    }

    async fn restart(&mut self) {
        self.world.redis.kill().await;
        self.world.redis.start_again().await.expect("it starts");
        harness::wait_for("it is seen again", BOUND, async || {
            self.outbound.observe(Channel::Push).await.ok()
        })
        .await;
    }
}

struct Checkpoints {
    world: World,
    cache: RedisCheckpoints,
}

impl Checkpoints {
    async fn new() -> Self {
        let world = World::new().await;
        Self { cache: RedisCheckpoints::new(&world.client), world }
    }
}

impl CheckpointsFixture for Checkpoints {
    fn cache(&self) -> &impl CheckpointCache {
        &self.cache
    }

    async fn garble(&self, stream: &str) {
        self.world.ask::<()>(&["SET", &checkpoint_key(stream).key, "garbled"]).await;
    }
}

struct Intents {
    world: World,
    stream: RedisIntentStream,
    producer: RedisIntentProducer,
}

impl Intents {
    async fn new() -> Self {
        let world = World::new().await;
        let stream = RedisIntentStream::new(&world.client, INTENTS.to_owned());
        let producer = RedisIntentProducer::new(&world.client, INTENTS.to_owned());
        Self { world, stream, producer }
    }
}

impl StreamsFixture for Intents {
    fn stream(&self) -> &impl IntentStream {
        &self.stream
    }

    fn producer(&self) -> &impl IntentProducer {
        &self.producer
    }

    async fn delete(&self) {
        self.world.ask::<i64>(&["DEL", INTENTS]).await;
    }
}

impl BacklogFixture for Intents {
    fn queries(&self) -> &impl StreamQueries {
        &self.stream
    }
}

mod backlog {
    harness::backlog_contract!(super::Intents::new().await);
}

mod publishing {
    harness::publishing_contract!(super::Publishing::new().await);
}

mod permits {
    harness::permits_contract!(super::Publishing::new().await);
}

mod inspection {
    harness::inspection_contract!(super::Publishing::new().await);
}

mod checkpoints {
    harness::checkpoints_contract!(super::Checkpoints::new().await);
}

mod streams {
    harness::streams_contract!(super::Intents::new().await);
}
