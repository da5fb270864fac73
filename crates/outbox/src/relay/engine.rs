//! The loop that publishes: claim, publish, mark.
//!
//! The order of a pass: the publisher's deadline is fixed first, then the claim is made, so that the publisher refuses before
//! the lease can be over; then the events are published, chunk by chunk; then they are marked. A crash in between leaves a
//! claim, which is reaped, and published events without a mark, which are published again unless the publisher keeps receipts.

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Jitter, RandomJitter, RandomTokens, SystemClock, Tokens, error_chain};
use pg::{Dsn, PgError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::background;
use super::chunk::{Judge, Outcomes, chunk_end};
use super::marks::Marks;
use super::scan::Scan;
use super::wake::{self, Source, Wake};
use super::{Observer, RelaySettings, RelayState, RelayStatus};
use crate::{
    ChannelName, ClaimRequest, ClaimToken, Deadline, Event, FailureKind, OutboxError, Publication, Publisher,
    PublisherOutage, Storage,
};

/// The part of a lease after which no further chunk is published.
const PUBLISHING_PART: f64 = 0.7;
/// Before the first try after an outage; it doubles.
const OUTAGE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Before any try after an outage.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Between two tries of marks that could not be made.
const MARK_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long marks are tried after the stop.
const MAX_FLUSH_TIME: Duration = Duration::from_secs(20);

/// Carries events from a storage to a publisher.
pub struct Relay<S, P, O> {
    storage: S,
    publisher: P,
    observer: O,
    settings: RelaySettings,
    status: RelayStatus,
    source: Option<Source>,
    clock: Arc<dyn Clock>,
    jitter: Arc<dyn Jitter>,
    tokens: Arc<dyn Tokens>,
}

/// Why nothing can be claimed at present.
#[derive(Debug, thiserror::Error)]
enum Outage {
    #[error(transparent)]
    Storage(#[from] OutboxError),
    #[error(transparent)]
    Publisher(#[from] PublisherOutage),
}

/// How a pass ended.
#[derive(Debug)]
enum Pass {
    /// There may be more at once.
    Busy,
    /// Nothing could be claimed. Zero if something is due all the same, else when the next event falls due.
    Idle { due_in: Option<Duration> },
}

/// What the loop remembers between passes.
struct Work {
    scan: Scan,
    marks: Marks,
    marks_tried: Instant,
    /// Whether the next pass looks for due events before it claims.
    looks_first: bool,
}

/// A claim that is being published.
struct Claimed {
    token: ClaimToken,
    begun: Instant,
    deadline: Deadline,
    events: Vec<Event>,
}

impl<S: Storage, P: Publisher, O: Observer> Relay<S, P, O> {
    /// A relay with the system's clock and randomness, which polls.
    pub fn new(storage: S, publisher: P, observer: O, settings: RelaySettings) -> Self {
        Self {
            storage,
            publisher,
            observer,
            settings,
            status: RelayStatus::default(),
            source: None,
            clock: Arc::new(SystemClock),
            jitter: Arc::new(RandomJitter),
            tokens: Arc::new(RandomTokens),
        }
    }

    /// It is also woken by announcements on `channel`, and polls less often while it listens. `dsn` must lead to the server
    /// itself: a pooler in transaction mode passes no announcements on.
    #[must_use]
    pub fn listening(self, dsn: Dsn, channel: ChannelName) -> Self {
        Self { source: Some(Source { dsn, channel }), ..self }
    }

    /// The same with other sources of time and randomness.
    #[must_use]
    pub fn with_sources(
        self,
        clock: Arc<dyn Clock>,
        jitter: Arc<dyn Jitter>,
        tokens: Arc<dyn Tokens>,
    ) -> Self {
        Self { clock, jitter, tokens, ..self }
    }

    /// What it does now; it changes while the relay runs.
    pub fn status(&self) -> RelayStatus {
        self.status.clone()
    }

    /// Works until `stop`. Then the chunk that is being published ends, what was not published is released, and all marks are
    /// made before it returns, as far as the storage answers within 20 s.
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
        let now = Instant::now();
        let mut work =
            Work { scan: Scan::new(now), marks: Marks::default(), marks_tried: now, looks_first: true };
        let mut outage_pause = OUTAGE_PAUSE_MIN;
        while !stop.is_cancelled() {
            let outcome = self.pass(&mut work, stop).await;
            match outcome {
                Ok(Pass::Busy) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                }
                Ok(Pass::Idle { due_in }) => {
                    self.running();
                    outage_pause = OUTAGE_PAUSE_MIN;
                    let time = self.idle_time(&work, wake, due_in);
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = wake.announced() => work.looks_first = false,
                        () = tokio::time::sleep(time) => work.looks_first = true,
                    }
                }
                Err(outage) => {
                    self.paused(&outage);
                    // Cancelled, the loop ends.
                    let _: Option<()> = stop.run_until_cancelled(tokio::time::sleep(outage_pause)).await;
                    outage_pause = (outage_pause * 2).min(OUTAGE_PAUSE_MAX);
                }
            }
        }
        self.flush(&mut work.marks).await;
    }

    fn idle_time(&self, work: &Work, wake: &Wake, due_in: Option<Duration>) -> Duration {
        let longest = wake.poll_interval(self.settings.poll_interval);
        let time = match due_in {
            None => longest,
            // What is due waits for something else, of which no announcement tells.
            Some(Duration::ZERO) => self.settings.poll_interval,
            Some(due_in) => longest.min(due_in),
        };
        if work.marks.is_empty() { time } else { time.min(MARK_RETRY_INTERVAL) }
    }

    /// Claims once and publishes what was claimed.
    async fn pass(&self, work: &mut Work, stop: &CancellationToken) -> Result<Pass, Outage> {
        if !work.marks.is_empty() && work.marks_tried.elapsed() >= MARK_RETRY_INTERVAL {
            self.make_marks(work).await?;
        }
        if work.marks.is_full() {
            return Ok(Pass::Idle { due_in: Some(Duration::ZERO) });
        }
        let begun = Instant::now();
        let deadline = self.publisher.deadline(self.settings.lease_timeout).await?;
        let after = work.scan.next(begun).copied();
        let types = &self.settings.types;
        if std::mem::take(&mut work.looks_first) {
            let due_in = self.storage.due_in(types, after.as_ref()).await?;
            if due_in != Some(Duration::ZERO) {
                work.scan.advance(Instant::now(), 0, None);
                return Ok(Pass::Idle { due_in });
            }
        }
        let request = self.request(after);
        let claim = match self.storage.claim_batch(&request).await {
            Err(OutboxError::Postgres(PgError::Locked { .. })) => {
                // Another relay is claiming, or the table is locked.
                return Ok(Pass::Idle { due_in: Some(Duration::ZERO) });
            }
            claim => claim?,
        };
        work.scan.advance(Instant::now(), claim.events.len(), claim.next);
        if !claim.events.is_empty() {
            self.observer.claimed(claim.events.len());
            let claimed = Claimed { token: request.token, begun, deadline, events: claim.events };
            self.carry(work, claimed, stop).await?;
            return Ok(Pass::Busy);
        }
        if claim.next.is_some() {
            return Ok(Pass::Busy);
        }
        let due_in = self.storage.due_in(types, work.scan.next(Instant::now())).await?;
        Ok(Pass::Idle { due_in })
    }

    fn request(&self, after: Option<crate::Position>) -> ClaimRequest {
        let nonce: String = self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect();
        ClaimRequest {
            token: ClaimToken::new(&self.settings.relay_id, &nonce),
            types: self.settings.types.clone(),
            after,
            limit: self.settings.batch_size,
            max_bytes: self.settings.max_claim_bytes,
            max_event_bytes: self.settings.max_event_bytes,
        }
    }

    /// Publishes the events of a claim, and marks them.
    async fn carry(&self, work: &mut Work, claimed: Claimed, stop: &CancellationToken) -> Result<(), Outage> {
        let (outcomes, outage) = self.publish(&claimed, stop).await;
        let has_failed = |id| claimed.events.iter().any(|event| event.event_id == id && event.attempts > 0);
        let dead = outcomes.failed.iter().filter(|failure| failure.kind == FailureKind::Dead);
        let frees_a_key = claimed.events.iter().any(|event| event.attempts > 0)
            && dead.map(|failure| failure.event_id).chain(outcomes.delivered.iter().copied()).any(has_failed);
        work.marks.add(claimed.token, claimed.begun + self.settings.lease_timeout, outcomes);
        self.make_marks(work).await?;
        if frees_a_key {
            work.scan.freed(Instant::now());
        }
        outage.map_or(Ok(()), Err)
    }

    /// Publishes chunk by chunk until the stop, an outage, or the end of the lease is near.
    async fn publish(&self, claimed: &Claimed, stop: &CancellationToken) -> (Outcomes, Option<Outage>) {
        let mut judge = Judge::new(self.settings.retry, &*self.jitter);
        let publish_until = claimed.begun + self.settings.lease_timeout.mul_f64(PUBLISHING_PART);
        let mut rest = &claimed.events[..];
        while !rest.is_empty() {
            if stop.is_cancelled() || Instant::now() >= publish_until {
                judge.release(rest);
                break;
            }
            let (chunk, later) = rest.split_at(chunk_end(rest));
            let publishable = judge.publishable(chunk);
            let publications = if publishable.is_empty() {
                Vec::new()
            } else {
                match self.publisher.publish(&publishable, claimed.deadline).await {
                    Ok(publications) => publications,
                    Err(outage) => {
                        judge.release(rest);
                        return (judge.outcomes, Some(outage.into()));
                    }
                }
            };
            self.observe(&publishable, &publications);
            judge.judge(chunk, publications);
            rest = later;
        }
        (judge.outcomes, None)
    }

    fn observe(&self, events: &[Event], publications: &[Publication]) {
        let now = self.clock.now();
        for (event, _) in
            events.iter().zip(publications).filter(|(_, publication)| **publication == Publication::Done)
        {
            if let Some(created_at) = event.created_at {
                self.observer.published(now.saturating_since(created_at));
            }
        }
    }

    async fn make_marks(&self, work: &mut Work) -> Result<(), OutboxError> {
        work.marks_tried = Instant::now();
        work.marks.flush(&self.storage, &self.observer).await
    }

    /// Makes the marks that are left when the relay stops.
    async fn flush(&self, marks: &mut Marks) {
        let begun = Instant::now();
        while !marks.is_empty() && begun.elapsed() < MAX_FLUSH_TIME {
            if let Err(error) = marks.flush(&self.storage, &self.observer).await {
                self.paused(&error.into());
            }
            if !marks.is_empty() {
                tokio::time::sleep(MARK_RETRY_INTERVAL).await;
            }
        }
    }

    fn running(&self) {
        if self.status.set(RelayState::Running) {
            tracing::info!(relay = self.settings.relay_id.as_str(), "outbox relay runs again");
            self.observer.state(&RelayState::Running);
        }
    }

    fn paused(&self, outage: &Outage) {
        let error = error_chain(outage);
        let state = RelayState::Paused { waiting_for: error.clone() };
        let was_running = self.status.state() == RelayState::Running;
        if self.status.set(state.clone()) && was_running {
            tracing::warn!(
                relay = self.settings.relay_id.as_str(),
                error,
                "outbox relay paused; it claims nothing until this is available again"
            );
            self.observer.state(&state);
        }
    }
}
