//! The outbox of the producers, which a relay reaches over a connection.

use std::time::Duration;

use outbox::{
    BatchClaim, ClaimToken, ClaimedRows, DeliveredCursor, DeliveredEvent, DeliveredPage, EventTypes,
    FailedEvent, FailureKind, Marked, MemoryStorage, NewestCursor, NewestPage, OutboxError, Position,
    ReapRequest, Reaped, RequeuedDelivered, Stats, Storage,
};
use pg::RawTimestamp;
use uuid::Uuid;

use crate::network::{CallFailure, Connection};

/// An outbox that a relay reaches over a connection.
#[derive(Clone, Debug)]
pub(crate) struct RemoteOutbox {
    pub(crate) connection: Connection,
    pub(crate) storage: MemoryStorage,
}

impl RemoteOutbox {
    /// Runs a call of the storage, whose future is `response`.
    async fn call<T>(
        &self,
        operation: &'static str,
        response: impl Future<Output = Result<T, OutboxError>> + Send,
    ) -> Result<T, OutboxError> {
        let failed = |failure: CallFailure| OutboxError::from(failure.pg_error(operation));
        let arrived = self.connection.request().await.map_err(failed)?;
        let value = response.await;
        self.connection.response(arrived).await.map_err(failed)?;
        value
    }
}

impl Storage for RemoteOutbox {
    async fn due_in(
        &self,
        types: &EventTypes,
        after: Option<&Position>,
    ) -> Result<Option<Duration>, OutboxError> {
        self.call("ask when an event is due", self.storage.due_in(types, after)).await
    }

    async fn claim_batch(&self, request: &BatchClaim) -> Result<ClaimedRows, OutboxError> {
        self.call("claim events of the outbox", self.storage.claim_batch(request)).await
    }

    async fn first_claimable(&self, request: &BatchClaim) -> Result<Option<Uuid>, OutboxError> {
        self.call("find the first event of a claim", self.storage.first_claimable(request)).await
    }

    async fn mark_delivered_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        self.call("mark events as delivered", self.storage.mark_delivered_batch(token, event_ids)).await
    }

    async fn mark_failed_batch(
        &self,
        token: &ClaimToken,
        failures: &[FailedEvent],
    ) -> Result<Vec<Marked>, OutboxError> {
        self.call("mark events as failed", self.storage.mark_failed_batch(token, failures)).await
    }

    async fn release_batch(
        &self,
        token: &ClaimToken,
        event_ids: &[Uuid],
    ) -> Result<Vec<Marked>, OutboxError> {
        self.call("release events", self.storage.release_batch(token, event_ids)).await
    }

    async fn reap_expired_leases(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> Result<Reaped, OutboxError> {
        self.call("reap expired leases", self.storage.reap_expired_leases(request, kind)).await
    }

    async fn identity(&self) -> Result<String, OutboxError> {
        self.call("identify the outbox", self.storage.identity()).await
    }

    async fn now(&self) -> Result<RawTimestamp, OutboxError> {
        self.call("read the clock of the outbox", Storage::now(&self.storage)).await
    }

    async fn newest_delivered(
        &self,
        types: &EventTypes,
        cursor: Option<NewestCursor>,
    ) -> Result<NewestPage, OutboxError> {
        self.call("find the newest delivered event", self.storage.newest_delivered(types, cursor)).await
    }

    async fn list_delivered(
        &self,
        types: &EventTypes,
        since: RawTimestamp,
        cursor: Option<DeliveredCursor>,
        limit: u32,
    ) -> Result<DeliveredPage, OutboxError> {
        self.call("list delivered events", self.storage.list_delivered(types, since, cursor, limit)).await
    }

    async fn requeue_delivered(&self, events: &[DeliveredEvent]) -> Result<RequeuedDelivered, OutboxError> {
        self.call("requeue delivered events", self.storage.requeue_delivered(events)).await
    }

    async fn oldest_claim_until(&self, time: RawTimestamp) -> Result<Option<RawTimestamp>, OutboxError> {
        self.call("find the oldest claim", self.storage.oldest_claim_until(time)).await
    }

    async fn stats(&self, types: &EventTypes, limit: u64) -> Result<Stats, OutboxError> {
        self.call("count events", self.storage.stats(types, limit)).await
    }
}
