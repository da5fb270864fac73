//! Inspects the outbound streams as a whole, and appends lost entries again.

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, FoundEntries, Leasable, ObservedStream, OutboundInspection, OutboundState, StoreError,
};
use domain::republish::Gap;
use domain::route::{Channel, RouteKey};

use super::lock;
use super::publishing::{Holder, MemoryPublishing, OutboundEntries, PublishingState};

impl MemoryPublishing {
    /// Restarts the server with all its data.
    pub fn restart(&self) {
        lock(&self.state).run += 1;
    }

    /// Replaces the server with its replica, which has all its data.
    pub fn promote(&self) {
        let mut state = lock(&self.state);
        (state.run, state.failovers) = (state.run + 1, state.failovers + 1);
    }

    /// Replaces the server with its replica, which has only the first `kept` entries of each stream and no
    /// lease and no marker.
    pub fn fail_over(&self, kept: usize) {
        self.lose_leases();
        for channel in Channel::ALL {
            let lost = self.entries(channel).len().saturating_sub(kept);
            self.lose_tail(channel, lost);
        }
        self.promote();
    }

    /// Deletes an entry, as a consumer does.
    pub fn delete_entry(&self, channel: Channel, id: EntryId) {
        if let Some(stream) = lock(&self.state).data.streams.get_mut(&channel) {
            let count = stream.entries.len();
            stream.entries.retain(|(entry, _)| *entry != id);
            if stream.entries.len() < count {
                stream.max_deleted = stream.max_deleted.max(id);
            }
        }
    }

    /// Removes the entries with ids below `before`, as a limit on the stream's length does.
    pub fn trim(&self, channel: Channel, before: EntryId) {
        if let Some(stream) = lock(&self.state).data.streams.get_mut(&channel) {
            stream.entries.retain(|(id, _)| *id >= before);
        }
    }

    /// The state of a channel's stream.
    pub fn outbound_state(&self, channel: Channel) -> Option<OutboundState> {
        lock(&self.state).outbound(channel)
    }

    /// Deletes the key of a channel's stream.
    pub fn delete_stream(&self, channel: Channel) {
        lock(&self.state).data.streams.remove(&channel);
    }

    /// Deletes the record of the servers that a channel's stream was on.
    pub fn forget_changes(&self, channel: Channel) {
        lock(&self.state).data.changes.remove(&channel);
    }
}

impl OutboundEntries {
    fn state(&self, gaps: Vec<Gap>) -> OutboundState {
        OutboundState {
            first: self.entries.first().map(|(id, _)| *id),
            last_generated: self.last_generated,
            max_deleted: self.max_deleted,
            copied_bytes: 0,
            gaps,
        }
    }

    /// Returns true if the entry `id` exists and belongs to the route `key`.
    fn has(&self, key: &RouteKey, id: EntryId) -> bool {
        let name = key.to_string();
        let found = self.entries.binary_search_by_key(&id, |(id, _)| *id);
        found.is_ok_and(|at| self.entries[at].1.first().is_some_and(|(_, value)| *value == name))
    }
}

impl PublishingState {
    fn outbound(&self, channel: Channel) -> Option<OutboundState> {
        Some(self.data.streams.get(&channel)?.state(self.changes_of(channel)))
    }

    /// Returns true if the entry `id` of the route is in the stream, or was appended on this server and
    /// deleted since.
    fn has_had(&self, channel: Channel, key: &RouteKey, id: EntryId) -> bool {
        let Some(stream) = self.data.streams.get(&channel) else { return false };
        let first = self.changes_of(channel).first().and_then(|gap| gap.before);
        let is_of_this_server = first.is_some_and(|first| first <= id) && id <= stream.last_generated;
        let is_absent = stream.entries.binary_search_by_key(&id, |(id, _)| *id).is_err();
        stream.has(key, id) || (is_of_this_server && is_absent)
    }
}

impl OutboundInspection for MemoryPublishing {
    async fn observe(&self, channel: Channel) -> Result<ObservedStream, StoreError> {
        let mut state = lock(&self.state);
        state.note_changes(channel);
        let (server, stream) = (state.server(), channel.as_str().to_owned());
        Ok(ObservedStream { channel, stream, server, state: state.outbound(channel) })
    }

    async fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        let state = lock(&self.state);
        let stream = state.data.streams.get(&channel);
        let found = entries.iter().map(|(key, id)| stream.is_some_and(|stream| stream.has(key, *id)));
        Ok(FoundEntries::new(state.server(), state.outbound(channel), entries, found))
    }

    async fn find_entries_in(
        &self,
        stream: &str,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        match Channel::ALL.into_iter().find(|channel| channel.as_str() == stream) {
            Some(channel) => self.find_entries(channel, entries).await,
            None => {
                let absent = entries.iter().map(|_| false);
                Ok(FoundEntries::new(lock(&self.state).server(), None, entries, absent))
            }
        }
    }

    async fn append_again<R: Leasable>(
        &self,
        channel: Channel,
        entries: &[(&R, &OutboundEntry<'_>)],
        marker_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let mut append_again = |route: &R, entry: &OutboundEntry<'_>| {
            let key = route.key();
            match state.holder(key, now) {
                Some(Holder::Token(_)) => return Append::LeaseLost,
                Some(Holder::Marker(marker)) if route.replaces() != Some(marker.as_str()) => {
                    let marker = marker.clone();
                    if marker.parse().is_ok_and(|id| state.has_had(channel, key, id)) {
                        state.put_marker(key, &marker, now + marker_ttl);
                        return state.done(marker);
                    }
                }
                Some(Holder::Marker(_)) | None => {}
            }
            state.append(channel, key, entry, now, marker_ttl)
        };
        Ok(entries.iter().map(|(route, entry)| append_again(route, entry)).collect())
    }
}
