//! Leases that become receipts: who may append a route now, and whether it has been appended already.
//!
//! A lease is a hint (ADR 0007): it saves work and narrows the window for duplicates; what counts is the version check
//! in SQL. Each operation is one script over all keys of a chunk. A key that holds what this service never writes
//! counts as held by someone else, and is given an end if it has none, so that nothing hangs on it for ever.

use std::time::Duration;

use domain::ports::{Lease, LeaseStore, LeaseToken, StoreError};
use domain::route::{Channel, RouteKey};
use redis::{Script, Value};

use crate::connect::{RedisClient, ScriptCall, unexpected};
use crate::keyspace::{route_lease, turn};

/// One answer for each key: 1 = won, 0 = held, a string = published under that entry id.
const ACQUIRE: &str = r"
local token, ttl = ARGV[1], ARGV[2]
local answers = {}
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, token, 'NX', 'PX', ttl)
  if set then
    if set.err then return set end
    answers[i] = 1
  else
    local held = redis.pcall('GET', key)
    local receipt = type(held) == 'string' and string.match(held, '^published:(%d+%-%d+)$')
    if held == token then
      redis.call('PEXPIRE', key, ttl)
      answers[i] = 1
    elseif receipt then
      answers[i] = receipt
    else
      if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl) end
      answers[i] = 0
    end
  end
end
return answers";

const RELEASE: &str = r"
for _, key in ipairs(KEYS) do
  if redis.pcall('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return redis.status_reply('OK')";

/// The entries are in the stream: their receipts replace whatever is there.
const EXTEND: &str = r"
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, 'published:' .. ARGV[i + 1], 'PX', ARGV[1])
  if set.err then return set end
end
return redis.status_reply('OK')";

/// The leases of routes.
#[derive(Clone, Debug)]
pub struct RedisLeases {
    client: RedisClient,
    acquire: Script,
    release: Script,
    extend: Script,
}

impl RedisLeases {
    /// Leases on the shared connection of `client`.
    pub fn new(client: &RedisClient) -> Self {
        Self {
            client: client.clone(),
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
            extend: Script::new(EXTEND),
        }
    }

    async fn acquire(
        &self,
        operation: &'static str,
        keys: impl ExactSizeIterator<Item = String>,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        let count = keys.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut call = ScriptCall::new(&self.acquire, keys);
        call.arg(&token.0).arg(millis(ttl));
        match self.client.script(operation, &call).await? {
            Value::Array(answers) if answers.len() == count => {
                answers.into_iter().map(|answer| lease(operation, answer)).collect()
            }
            other => Err(unexpected(operation, &other)),
        }
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
}

impl LeaseStore for RedisLeases {
    async fn acquire_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        self.acquire("acquire route leases", lease_keys(keys), token, ttl).await
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        self.release("release route leases", lease_keys(keys), token).await
    }

    async fn take_turn(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let key = [turn(channel)].into_iter();
        Ok(self.acquire("take a turn at due routes", key, token, ttl).await? == [Lease::Won])
    }

    async fn end_turn(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        self.release("end a turn at due routes", [turn(channel)].into_iter(), token).await
    }

    async fn extend_receipts(&self, receipts: &[(&RouteKey, &str)], ttl: Duration) -> Result<(), StoreError> {
        if receipts.is_empty() {
            return Ok(());
        }
        let mut call = ScriptCall::new(&self.extend, receipts.iter().map(|(key, _)| route_lease(key)));
        call.arg(millis(ttl));
        for (_, entry_id) in receipts {
            call.arg(*entry_id);
        }
        self.client.script("extend receipts", &call).await.map(drop)
    }
}

fn lease_keys(keys: &[&RouteKey]) -> impl ExactSizeIterator<Item = String> {
    keys.iter().map(|key| route_lease(key))
}

fn lease(operation: &'static str, answer: Value) -> Result<Lease, StoreError> {
    match answer {
        Value::Int(1) => Ok(Lease::Won),
        Value::Int(_) => Ok(Lease::Held),
        Value::BulkString(id) => Ok(Lease::Published(String::from_utf8_lossy(&id).into_owned())),
        other => Err(unexpected(operation, &other)),
    }
}

/// Redis takes whole milliseconds and no zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
