//! Appending again what Redis acknowledged and then lost (ADR 0021).
//!
//! Every replica observes the server and the last ids of the outbound streams. When the server is another one, or a
//! last id fell, one replica compares the published routes in PostgreSQL with the entries of the streams. It appends missing
//! entries again under the same `event_id` or `delivery_id`, with the same attempt. The last observation of the streams is stored in
//! PostgreSQL and replaced only after a complete comparison, so that neither a restart nor a crash skips one:
//!
//! | crash after | what is left | what happens next |
//! |---|---|---|
//! | detecting the change | nothing | The next observation of any replica detects it. |
//! | appending | the entry and its receipt | The next comparison finds the receipt and updates the route. |
//! | updating routes | their new ids | The next comparison finds these entries in the stream. |
//! | the comparison | the observation from before | The next comparison finds nothing missing. |
//!
//! A receipt that expired before the next comparison causes a repeated entry with the same `event_id` or `delivery_id`. A
//! completion that is committed later than [`COMPARISON_DELAY`] after the change, because another transaction held its row, is not compared.

mod compare;

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::ports::{Election, OutboundInspection, OutboundServer, RepublishStore, StoreError, error_chain};
use domain::republish::SeenStream;
use domain::route::Channel;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{Leadership, Pass, Passes, run_passes, while_leading};

/// Between two observations of the outbound streams.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(2);
/// How long after a change the comparison begins: completions that were running are committed by then.
const COMPARISON_DELAY: Duration = Duration::from_secs(5);
/// The shortest time between two writes of the observation.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// The configuration of republishing.
#[derive(Clone, Copy, Debug)]
pub struct RepublishSettings {
    /// How long before the streams were last seen a route may have been published to be compared.
    pub window: Duration,
    /// How long a receipt lives, if that is longer than the window.
    pub dedupe_ttl: Duration,
}

/// The worker that observes the outbound streams and compares them with PostgreSQL.
#[derive(Debug)]
pub struct Republisher<E, S, O, C> {
    /// Which of the replicas compares.
    pub election: E,
    /// What was published.
    pub store: S,
    /// The streams.
    pub outbound: O,
    /// The time.
    pub clock: C,
    /// How far back.
    pub settings: RepublishSettings,
    /// What is counted.
    pub metrics: Metrics,
    /// How the worker is doing.
    pub health: Health,
}

/// What one replica knows of the streams.
#[derive(Default)]
struct Watch {
    /// As they were saved last; `None` before they were loaded.
    saved: Option<Vec<SeenStream>>,
    /// When that was.
    saved_at: Option<Instant>,
    /// As they were seen last while nothing was lost.
    known: Vec<SeenStream>,
    /// Since when they differ so that entries may be lost.
    changed_at: Option<Instant>,
    /// Whether this has been logged.
    reported: bool,
    /// Why the last comparison failed, until it is repeated.
    failure: Option<String>,
}

/// A stream that may have lost entries: the previous observation and the current one.
struct Change<'a> {
    channel: Channel,
    former: SeenStream,
    now: &'a SeenStream,
}

impl<E, S, O, C> Republisher<E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    /// Runs until `stop`, an observation every two seconds.
    pub async fn run(self, stop: CancellationToken) {
        let passes = RepublishLoop { republisher: &self, watch: Watch::default() };
        run_passes(&self.health, &stop, OBSERVE_INTERVAL, passes).await;
    }

    /// One observation, and what follows from it.
    async fn run_once(&self, watch: &mut Watch, stop: &CancellationToken) -> Result<(), StoreError> {
        let server = self.outbound.observe().await?;
        let seen = seen_streams(&server, self.clock.now());
        if watch.saved.is_none() {
            let saved = self.load(&seen).await?;
            watch.known.clone_from(&saved);
            watch.saved = Some(saved);
        }
        if seen.iter().any(|(_, now)| find(&watch.known, now).is_some_and(|known| now.may_have_lost(known))) {
            let changed_at = *watch.changed_at.get_or_insert_with(Instant::now);
            if changed_at.elapsed() >= COMPARISON_DELAY {
                watch.failure = None;
                return self.reconcile_if_elected(watch, &seen, stop).await;
            }
            return Ok(());
        }
        (watch.changed_at, watch.reported, watch.failure) = (None, false, None);
        watch.known = seen.iter().map(|(_, now)| now.clone()).collect();
        let is_saved = |now: &SeenStream| {
            let saved = watch.saved.as_ref().and_then(|saved| find(saved, now));
            saved.is_some_and(|saved| SeenStream { seen_at: saved.seen_at, ..now.clone() } == *saved)
        };
        let is_early = watch.saved_at.is_some_and(|at| at.elapsed() < SAVE_INTERVAL);
        if is_early || seen.iter().all(|(_, now)| is_saved(now)) {
            return Ok(());
        }
        self.reconcile_if_elected(watch, &seen, stop).await
    }

    async fn load(&self, seen: &[(Channel, SeenStream)]) -> Result<Vec<SeenStream>, StoreError> {
        let streams: Vec<&str> = seen.iter().map(|(_, now)| now.stream.as_str()).collect();
        self.store.load_outbound_streams(&streams).await
    }

    /// The streams are saved under leadership only, so that no replica saves them while another compares.
    async fn reconcile_if_elected(
        &self,
        watch: &mut Watch,
        seen: &[(Channel, SeenStream)],
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let reconcile =
            |leadership: Leadership| async move { self.reconcile(watch, seen, &leadership.over).await };
        while_leading(&self.election, &self.health, stop, reconcile).await?.transpose().map(drop)
    }

    /// Compares what may have lost entries, and then saves the streams as they were seen before that.
    async fn reconcile(
        &self,
        watch: &mut Watch,
        seen: &[(Channel, SeenStream)],
        over: &CancellationToken,
    ) -> Result<(), StoreError> {
        let saved = self.load(seen).await?;
        let mut changes = Vec::new();
        for (channel, now) in seen {
            // If this server was saved, what was on the one before it has been compared.
            let of_server = |known: &&SeenStream| known.is_same_server(now);
            let formers = [find(&saved, now), find(&watch.known, now).filter(of_server)];
            let former = formers.into_iter().flatten().find(|former| now.may_have_lost(former));
            changes.extend(former.map(|former| Change { channel: *channel, former: former.clone(), now }));
        }
        if !changes.is_empty() && !self.compare(changes, watch, over).await? {
            // What delayed it may last longer than a pass.
            watch.changed_at = Some(Instant::now());
            return Ok(());
        }
        // The next leader may be comparing already.
        if over.is_cancelled() {
            return Ok(());
        }
        let seen: Vec<SeenStream> = seen.iter().map(|(_, now)| now.clone()).collect();
        self.store.save_outbound_streams(&seen).await?;
        *watch = Watch {
            saved: Some(seen.clone()),
            saved_at: Some(Instant::now()),
            known: seen,
            ..Watch::default()
        };
        Ok(())
    }
}

/// The passes of [`Republisher::run`].
struct RepublishLoop<'a, E, S, O, C> {
    republisher: &'a Republisher<E, S, O, C>,
    watch: Watch,
}

impl<E, S, O, C> Passes for RepublishLoop<'_, E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let (republisher, watch) = (self.republisher, &mut self.watch);
        match republisher.run_once(watch, stop).await {
            Err(error) => {
                // Publishers met the same failure: their completions need time again.
                watch.changed_at = watch.changed_at.map(|_| Instant::now());
                watch.failure = watch.changed_at.map(|_| error_chain(&error));
                Err(error)
            }
            // An observation that succeeds does not show that the comparison does.
            Ok(()) => Ok(match &watch.failure {
                Some(cause) => Pass::Blocked(cause.clone()),
                None => Pass::PauseFor(OBSERVE_INTERVAL),
            }),
        }
    }
}

/// The observation of each channel's stream.
fn seen_streams(server: &OutboundServer, now: Timestamp) -> Vec<(Channel, SeenStream)> {
    let seen = server.streams.iter().map(|(channel, stream, state)| {
        let seen = SeenStream {
            stream: stream.clone(),
            run_id: server.run_id.clone(),
            replication_id: server.replication_id.clone(),
            last_generated: state.map_or(EntryId::ZERO, |state| state.last_generated),
            seen_at: now,
        };
        (*channel, seen)
    });
    seen.collect()
}

fn find<'a>(streams: &'a [SeenStream], like: &SeenStream) -> Option<&'a SeenStream> {
    streams.iter().find(|seen| seen.stream == like.stream)
}

#[cfg(test)]
mod tests;
