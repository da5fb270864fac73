//! Leases that become markers: they record who may append a route now, and whether it was appended already.
//!
//! A lease is a hint (ADR 0007): it saves work and avoids most duplicates; the version check in SQL
//! guarantees correctness. Each operation is one script over all keys of a chunk. A key with a value that
//! this service never writes counts as held, and gets a TTL if it has none, so that no route waits for it
//! indefinitely. The scan lock of a channel is a lease, too.

use std::time::Duration;

use domain::ports::{Acknowledged, Leasable, LeaseOutcome, LeaseStore, LeaseToken, ServerId, StoreError};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use crate::connect::{RedisClient, ScriptCall, millis, unexpected};
use crate::keyspace::Keyspace;
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
    /// Leases on the shared connection of `client`, under the keys of `keyspace`.
    pub fn new(client: &RedisClient, keyspace: &Keyspace) -> Self {
        Self {
            client: client.clone(),
            keyspace: keyspace.clone(),
            acquire: marker::script(&[server::FUNCTION, ACQUIRE].concat()),
            release: Script::new(RELEASE),
            extend: marker::script(&[server::FUNCTION, EXTEND].concat()),
        }
    }

    async fn acquire<'a>(
        &self,
        operation: &'static str,
        keys: impl ExactSizeIterator<Item = String>,
        replaced: impl Iterator<Item = &'a str>,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let count = keys.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut call = ScriptCall::new(&self.acquire, keys);
        call.arg(&token.0).arg(millis(ttl));
        for entry_id in replaced {
            call.arg(entry_id);
        }
        let mut answers = match self.client.script(operation, &call).await? {
            Value::Array(answers) if answers.len() >= count => answers,
            other => return Err(unexpected(operation, &other)),
        };
        let server = server::parse(&answers.split_off(count));
        answers.into_iter().map(|answer| lease(operation, answer, server.as_ref())).collect()
    }

    async fn release(
        &self,
        operation: &'static str,
        keys: impl ExactSizeIterator<Item = String>,
        token: &LeaseToken,
    ) -> Result<(), StoreError> {
        if keys.len() == 0 {
            return Ok(());
        }
        let mut call = ScriptCall::new(&self.release, keys);
        call.arg(&token.0);
        self.client.script(operation, &call).await.map(drop)
    }

    fn lease_keys(&self, keys: &[&RouteKey]) -> impl ExactSizeIterator<Item = String> {
        keys.iter().map(|key| self.keyspace.route_lease(key))
    }
}

impl LeaseStore for RedisLeases {
    async fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let keys = routes.iter().map(|route| self.keyspace.route_lease(route.key()));
        let replaced = routes.iter().map(|route| route.replaces().unwrap_or_default());
        self.acquire("acquire route leases", keys, replaced, token, ttl).await
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        self.release("release route leases", self.lease_keys(keys), token).await
    }

    async fn acquire_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let key = [self.keyspace.scan_lock(channel)].into_iter();
        Ok(self.acquire("acquire the scan lock", key, [""].into_iter(), token, ttl).await?
            == [LeaseOutcome::Won])
    }

    async fn release_scan_lock(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        self.release("release the scan lock", [self.keyspace.scan_lock(channel)].into_iter(), token).await
    }

    async fn extend_markers(
        &self,
        server: &ServerId,
        markers: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        if markers.is_empty() {
            return Ok(true);
        }
        let mut call =
            ScriptCall::new(&self.extend, markers.iter().map(|(key, _)| self.keyspace.route_lease(key)));
        call.arg(&*server.run_id).arg(&*server.replication_id).arg(millis(ttl));
        for (_, entry_id) in markers {
            call.arg(*entry_id);
        }
        Ok(self.client.script("extend markers", &call).await? == Value::Int(1))
    }
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
