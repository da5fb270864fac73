//! The ports of Redis behind a link.

use std::time::Duration;

use domain::checkpoint::{CachedCheckpoint, Checkpoint, StreamState};
use domain::entry::{EntryId, LargeEntry, RawEntry, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, Appends, CheckpointCache, FoundEntries, IntentProducer, IntentStream, Leasable, LeaseOutcome,
    LeaseStore, LeaseToken, ObservedStream, Outbound, OutboundInspection, ReadLimit, ServerId, StoreError,
    StreamRead, Swap,
};
use domain::route::{Channel, RouteKey};

use super::{Link, Remote, texts};

impl<S: IntentStream, L: Link> IntentStream for Remote<S, L> {
    async fn read(
        &self,
        after: EntryId,
        limit: ReadLimit,
        block: Duration,
    ) -> Result<StreamRead, StoreError> {
        self.call("read", texts([limit.entries]), self.store.read(after, limit, block)).await
    }

    async fn reconnect(&self) {
        // The call cannot fail: a scripted error is only recorded.
        drop(self.call("reconnect", Vec::new(), async { Ok(()) }).await);
        self.store.reconnect().await;
    }

    async fn look_at_large(&self, after: EntryId) -> Result<Option<LargeEntry>, StoreError> {
        self.call("look_at_large", texts([after]), self.store.look_at_large(after)).await
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        self.call("first_after", texts([after]), self.store.first_after(after)).await
    }

    async fn list_newest(
        &self,
        last: EntryId,
        limit: ReadLimit,
    ) -> Result<(Vec<RawEntry>, bool), StoreError> {
        self.call("list_newest", texts([last]), self.store.list_newest(last, limit)).await
    }

    async fn server(&self) -> Result<ServerId, StoreError> {
        self.call("server", Vec::new(), self.store.server()).await
    }

    async fn inspect(&self) -> Result<Option<StreamState>, StoreError> {
        self.call("inspect", Vec::new(), self.store.inspect()).await
    }

    async fn trim(&self, before: EntryId) -> Result<u64, StoreError> {
        self.call("trim", texts([before]), self.store.trim(before)).await
    }
}

impl<S: IntentProducer, L: Link> IntentProducer for Remote<S, L> {
    async fn append(&self, fields: &RawFields) -> Result<EntryId, StoreError> {
        self.call("append", Vec::new(), self.store.append(fields)).await
    }
}

impl<S: CheckpointCache, L: Link> CheckpointCache for Remote<S, L> {
    async fn load(&self, stream: &str) -> Result<CachedCheckpoint, StoreError> {
        self.call("load", Vec::new(), self.store.load(stream)).await
    }

    async fn save(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        self.call("save", texts([checkpoint.last_entry_id]), self.store.save(stream, checkpoint)).await
    }

    async fn reset(&self, stream: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        self.call("reset", texts([checkpoint.last_entry_id]), self.store.reset(stream, checkpoint)).await
    }
}

impl<S: LeaseStore, L: Link> LeaseStore for Remote<S, L> {
    async fn grant_permit(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let granted = self.store.grant_permit(channel, token, ttl);
        self.call("grant_permit", texts([channel]), granted).await
    }

    async fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        let keys = texts(routes.iter().map(|route| route.key()));
        self.call("acquire_leases", keys, self.store.acquire_leases(routes, token, ttl)).await
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        self.call("release_leases", texts(keys), self.store.release_leases(keys, token)).await
    }

    async fn acquire_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let acquired = self.store.acquire_scan_lock(channel, token, ttl);
        self.call("acquire_scan_lock", texts([channel]), acquired).await
    }

    async fn release_scan_lock(&self, channel: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        let released = self.store.release_scan_lock(channel, token);
        self.call("release_scan_lock", texts([channel]), released).await
    }

    async fn extend_markers(
        &self,
        server: &ServerId,
        markers: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let keys = texts(markers.iter().map(|(key, _)| key));
        self.call("extend_markers", keys, self.store.extend_markers(server, markers, ttl)).await
    }
}

impl<S: Outbound, L: Link> Outbound for Remote<S, L> {
    async fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
        server: Option<&ServerId>,
    ) -> Result<Appends, StoreError> {
        let keys = texts(entries.iter().map(|(key, _)| key));
        self.call("append", keys, self.store.append(channel, entries, token, dedupe_ttl, server)).await
    }
}

impl<S: OutboundInspection, L: Link> OutboundInspection for Remote<S, L> {
    async fn observe(&self, channel: Channel) -> Result<ObservedStream, StoreError> {
        self.call("observe", vec![channel.to_string()], self.store.observe(channel)).await
    }

    async fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        let keys = texts(entries.iter().map(|(key, _)| key));
        self.call("find_entries", keys, self.store.find_entries(channel, entries)).await
    }

    async fn find_entries_in(
        &self,
        stream: &str,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<FoundEntries, StoreError> {
        self.call("find_entries_in", texts([stream]), self.store.find_entries_in(stream, entries)).await
    }

    async fn append_again<R: Leasable>(
        &self,
        channel: Channel,
        entries: &[(&R, &OutboundEntry<'_>)],
        marker_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        let keys = texts(entries.iter().map(|(route, _)| route.key()));
        self.call("append_again", keys, self.store.append_again(channel, entries, marker_ttl)).await
    }
}
