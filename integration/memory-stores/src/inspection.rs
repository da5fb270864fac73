//! Inspecting the outbound streams as a whole, and appending lost entries again.

use std::time::Duration;

use ambient::Clock;
use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{Append, OutboundInspection, OutboundServer, OutboundState, StoreError};
use domain::route::{Channel, RouteKey};

use super::lock;
use super::publishing::{Holder, MemoryPublishing, OutboundStream};

impl MemoryPublishing {
    /// Starts the server again with all that it had.
    pub fn restart(&self) {
        lock(&self.state).run += 1;
    }

    /// Replaces the server by its replica, which had only the first `kept` entries of each stream and no lease and no receipt.
    pub fn fail_over(&self, kept: usize) {
        self.lose_leases();
        for channel in Channel::ALL {
            let lost = self.entries(channel).len().saturating_sub(kept);
            self.lose_tail(channel, lost);
        }
        let mut state = lock(&self.state);
        (state.run, state.failovers) = (state.run + 1, state.failovers + 1);
    }

    /// Deletes an entry as a consumer does.
    pub fn delete_entry(&self, channel: Channel, id: EntryId) {
        if let Some(stream) = lock(&self.state).streams.get_mut(&channel) {
            let count = stream.entries.len();
            stream.entries.retain(|(entry, _)| *entry != id);
            if stream.entries.len() < count {
                stream.max_deleted = stream.max_deleted.max(id);
            }
        }
    }

    /// Removes the entries with ids below `before`, as a limit of the stream's length does.
    pub fn trim(&self, channel: Channel, before: EntryId) {
        if let Some(stream) = lock(&self.state).streams.get_mut(&channel) {
            stream.entries.retain(|(id, _)| *id >= before);
        }
    }

    /// Deletes the key of a channel's stream.
    pub fn delete_stream(&self, channel: Channel) {
        lock(&self.state).streams.remove(&channel);
    }
}

impl OutboundStream {
    fn state(&self) -> OutboundState {
        OutboundState {
            first: self.entries.first().map(|(id, _)| *id),
            last_generated: self.last_generated,
            max_deleted: self.max_deleted,
        }
    }

    /// Whether the entry `id` is there and is of the route `key`.
    fn has(&self, key: &RouteKey, id: EntryId) -> bool {
        let name = key.to_string();
        let found = self.entries.binary_search_by_key(&id, |(id, _)| *id);
        found.is_ok_and(|at| self.entries[at].1.first().is_some_and(|(_, value)| *value == name))
    }
}

impl OutboundInspection for MemoryPublishing {
    async fn observe(&self) -> Result<OutboundServer, StoreError> {
        let state = lock(&self.state);
        let stream = |channel: Channel| {
            let seen = state.streams.get(&channel).map(OutboundStream::state);
            (channel, channel.as_str().to_owned(), seen)
        };
        Ok(OutboundServer {
            run_id: state.run.to_string(),
            replication_id: state.failovers.to_string(),
            streams: Channel::ALL.into_iter().map(stream).collect(),
        })
    }

    async fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<(Option<OutboundState>, Vec<bool>), StoreError> {
        let state = lock(&self.state);
        let stream = state.streams.get(&channel);
        let found = entries.iter().map(|(key, id)| stream.is_some_and(|stream| stream.has(key, *id)));
        Ok((stream.map(OutboundStream::state), found.collect()))
    }

    async fn append_again(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        receipt_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let mut append_again = |key: &RouteKey, entry: &OutboundEntry<'_>| {
            match state.holder(key, now) {
                Some(Holder::Token(_)) => return Append::LeaseLost,
                Some(Holder::Receipt(receipt)) => {
                    let receipt = receipt.clone();
                    let is_there = receipt.parse().is_ok_and(|id| {
                        state.streams.get(&channel).is_some_and(|stream| stream.has(key, id))
                    });
                    if is_there {
                        state.put_receipt(key, &receipt, now + receipt_ttl);
                        return Append::Done(receipt);
                    }
                }
                None => {}
            }
            state.append(channel, key, entry, now, receipt_ttl)
        };
        Ok(entries.iter().map(|(key, entry)| append_again(key, entry)).collect())
    }
}
