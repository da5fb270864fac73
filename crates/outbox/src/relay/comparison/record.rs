//! The record of a complete comparison, kept up to date while events are delivered.
//!
//! After a loss, or a restart without one, events delivered since the record are compared. A record that is
//! seconds old keeps their number small, however long the relay was idle.

use std::time::Duration;

use pg::{PgError, RawTimestamp};
use tokio::time::Instant;

use super::extent::Extent;
use super::{Demand, MAX_CLAIM_WAIT, PAGE_EVENTS, earlier};
use crate::relay::engine::Relay;
use crate::relay::loop_state::LoopState;
use crate::relay::pass::Outage;
use crate::{OutboxError, Progress, Publisher, RecordWrite, RelayObserver, Server, ServerNumber, Storage};

/// The pause between two records while events are delivered.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Writes the record of a complete comparison: once after the start, and then if events were delivered
    /// since and the last record is old.
    pub(super) async fn refresh(
        &self,
        work: &mut LoopState,
        outbox: &str,
        server: &Server,
    ) -> Result<RecordWrite, Outage> {
        // Always due the first time: a relay that was killed has left an older record.
        let is_due = work
            .comparing
            .recorded_at
            .is_none_or(|at| work.marks.has_delivered() && at.elapsed() >= RECORD_INTERVAL);
        if !is_due {
            return Ok(RecordWrite::Written);
        }
        self.record_settled(work, outbox, server).await
    }

    /// Returns the events to compare if one that must have a marker has none: the server was restored in
    /// place while this relay did not see it. A look that takes long counts as such: the comparison runs
    /// beside the claims.
    pub(super) async fn lacks_marker(&self, server: &Server) -> Result<Option<Extent>, Outage> {
        let begun = Instant::now();
        let Some(extent) = self.of_markers(server).await? else { return Ok(None) };
        let mut cursor = None;
        loop {
            let listed = self.storage.list_delivered(&self.compared, extent.since, cursor, PAGE_EVENTS).await;
            let mut page = match listed {
                Err(OutboxError::Postgres(PgError::TimedOut { .. })) => return Ok(Some(extent)),
                page => page?,
            };
            page.events.retain(|event| extent.has(event));
            let found = self.publisher.has_markers(&page.events).await?;
            if found.contains(&false) || begun.elapsed() > MAX_CLAIM_WAIT {
                return Ok(Some(extent));
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns the events whose markers show whether the server was restored in place. Markers last for the
    /// window.
    pub(super) async fn of_markers(&self, server: &Server) -> Result<Option<Extent>, Outage> {
        let floor = earlier(self.storage.now().await?, self.settings.republish_window);
        Ok(Extent::of_markers(server, &self.compared, floor))
    }

    /// Writes the last record before the relay ends. A failure leaves an older record, from which the next
    /// relay compares.
    pub(in crate::relay) async fn record_at_stop(&self, work: &mut LoopState) {
        let Some(outbox) = work.comparing.outbox.clone().filter(|_| work.marks.has_delivered()) else {
            return;
        };
        let recorded = async {
            let server = self.publisher.server(&outbox).await?;
            match work.comparing.demand(&server, &self.compared) {
                Demand::Settled => self.record_settled(work, &outbox, &server).await.map(drop),
                Demand::Continue(_) | Demand::Begin { .. } => Ok(()),
            }
        };
        if let Err(outage) = recorded.await {
            tracing::debug!(
                error = ambient::error_chain(&outage),
                "the relay ends without recording what is settled"
            );
        }
    }

    async fn record_settled(
        &self,
        work: &mut LoopState,
        outbox: &str,
        server: &Server,
    ) -> Result<RecordWrite, Outage> {
        let until = self.storage.now().await?;
        let (types, progress) = (&self.compared, Progress::Settled(until));
        let recorded = self.publisher.record_server(outbox, server, types, progress, until).await?;
        if recorded == RecordWrite::Written {
            work.recorded(server.id, until);
        }
        Ok(recorded)
    }

    /// Ends the comparison, whose last record shows that all is settled until `until`.
    pub(super) fn ended(&self, work: &mut LoopState, server: &Server, until: RawTimestamp) {
        work.comparing.current = None;
        work.recorded(server.id, until);
    }
}

impl LoopState {
    fn recorded(&mut self, server: ServerNumber, until: RawTimestamp) {
        self.comparing.recorded_at = Some(Instant::now());
        self.comparing.newest_record = Some((server, until));
        self.marks.forget_delivered();
    }
}
