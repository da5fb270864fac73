//! Leases that become markers: they record who may append a route now, and whether it was appended already.
//! Permits, under which a publisher appends routes that no other one can see as due without leasing each.
//!
//! A lease is a hint (ADR 0007): it saves work and avoids most duplicates; the version check in SQL
//! guarantees correctness. Each operation is one script over all keys of a chunk. A key with a value that
//! this service never writes counts as held, and gets a TTL if it has none, so that no route waits for it
//! indefinitely. The scan lock of a channel is a lease, too.

use std::time::Duration;

use domain::ports::{Acknowledged, Leasable, LeaseOutcome, LeaseStore, LeaseToken, ServerId, StoreError};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use crate::connect::RedisClient;
use crate::error::unexpected;
use crate::keyspace::{Keyspace, RouteKeys};
use crate::script_call::{ScriptCall, millis};
use crate::{marker, server};

const ACQUIRE: &str = include_str!("scripts/acquire_leases.lua");
const RELEASE: &str = include_str!("scripts/release_leases.lua");
const EXTEND: &str = include_str!("scripts/extend_markers.lua");

/// The leases of routes.
#[derive(Clone, Debug)]
pub struct RedisLeases {
    client: RedisClient,
    keyspace: Keyspace,
    acquire: Script,
    release: Script,
    extend: Script,
}

impl RedisLeases {
    /// Leases on the shared connection of `client`, under the keys of `keyspace`. In a Cluster, each channel
    /// has a connection of its own.
    pub fn new(client: &RedisClient, keyspace: &Keyspace) -> Self {
        Self {
            client: client.clone(),
            keyspace: keyspace.clone(),
            acquire: marker::script(&[server::FUNCTION, ACQUIRE].concat()),
            release: Script::new(RELEASE),
            extend: marker::script(&[server::FUNCTION, EXTEND].concat()),
        }
    }

    /// Acquires leases, each given with the entry that is replaced.
    async fn acquire<'a>(
        &self,
        operation: &'static str,
        client: &RedisClient,
        keys: &RouteKeys,
        replaced: impl ExactSizeIterator<Item = &'a str>,
        (token, ttl): (&LeaseToken, Duration),
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let count = replaced.len();
        let mut call = ScriptCall::new(&self.acquire, keys.names.iter());
        call.arg(&keys.runs).arg(&token.0).arg(millis(ttl));
        for entry_id in replaced {
            call.arg(entry_id);
        }
        let mut answers = match client.script(operation, &call).await? {
            Value::Array(answers) if answers.len() >= count => answers,
            other => return Err(unexpected(operation, &other)),
        };
        let server = server::parse(&answers.split_off(count));
        answers.into_iter().map(|answer| lease(operation, answer, server.as_ref())).collect()
    }

    async fn release(
        &self,
        operation: &'static str,
        client: &RedisClient,
        names: &[String],
        token: &LeaseToken,
    ) -> Result<(), StoreError> {
        let mut call = ScriptCall::new(&self.release, names.iter());
        call.arg(&token.0);
        client.script(operation, &call).await.map(drop)
    }

    /// The client of a channel's keys.
    fn client(&self, channel: Channel) -> RedisClient {
        self.client.for_key(self.keyspace.outbound(channel))
    }

    /// The client of a channel's scan lock, and the names of the lock.
    async fn scan_lock(&self, channel: Channel) -> Result<(RedisClient, Vec<String>), StoreError> {
        let client = self.client(channel);
        let names = self.keyspace.names(&client, vec![self.keyspace.scan_lock(channel)]).await?;
        Ok((client, names))
    }
}

impl LeaseStore for RedisLeases {
    async fn grant_permit(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keyspace.permit(channel, token)).arg("").arg("PX").arg(millis(ttl));
        self.client(channel).command("grant a permit to publish", &set).await.map(drop)
    }

    async fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let mut outcomes = vec![None; routes.len()];
        for (channel, places) in by_channel(routes.iter().map(|route| route.key())) {
            let client = self.client(channel);
            let of_channel = places.iter().map(|place| routes[*place]);
            let keys = of_channel.clone().map(|route| route.key());
            let keys = self.keyspace.route_keys(&client, keys).await?;
            let replaced = of_channel.map(|route| route.replaces().unwrap_or_default());
            let won = self.acquire("acquire route leases", &client, &keys, replaced, (token, ttl)).await?;
            places.iter().zip(won).for_each(|(place, outcome)| outcomes[*place] = Some(outcome));
        }
        // Each route is of one channel, so each has an outcome.
        Ok(outcomes.into_iter().flatten().collect())
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        for (channel, places) in by_channel(keys.iter().copied()) {
            let (client, of_channel) = (self.client(channel), places.iter().map(|place| keys[*place]));
            let names = self.keyspace.lease_names(&client, of_channel).await?;
            self.release("release route leases", &client, &names, token).await?;
        }
        Ok(())
    }

    async fn acquire_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let (client, names) = self.scan_lock(channel).await?;
        let keys = RouteKeys { names, runs: String::new() };
        let replaced = [""].into_iter();
        let won = self.acquire("acquire the scan lock", &client, &keys, replaced, (token, ttl)).await?;
        Ok(won == [LeaseOutcome::Won])
    }

    async fn release_scan_lock(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        let (client, names) = self.scan_lock(channel).await?;
        self.release("release the scan lock", &client, &names, token).await
    }

    async fn extend_markers(
        &self,
        server: &ServerId,
        markers: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let mut is_same = true;
        for (channel, places) in by_channel(markers.iter().map(|(key, _)| *key)) {
            let (client, of_channel) = (self.client(channel), places.iter().map(|place| markers[*place].0));
            let keys = self.keyspace.route_keys(&client, of_channel).await?;
            let mut call = ScriptCall::new(&self.extend, keys.names.iter());
            call.arg(keys.runs).arg(&*server.run_id).arg(&*server.replication_id).arg(millis(ttl));
            for place in &places {
                call.arg(markers[*place].1);
            }
            is_same &= client.script("extend markers", &call).await? == Value::Int(1);
        }
        Ok(is_same)
    }
}

/// The channels of these routes, each with the places of its routes. A chunk of a publisher has one channel.
fn by_channel<'a>(
    keys: impl Iterator<Item = &'a RouteKey> + Clone,
) -> impl Iterator<Item = (Channel, Vec<usize>)> {
    Channel::ALL.into_iter().filter_map(move |channel| {
        let of_channel = keys.clone().enumerate().filter(|(_, key)| key.channel() == channel);
        let places: Vec<usize> = of_channel.map(|(place, _)| place).collect();
        (!places.is_empty()).then_some((channel, places))
    })
}

fn lease(
    operation: &'static str,
    answer: Value,
    server: Option<&ServerId>,
) -> Result<LeaseOutcome, StoreError> {
    match (answer, server) {
        (Value::Int(1), _) => Ok(LeaseOutcome::Won),
        (Value::Int(_), _) => Ok(LeaseOutcome::Held),
        (Value::BulkString(id), Some(server)) => Ok(LeaseOutcome::Published(Acknowledged {
            entry_id: String::from_utf8_lossy(&id).into_owned(),
            server: server.clone(),
        })),
        (other, _) => Err(unexpected(operation, &other)),
    }
}
