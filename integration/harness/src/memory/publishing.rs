//! Leases, receipts, scan locks and outbound streams.
//!
//! One store, because an append turns the lease into the receipt in one step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{Clock, ManualClock, Timestamp};
use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{Append, Lease, LeaseStore, LeaseToken, Outbound, StoreError};
use domain::route::{Channel, RouteKey};

use super::lock;

/// The names and values of an entry.
pub type PublishedFields = Vec<(String, String)>;

/// Leases and outbound streams on one server. Its time is that of the clock.
#[derive(Debug)]
pub struct MemoryPublishing {
    clock: Arc<ManualClock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    routes: HashMap<RouteKey, Held<Holder>>,
    scan_locks: HashMap<Channel, Held<LeaseToken>>,
    streams: HashMap<Channel, Vec<(EntryId, PublishedFields)>>,
    last_generated: HashMap<Channel, EntryId>,
}

#[derive(Debug)]
struct Held<T> {
    value: T,
    until: Timestamp,
}

#[derive(PartialEq, Eq, Debug)]
enum Holder {
    Token(LeaseToken),
    Receipt(String),
}

impl State {
    /// What is held under `key` at `now`; what has expired is removed.
    fn holder(&mut self, key: &RouteKey, now: Timestamp) -> Option<&Holder> {
        if self.routes.get(key).is_some_and(|held| held.until <= now) {
            self.routes.remove(key);
        }
        self.routes.get(key).map(|held| &held.value)
    }

    fn append(&mut self, channel: Channel, entry: &OutboundEntry<'_>, now: Timestamp) -> String {
        let last = self.last_generated.entry(channel).or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        *last = match millis > last.millis {
            true => EntryId::new(millis, 0),
            false => EntryId::new(last.millis, last.sequence + 1),
        };
        let fields = entry.0.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
        self.streams.entry(channel).or_default().push((*last, fields));
        last.to_string()
    }
}

impl MemoryPublishing {
    /// An empty server.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// How long the lease or the receipt of a route still lives.
    pub fn remaining(&self, key: &RouteKey) -> Option<Duration> {
        let now = self.clock.now();
        let state = lock(&self.state);
        let until = state.routes.get(key).map(|held| held.until)?;
        (until > now).then(|| until.saturating_since(now))
    }

    /// The entries of a channel's stream.
    pub fn entries(&self, channel: Channel) -> Vec<(EntryId, PublishedFields)> {
        lock(&self.state).streams.get(&channel).cloned().unwrap_or_default()
    }

    /// Loses the last `entries` entries of a stream, and their ids with them, as a server that restarts with an older state.
    pub fn lose_tail(&self, channel: Channel, entries: usize) {
        let state = &mut *lock(&self.state);
        let stream = state.streams.entry(channel).or_default();
        stream.truncate(stream.len().saturating_sub(entries));
        let last = stream.last().map_or(EntryId::ZERO, |(id, _)| *id);
        state.last_generated.insert(channel, last);
    }

    /// Loses every lease, receipt and scan lock.
    pub fn lose_leases(&self) {
        let mut state = lock(&self.state);
        state.routes.clear();
        state.scan_locks.clear();
    }
}

impl LeaseStore for MemoryPublishing {
    async fn acquire_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let mut acquire = |key: &RouteKey| match state.holder(key, now) {
            Some(Holder::Receipt(id)) => Lease::Published(id.clone()),
            Some(Holder::Token(holder)) if holder != token => Lease::Held,
            Some(Holder::Token(_)) | None => {
                let held = Held { value: Holder::Token(token.clone()), until: now + ttl };
                state.routes.insert(key.clone(), held);
                Lease::Won
            }
        };
        Ok(keys.iter().map(|key| acquire(key)).collect())
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        for key in keys {
            let own = |held: &Held<Holder>| matches!(&held.value, Holder::Token(holder) if holder == token);
            if state.routes.get(*key).is_some_and(own) {
                state.routes.remove(*key);
            }
        }
        Ok(())
    }

    async fn acquire_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let other = |held: &Held<LeaseToken>| held.until > now && held.value != *token;
        if state.scan_locks.get(&channel).is_some_and(other) {
            return Ok(false);
        }
        state.scan_locks.insert(channel, Held { value: token.clone(), until: now + ttl });
        Ok(true)
    }

    async fn release_scan_lock(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.scan_locks.get(&channel).is_some_and(|held| held.value == *token) {
            state.scan_locks.remove(&channel);
        }
        Ok(())
    }

    async fn extend_receipts(&self, receipts: &[(&RouteKey, &str)], ttl: Duration) -> Result<(), StoreError> {
        let until = self.clock.now() + ttl;
        let mut state = lock(&self.state);
        for (key, id) in receipts {
            let held = Held { value: Holder::Receipt((*id).to_owned()), until };
            state.routes.insert((*key).clone(), held);
        }
        Ok(())
    }
}

impl Outbound for MemoryPublishing {
    async fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let mut append = |key: &RouteKey, entry: &OutboundEntry<'_>| match state.holder(key, now) {
            Some(Holder::Receipt(id)) => Append::Done(id.clone()),
            Some(Holder::Token(holder)) if holder == token => {
                let id = state.append(channel, entry, now);
                let held = Held { value: Holder::Receipt(id.clone()), until: now + dedupe_ttl };
                state.routes.insert(key.clone(), held);
                Append::Done(id)
            }
            Some(Holder::Token(_)) | None => Append::LeaseLost,
        };
        Ok(entries.iter().map(|(key, entry)| append(key, entry)).collect())
    }
}
