//! The record that everything is settled, kept up to date while events are delivered.
//!
//! After a loss, or a restart without one, events delivered since the record are compared. A record that is
//! seconds old keeps their number small, however long the relay was idle.

use std::time::Duration;

use pg::RawTimestamp;
use tokio::time::Instant;

use super::Demand;
use crate::relay::engine::Relay;
use crate::relay::pass::{Outage, Work};
use crate::{Observer, Progress, Publisher, Recorded, Server, ServerId, Storage};

/// The pause between two records while events are delivered.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);

impl<S: Storage, P: Publisher, O: Observer> Relay<S, P, O> {
    /// Records that all is settled: once after the start, and then if events were delivered since and the
    /// last record is old.
    pub(super) async fn refresh(
        &self,
        work: &mut Work,
        outbox: &str,
        server: &Server,
    ) -> Result<Recorded, Outage> {
        // Always due the first time: a relay that was killed has left an older record.
        let is_due = work
            .comparing
            .recorded
            .is_none_or(|(at, ..)| work.marks.has_delivered() && at.elapsed() >= RECORD_INTERVAL);
        if !is_due {
            return Ok(Recorded::Written);
        }
        self.record_settled(work, outbox, server).await
    }

    /// Writes the last record before the relay ends. A failure leaves an older record, from which the next
    /// relay compares.
    pub(in crate::relay) async fn record_at_stop(&self, work: &mut Work) {
        let Some(outbox) = work.comparing.outbox.clone().filter(|_| work.marks.has_delivered()) else {
            return;
        };
        let recorded = async {
            let server = self.publisher.server(&outbox).await?;
            match work.comparing.demand(&server, &self.settings.types) {
                Demand::Settled => self.record_settled(work, &outbox, &server).await.map(drop),
                Demand::Continue(_) | Demand::Begin => Ok(()),
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
        work: &mut Work,
        outbox: &str,
        server: &Server,
    ) -> Result<Recorded, Outage> {
        let until = self.storage.now().await?;
        let (types, progress) = (&self.settings.types, Progress::Settled(until));
        let recorded = self.publisher.record_server(outbox, server, types, progress).await?;
        if recorded == Recorded::Written {
            work.recorded(server.id, until);
        }
        Ok(recorded)
    }

    /// Ends the comparison, whose last record shows that all is settled until `until`.
    pub(super) fn ended(&self, work: &mut Work, server: &Server, until: RawTimestamp) {
        work.comparing.current = None;
        work.recorded(server.id, until);
    }
}

impl Work {
    fn recorded(&mut self, server: ServerId, until: RawTimestamp) {
        self.comparing.recorded = Some((Instant::now(), server, until));
        self.marks.forget_delivered();
    }
}
