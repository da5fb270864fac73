//! The main loop of a relay: passes, with pauses while nothing is due or a dependency is unavailable.

use std::sync::Arc;
use std::time::Duration;

use ambient::{
    Clock, Episode, Jitter, RandomJitter, RandomTokens, Recovery, SystemClock, Tokens, error_chain,
};
use pg::Dsn;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::background;
use super::loop_state::LoopState;
use super::pass::{Outage, PassEnd};
use super::wake::{self, AnnouncementSource, Wake};
use super::{RelayObserver, RelaySettings, RelayState, RelayStatus};
use crate::{ChannelName, EventTypes, Publisher, Storage};

/// The pause before the first retry after an outage; it doubles.
const OUTAGE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a retry after an outage.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The pause between retries of marks that failed.
pub(super) const MARK_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The time for which marks are retried after the stop.
const MAX_FLUSH_TIME: Duration = Duration::from_secs(20);

/// A relay that carries events from a storage to a publisher.
pub struct Relay<S, P, O> {
    pub(super) storage: S,
    pub(super) publisher: P,
    pub(super) observer: O,
    pub(super) settings: RelaySettings,
    /// The event types of which delivered events are compared with the publisher's entries.
    pub(super) compared: EventTypes,
    status: RelayStatus,
    outages: Episode,
    source: Option<AnnouncementSource>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) jitter: Arc<dyn Jitter>,
    pub(super) tokens: Arc<dyn Tokens>,
}

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Creates a relay that polls, with the system's clock and randomness.
    pub fn new(storage: S, publisher: P, observer: O, settings: RelaySettings) -> Self {
        // Relays with the same types share a record, in whatever order the types were given.
        let settings = RelaySettings { types: settings.types.sorted(), ..settings };
        Self {
            compared: settings.types.clone().intersection(publisher.event_types()).sorted(),
            storage,
            publisher,
            observer,
            settings,
            status: RelayStatus::default(),
            outages: Episode::default(),
            source: None,
            clock: Arc::new(SystemClock),
            jitter: Arc::new(RandomJitter),
            tokens: Arc::new(RandomTokens),
        }
    }

    /// Adds wake-ups by announcements on `channel`; while the relay listens, it polls less often. `dsn` must
    /// connect to the server itself: a pooler in transaction mode does not forward announcements.
    #[must_use]
    pub fn listening(self, dsn: Dsn, channel: ChannelName) -> Self {
        Self { source: Some(AnnouncementSource { dsn, channel }), ..self }
    }

    /// Replaces the sources of time and randomness.
    #[must_use]
    pub fn with_sources(
        self,
        clock: Arc<dyn Clock>,
        jitter: Arc<dyn Jitter>,
        tokens: Arc<dyn Tokens>,
    ) -> Self {
        Self { clock, jitter, tokens, ..self }
    }

    /// Returns the status, which changes while the relay runs.
    pub fn status(&self) -> RelayStatus {
        self.status.clone()
    }

    /// Runs until `stop`. Then the chunk that is being published ends, unpublished events are released, and
    /// all marks are made before it returns, provided that the storage responds within 20 s.
    pub async fn run(&self, stop: CancellationToken) {
        let wake = Wake::default();
        self.observer.state(&self.status.state());
        let listening = async {
            if let Some(source) = &self.source {
                wake::listen(source, &wake, &stop).await;
            }
        };
        tokio::join!(
            self.process(&wake, &stop),
            background::reap(&self.storage, &self.settings, &*self.jitter, &stop),
            background::sample(&self.storage, &self.settings, &self.observer, &stop),
            listening,
        );
    }

    async fn process(&self, wake: &Wake, stop: &CancellationToken) {
        let mut work = LoopState::new(Instant::now(), self.settings.batch_size);
        let mut outage_pause = OUTAGE_PAUSE_MIN;
        while !stop.is_cancelled() {
            let outcome = self.pass(&mut work, stop).await;
            match outcome {
                Ok(PassEnd::Busy) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                }
                Ok(PassEnd::Trying) => {}
                Ok(PassEnd::Idle { due_in }) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                    let time = self.idle_time(&work, wake, due_in);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = wake.announced() => work.looks_first = false,
                        () = sleep(time) => work.looks_first = true,
                    }
                }
                Err(outage) => {
                    self.paused(&outage);
                    // If cancelled, the loop ends.
                    let _: Option<()> = stop.run_until_cancelled(sleep(outage_pause)).await;
                    outage_pause = (outage_pause * 2).min(OUTAGE_PAUSE_MAX);
                }
            }
        }
        work.release_ahead();
        self.finish(&mut work).await;
    }

    fn idle_time(&self, work: &LoopState, wake: &Wake, due_in: Option<Duration>) -> Duration {
        let longest = wake.poll_interval(self.settings.poll_interval);
        let time = match due_in {
            None => longest,
            // The due event waits for something that is not announced.
            Some(Duration::ZERO) => self.settings.poll_interval,
            Some(due_in) => longest.min(due_in),
        };
        let time = work.comparing.continues_in().map_or(time, |continues_in| time.min(continues_in));
        if work.marks.is_empty() { time } else { time.min(MARK_RETRY_INTERVAL) }
    }

    /// Makes the remaining marks when the relay stops, records what is settled, and reports the events that
    /// an unfinished round made PENDING. The leases of events that are not marked in time are reaped.
    async fn finish(&self, work: &mut LoopState) {
        let finishing = async {
            while !work.marks.is_empty() {
                if let Err(error) = work.marks.flush(&self.storage, &self.observer).await {
                    self.paused(&error.into());
                }
                if !work.marks.is_empty() {
                    sleep(MARK_RETRY_INTERVAL).await;
                }
            }
            self.record_at_stop(work).await;
        };
        // Marks that time out are retried in halves, each of which may time out too. The relay stops even if
        // some marks are missing.
        let _: Result<(), Elapsed> = timeout(MAX_FLUSH_TIME, finishing).await;
        self.report_at_stop(work);
    }

    fn running(&self) {
        let Some(Recovery { times, lasted_ms }) = self.outages.recovered(Instant::now().into_std()) else {
            return;
        };
        let relay = self.settings.relay_id.as_str();
        tracing::info!(relay, times, lasted_ms, "outbox relay recovered");
        self.status.set(RelayState::Running);
        self.observer.state(&RelayState::Running);
    }

    fn paused(&self, outage: &Outage) {
        let error = error_chain(outage);
        let state = RelayState::Paused { waiting_for: error.clone() };
        let failure = self.outages.failed(Instant::now().into_std(), ());
        if failure.is_logged {
            tracing::warn!(
                relay = self.settings.relay_id.as_str(),
                error,
                times = failure.times,
                "outbox relay paused; it claims nothing until this is available again"
            );
        }
        if failure.times == 1 {
            self.observer.state(&state);
        }
        self.status.set(state);
    }
}

#[cfg(test)]
mod tests {
    use pg::{PgError, RawTimestamp};
    use uuid::Uuid;

    use super::super::chunk::Outcomes;
    use super::*;
    use crate::{
        BatchClaim, ClaimToken, ClaimedRows, Deadline, DeliveredCursor, DeliveredEvent, DeliveredPage, Event,
        EventTypes, FailedEvent, FailureKind, Marked, NewestCursor, NewestPage, OutboxError, Position,
        Progress, Publication, PublisherOutage, ReapRequest, Reaped, RelayId, RequeuedDelivered, Server,
        ServerRecord, Stats,
    };

    /// A storage whose statements are cancelled after 5 s, and a publisher that publishes nothing.
    #[derive(Clone, Copy)]
    struct Late {
        /// True if the publisher has lost an event, and only requeueing it times out.
        has_lost: bool,
    }

    const LATE: Late = Late { has_lost: false };
    /// The duration of an operation that halves batches that time out again and again.
    const HALVING: Duration = Duration::from_secs(3_600);

    async fn late<T>() -> Result<T, OutboxError> {
        sleep(Duration::from_secs(5)).await;
        let source = "canceling statement due to statement timeout".into();
        Err(PgError::TimedOut { operation: "mark events of the outbox", source }.into())
    }

    impl Storage for Late {
        async fn due_in(
            &self,
            _: &EventTypes,
            _: Option<&Position>,
        ) -> Result<Option<Duration>, OutboxError> {
            late().await
        }

        async fn claim_batch(&self, _: &BatchClaim) -> Result<ClaimedRows, OutboxError> {
            late().await
        }

        async fn first_claimable(&self, _: &BatchClaim) -> Result<Option<Uuid>, OutboxError> {
            late().await
        }

        async fn mark_delivered_batch(&self, _: &ClaimToken, _: &[Uuid]) -> Result<Vec<Marked>, OutboxError> {
            late().await
        }

        async fn mark_failed_batch(
            &self,
            _: &ClaimToken,
            _: &[FailedEvent],
        ) -> Result<Vec<Marked>, OutboxError> {
            late().await
        }

        async fn release_batch(&self, _: &ClaimToken, _: &[Uuid]) -> Result<Vec<Marked>, OutboxError> {
            late().await
        }

        async fn reap_expired_leases(
            &self,
            _: &ReapRequest,
            _: &(dyn Fn(u32) -> FailureKind + Send + Sync),
        ) -> Result<Reaped, OutboxError> {
            sleep(HALVING).await;
            late().await
        }

        async fn identity(&self) -> Result<String, OutboxError> {
            if self.has_lost { Ok("outbox".to_owned()) } else { late().await }
        }

        async fn now(&self) -> Result<RawTimestamp, OutboxError> {
            Ok(RawTimestamp::INFINITY)
        }

        async fn newest_delivered(
            &self,
            _: &EventTypes,
            _: Option<NewestCursor>,
        ) -> Result<NewestPage, OutboxError> {
            Ok(NewestPage { newest: None, next: None })
        }

        async fn list_delivered(
            &self,
            _: &EventTypes,
            _: RawTimestamp,
            _: Option<DeliveredCursor>,
            _: u32,
        ) -> Result<DeliveredPage, OutboxError> {
            let delivered_at = RawTimestamp::NEG_INFINITY;
            let event = DeliveredEvent { event_id: Uuid::nil(), event_type: "t".to_owned(), delivered_at };
            Ok(DeliveredPage { events: vec![event], next: None })
        }

        async fn requeue_delivered(&self, _: &[DeliveredEvent]) -> Result<RequeuedDelivered, OutboxError> {
            sleep(HALVING).await;
            late().await
        }

        async fn oldest_claim_until(&self, _: RawTimestamp) -> Result<Option<RawTimestamp>, OutboxError> {
            Ok(None)
        }

        async fn stats(&self, _: &EventTypes, _: u64) -> Result<Stats, OutboxError> {
            late().await
        }
    }

    impl Publisher for Late {
        async fn deadline(&self, _: Duration) -> Result<Deadline, PublisherOutage> {
            unreachable!("nothing is claimed")
        }

        async fn publish(&self, _: &[Event], _: Deadline) -> Result<Vec<Publication>, PublisherOutage> {
            unreachable!("nothing is claimed")
        }

        async fn server(&self, _: &str) -> Result<Server, PublisherOutage> {
            let progress = Progress::Unfinished { since: RawTimestamp::NEG_INFINITY, comparison: 1 };
            let unfinished =
                ServerRecord { types: EventTypes::All, is_own: true, marked_since: None, progress };
            let records = if self.has_lost { vec![unfinished] } else { Server::lasting().records };
            Ok(Server { records, ..Server::lasting() })
        }

        async fn has_markers(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, PublisherOutage> {
            Ok(vec![false; events.len()])
        }

        async fn has_entries(
            &self,
            events: &[DeliveredEvent],
            _: u64,
        ) -> Result<Option<Vec<bool>>, PublisherOutage> {
            Ok(Some(vec![false; events.len()]))
        }
    }

    // O-22
    #[tokio::test(start_paused = true)]
    async fn marks_that_are_all_late_delay_a_stop_by_20_s_and_not_by_their_lease() {
        let id = RelayId::parse("relay").expect("a name");
        let mut work = LoopState::new(Instant::now(), 1);
        let delivered = (1..=100).map(Uuid::from_u128).collect();
        let lease_end = Instant::now() + Duration::from_secs(60);
        work.marks.add(ClaimToken::new(&id, "1"), lease_end, Outcomes { delivered, ..Outcomes::default() });
        let begun = Instant::now();
        Relay::new(LATE, LATE, (), RelaySettings::new(id)).finish(&mut work).await;
        assert_eq!(begun.elapsed(), MAX_FLUSH_TIME);
    }

    // O-22
    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_neither_for_leases_that_are_being_reaped_nor_for_lost_events_that_are_being_requeued()
     {
        for stand_in in [LATE, Late { has_lost: true }] {
            let (stop, begun) = (CancellationToken::new(), Instant::now());
            let id = RelayId::parse("relay").expect("a name");
            let relay = Relay::new(stand_in, stand_in, (), RelaySettings::new(id));
            tokio::join!(relay.run(stop.clone()), async {
                sleep(Duration::from_secs(1)).await;
                stop.cancel();
            });
            assert_eq!(begun.elapsed(), Duration::from_secs(5), "the statements that were on their way");
        }
    }
}
