//! The beginning of a comparison: the time from which events are compared.

use pg::RawTimestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::extent::{Extent, FromRecords};
use super::{Comparison, HeldEvents, MAX_CLAIM_WAIT, PAGE_EVENTS, earlier, shown};
use crate::relay::engine::Relay;
use crate::relay::loop_state::LoopState;
use crate::relay::pass::Outage;
use crate::{EventTypes, Progress, Publisher, RecordWrite, RelayObserver, Server, ServerRecord, Storage};

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Begins a comparison, or joins the one that another relay has begun with this server. Does neither if
    /// the record was changed meanwhile, or at a stop. The comparison has the events of `lost` if the server
    /// was restored in place, otherwise those that the records do not cover.
    pub(super) async fn begin(
        &self,
        work: &mut LoopState,
        outbox: &str,
        server: &Server,
        lost: Option<Extent>,
        stop: &CancellationToken,
    ) -> Result<(), Outage> {
        let now = self.storage.now().await?;
        // Events that the previous server acknowledged are marked first, so that they are compared as well.
        self.make_marks(work).await?;
        let types = &self.compared;
        let (mut extent, mut had_nothing) = match (lost, FromRecords::read(server, types, now)) {
            (Some(extent), _) | (None, FromRecords::Whole(extent)) => (extent, false),
            (None, FromRecords::Part(others)) => {
                let Some(newest) = stop.run_until_cancelled(self.find_newest(work, types)).await else {
                    return Ok(());
                };
                let newest = newest?;
                let window = self.settings.republish_window + self.settings.lease_timeout;
                let begin = earlier(newest.unwrap_or(now), window);
                (Extent::beginning(others, types, begin), newest.is_none())
            }
        };
        if let Some(before) = &work.comparing.current {
            extent.extend_to(before.recorded);
            had_nothing = false;
        }
        let joined = match server.record(types) {
            Some(&ServerRecord {
                is_own: true,
                progress: Progress::Unfinished { comparison, since },
                ..
            }) => Some((comparison, since)),
            _ => None,
        };
        let id = joined.map_or_else(|| self.new_id(), |(id, _)| id);
        let since = extent.since;
        if joined.is_none_or(|(_, recorded)| since < recorded) {
            let progress = Progress::Unfinished { since, comparison: id };
            if self.publisher.record_server(outbox, server, types, progress, now).await?
                == RecordWrite::Changed
            {
                return Ok(());
            }
        }
        tracing::info!(
            relay = self.settings.relay_id.as_str(),
            delivered_since = shown(since),
            "the server that acknowledges outbox events may lack some of them; comparing"
        );
        work.comparing.search = None;
        self.report_partly(work.comparing.current.take());
        let begun_at = Instant::now();
        work.comparing.current = Some(Comparison {
            server: server.id,
            id,
            begun: now,
            extent,
            recorded: since,
            had_nothing,
            round: None,
            rounds: 0,
            held: HeldEvents::default(),
            limit: PAGE_EVENTS,
            continues_at: begun_at,
            claims_wait_until: begun_at + MAX_CLAIM_WAIT,
        });
        Ok(())
    }

    /// Returns the newest time at which an event of the relay's types was DELIVERED. After an error the
    /// search continues where it stopped.
    async fn find_newest(
        &self,
        work: &mut LoopState,
        types: &EventTypes,
    ) -> Result<Option<RawTimestamp>, Outage> {
        loop {
            let page = self.storage.newest_delivered(types, work.comparing.search).await?;
            work.comparing.search = page.next;
            if page.next.is_none() {
                return Ok(page.newest);
            }
        }
    }

    fn new_id(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.tokens.next();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}
