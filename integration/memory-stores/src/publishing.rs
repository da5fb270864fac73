//! Leases, markers, scan locks and outbound streams.
//!
//! One store, because an append replaces the lease with the marker in one step.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Acknowledged, Append, Appends, Leasable, LeaseOutcome, LeaseStore, LeaseToken, Outbound, ServerId,
    StoreError,
};
use domain::republish::Gap;
use domain::route::{Channel, RouteKey};

use super::clock::ServerClock;
use super::lock;

/// The names and values of an entry.
pub type PublishedFields = Vec<(String, String)>;

/// Leases and outbound streams on one server, with the time of the clock.
#[derive(Debug)]
pub struct MemoryPublishing {
    pub(super) clock: ServerClock,
    pub(super) state: Mutex<PublishingState>,
}

#[derive(Debug, Default)]
pub(super) struct PublishingState {
    pub(super) data: PublishingData,
    refusing: HashSet<Channel>,
    is_full: bool,
    /// The number of starts of the server, and of failovers to a replica.
    pub(super) run: u64,
    pub(super) failovers: u64,
}

/// The keys of the server.
#[derive(Clone, Debug, Default)]
pub(super) struct PublishingData {
    routes: HashMap<RouteKey, Expiring<Holder>>,
    permits: HashMap<(Channel, LeaseToken), Timestamp>,
    scan_locks: HashMap<Channel, Expiring<LeaseToken>>,
    pub(super) streams: HashMap<Channel, OutboundEntries>,
    /// The servers that each stream was on, latest first, each with the range of ids missing there.
    pub(super) changes: HashMap<Channel, Vec<Gap>>,
}

/// A copy of all data of a server at one moment.
#[derive(Clone, Debug)]
pub struct PublishingBackup(PublishingData);

#[derive(Clone, Debug, Default)]
pub(super) struct OutboundEntries {
    pub(super) entries: Vec<(EntryId, PublishedFields)>,
    pub(super) last_generated: EntryId,
    pub(super) max_deleted: EntryId,
}

#[derive(Clone, Debug)]
pub(super) struct Expiring<T> {
    value: T,
    until: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    Token(LeaseToken),
    Marker(String),
}

/// The id that a stream generates at `now`, by the clock of its server, after `last`.
pub(super) fn next_id(last: EntryId, now: Timestamp) -> EntryId {
    let millis = u64::try_from(now.as_millis()).unwrap_or(0);
    match millis > last.millis {
        true => EntryId::new(millis, 0),
        false => EntryId::new(last.millis, last.sequence + 1),
    }
}

impl PublishingState {
    pub(super) fn server(&self) -> ServerId {
        ServerId { run_id: self.run.to_string().into(), replication_id: self.failovers.to_string().into() }
    }

    /// The server changes of a stream, including the one to the current server, and the losses of its key.
    pub(super) fn changes_of(&self, channel: Channel) -> Vec<Gap> {
        let (server, mut changes) =
            (self.server(), self.data.changes.get(&channel).cloned().unwrap_or_default());
        if changes.first().is_some_and(|gap| gap.before.is_none()) {
            changes.remove(0);
        }
        let last = self.data.streams.get(&channel).map(|stream| stream.last_generated);
        let is_noted =
            |gap: &Gap| gap.server == server && gap.before.is_some_and(|first| last >= Some(first));
        if !changes.first().is_some_and(is_noted) {
            changes.insert(0, Gap { server, after: last.unwrap_or(EntryId::ZERO), before: None });
        }
        changes
    }

    /// Records the current server.
    pub(super) fn note_changes(&mut self, channel: Channel) {
        let changes = self.changes_of(channel);
        self.data.changes.insert(channel, changes);
    }

    fn acknowledged(&self, entry_id: String) -> Acknowledged {
        Acknowledged { entry_id, server: self.server() }
    }
}

impl PublishingState {
    /// The holder of `key` at `now`; removes an expired one.
    pub(super) fn holder(&mut self, key: &RouteKey, now: Timestamp) -> Option<&Holder> {
        if self.data.routes.get(key).is_some_and(|held| held.until <= now) {
            self.data.routes.remove(key);
        }
        self.data.routes.get(key).map(|held| &held.value)
    }

    /// Appends the entry, and replaces the lease of its route with the marker.
    pub(super) fn append(
        &mut self,
        channel: Channel,
        key: &RouteKey,
        entry: &OutboundEntry<'_>,
        now: Timestamp,
        marker_ttl: Duration,
    ) -> Append {
        if self.is_full {
            return Append::Outage("OOM command not allowed when used memory > 'maxmemory'".to_owned());
        }
        if self.refusing.contains(&channel) {
            return Append::Refused("WRONGTYPE Operation against a key of another type".to_owned());
        }
        let mut changes = self.changes_of(channel);
        let stream = self.data.streams.entry(channel).or_default();
        let id = next_id(stream.last_generated, now);
        let fields = entry.0.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
        stream.entries.push((id, fields));
        stream.last_generated = id;
        if let Some(gap) = changes.first_mut() {
            gap.before = gap.before.or(Some(id));
        }
        self.data.changes.insert(channel, changes);
        self.put_marker(key, &id.to_string(), now + marker_ttl);
        self.done(id.to_string())
    }

    pub(super) fn done(&self, entry_id: String) -> Append {
        Append::Done(self.acknowledged(entry_id))
    }

    pub(super) fn put_marker(&mut self, key: &RouteKey, id: &str, until: Timestamp) {
        self.data.routes.insert(key.clone(), Expiring { value: Holder::Marker(id.to_owned()), until });
    }
}

impl MemoryPublishing {
    /// An empty server.
    pub fn new(clock: Arc<impl Clock + 'static>) -> Self {
        Self { clock: ServerClock::new(clock), state: Mutex::default() }
    }

    /// Returns a copy of the data of the server.
    pub fn backup(&self) -> PublishingBackup {
        PublishingBackup(lock(&self.state).data.clone())
    }

    /// Replaces the data of the server by that of `backup`. It is the same server until it is restarted.
    pub fn restore(&self, backup: &PublishingBackup) {
        lock(&self.state).data = backup.0.clone();
    }

    /// The remaining lifetime of the lease or marker of a route.
    pub fn remaining(&self, key: &RouteKey) -> Option<Duration> {
        let now = self.clock.now();
        let state = lock(&self.state);
        let until = state.data.routes.get(key).map(|held| held.until)?;
        (until > now).then(|| until.saturating_since(now))
    }

    /// The entries of a channel's stream.
    pub fn entries(&self, channel: Channel) -> Vec<(EntryId, PublishedFields)> {
        let state = lock(&self.state);
        state.data.streams.get(&channel).map(|stream| stream.entries.clone()).unwrap_or_default()
    }

    /// The number of entries of a channel's stream.
    pub fn entry_count(&self, channel: Channel) -> usize {
        lock(&self.state).data.streams.get(&channel).map_or(0, |stream| stream.entries.len())
    }

    /// Makes a channel's stream reject every append, as if its key had another type, or accept appends again.
    pub fn set_refusing(&self, channel: Channel, refuses: bool) {
        let mut state = lock(&self.state);
        match refuses {
            true => state.refusing.insert(channel),
            false => state.refusing.remove(&channel),
        };
    }

    /// Makes the server reject further entries for lack of memory, or accept them again.
    pub fn set_full(&self, is_full: bool) {
        lock(&self.state).is_full = is_full;
    }

    /// Loses the last `entries` entries of a stream with their ids, as a server that restarts with an older
    /// state.
    pub fn lose_tail(&self, channel: Channel, entries: usize) {
        if let Some(stream) = lock(&self.state).data.streams.get_mut(&channel) {
            stream.entries.truncate(stream.entries.len().saturating_sub(entries));
            stream.last_generated = stream.entries.last().map_or(EntryId::ZERO, |(id, _)| *id);
        }
    }

    /// Writes the marker of an entry over any value, as the publisher that appended the entry does.
    pub fn write_marker(&self, key: &RouteKey, id: &str, ttl: Duration) {
        let until = self.clock.now() + ttl;
        lock(&self.state).put_marker(key, id, until);
    }

    /// Expires the permit of a token.
    pub fn expire_permit(&self, channel: Channel, token: &LeaseToken) {
        lock(&self.state).data.permits.remove(&(channel, token.clone()));
    }

    /// Loses every lease, permit, marker and scan lock.
    pub fn lose_leases(&self) {
        let mut state = lock(&self.state);
        state.data.routes.clear();
        state.data.permits.clear();
        state.data.scan_locks.clear();
    }
}

impl LeaseStore for MemoryPublishing {
    async fn grant_permit(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let permits = &mut lock(&self.state).data.permits;
        permits.retain(|_, until| *until > now);
        permits.insert((channel, token.clone()), now + ttl);
        Ok(())
    }

    async fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let acquire = |route: &&R| match state.holder(route.key(), now) {
            Some(Holder::Marker(id)) if route.replaces() != Some(id.as_str()) => {
                let id = id.clone();
                LeaseOutcome::Published(state.acknowledged(id))
            }
            Some(Holder::Token(holder)) if holder != token => LeaseOutcome::Held,
            Some(Holder::Token(_) | Holder::Marker(_)) | None => {
                let held = Expiring { value: Holder::Token(token.clone()), until: now + ttl };
                state.data.routes.insert(route.key().clone(), held);
                LeaseOutcome::Won
            }
        };
        Ok(routes.iter().map(acquire).collect())
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        for key in keys {
            let own =
                |held: &Expiring<Holder>| matches!(&held.value, Holder::Token(holder) if holder == token);
            if state.data.routes.get(*key).is_some_and(own) {
                state.data.routes.remove(*key);
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
        let other = |held: &Expiring<LeaseToken>| held.until > now && held.value != *token;
        if state.data.scan_locks.get(&channel).is_some_and(other) {
            return Ok(false);
        }
        state.data.scan_locks.insert(channel, Expiring { value: token.clone(), until: now + ttl });
        Ok(true)
    }

    async fn release_scan_lock(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.data.scan_locks.get(&channel).is_some_and(|held| held.value == *token) {
            state.data.scan_locks.remove(&channel);
        }
        Ok(())
    }

    async fn extend_markers(
        &self,
        server: &ServerId,
        markers: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let until = self.clock.now() + ttl;
        let mut state = lock(&self.state);
        let (is_same, now) = (state.server() == *server, self.clock.now());
        for (key, id) in markers {
            let is_later = |held: &str| held.parse::<EntryId>().ok() > id.parse().ok();
            let is_extended = match state.holder(key, now) {
                Some(Holder::Marker(held)) => held == id || (is_same && !is_later(held)),
                Some(Holder::Token(_)) | None => is_same,
            };
            if is_extended {
                state.put_marker(key, id, until);
            }
        }
        Ok(is_same)
    }
}

impl Outbound for MemoryPublishing {
    async fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
        server: Option<&ServerId>,
    ) -> Result<Appends, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let permit = state.data.permits.get(&(channel, token.clone()));
        let is_permitted = permit.is_some_and(|until| *until > now);
        let present = state.server();
        let is_expected = server.is_none_or(|server| *server == present);
        let mut append = |key: &RouteKey, entry: &OutboundEntry<'_>| match state.holder(key, now) {
            Some(Holder::Marker(id)) => {
                let id = id.clone();
                state.done(id)
            }
            Some(Holder::Token(holder)) if holder == token && is_expected => {
                state.append(channel, key, entry, now, dedupe_ttl)
            }
            None if is_permitted && is_expected => state.append(channel, key, entry, now, dedupe_ttl),
            Some(Holder::Token(_)) | None => Append::LeaseLost,
        };
        let entries = entries.iter().map(|(key, entry)| append(key, entry)).collect();
        Ok(Appends { server: present, entries })
    }
}
