//! Comparing what is DELIVERED with what the publisher holds, when another server acknowledges than before.
//!
//! An acknowledgement belongs to the server that gave it: the next one may lack the newest of what was published. So no event is
//! claimed for a server before a comparison with it has begun, and the beginning is recorded with the server itself. What is lost
//! goes back to PENDING. A mark may be made after its event was looked for, so the comparison is repeated, and it is
//! over when no claim is held that was made before it began.
//!
//! | killed after | what is left | what happens next |
//! |---|---|---|
//! | another server took over | nothing is recorded with it | Each relay begins a comparison. |
//! | the beginning was recorded | its time | The next relay compares from that time on. |
//! | events were made PENDING | PENDING events | They are published. The next comparison passes them. |
//! | the last round | the record of the beginning | The next relay compares once more and finds nothing. |

use std::time::Duration;

use pg::{PgError, RawTimestamp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::engine::Relay;
use super::marks::list_ids;
use super::pass::{Outage, Work};
use crate::schema::fnv1a;
use crate::{
    ComparisonStart, DeliveredCursor, DeliveredEvent, EventTypes, Observer, OutboxError, Publisher, Server,
    ServerId, Storage,
};

/// Events that are listed together.
const PAGE_EVENTS: u32 = 1_000;
/// Events that are made PENDING together.
const REQUEUE_EVENTS: usize = 500;
/// How long nothing is claimed because of the first round, so that what is lost goes before what is new.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(10);
/// Between two rounds.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The most rounds, however long something is held.
const MAX_ROUNDS: u32 = 30;
/// The most lost events of a round that the table refuses one by one.
const MAX_REFUSED: usize = 100;
/// Between two pages beside the traffic.
const PAGE_PAUSE: Duration = Duration::from_millis(10);

/// A comparison that is not over.
#[derive(Debug)]
pub(super) struct Comparison {
    server: ServerId,
    /// Its `now` is when it began.
    start: ComparisonStart,
    /// Where the round continues.
    cursor: Option<DeliveredCursor>,
    limit: u32,
    tally: Tally,
    /// How many are complete.
    rounds: u32,
    /// When the next page is read.
    continues_at: Instant,
    claims_wait_until: Instant,
}

/// What a round found.
#[derive(Debug, Default)]
struct Tally {
    compared: usize,
    requeued: Vec<Uuid>,
    requeued_count: usize,
    /// Between these times.
    range: Option<(RawTimestamp, RawTimestamp)>,
    /// Lost, and locked by another transaction or changed meanwhile.
    held: usize,
    /// Lost, and refused by the table.
    refused: Vec<Uuid>,
}

impl Comparison {
    fn new(server: ServerId, start: ComparisonStart) -> Self {
        let now = Instant::now();
        Self {
            server,
            start,
            cursor: None,
            limit: PAGE_EVENTS,
            tally: Tally::default(),
            rounds: 0,
            continues_at: now,
            claims_wait_until: now + MAX_CLAIM_WAIT,
        }
    }

    /// How long until it continues.
    pub(super) fn continues_in(&self) -> Duration {
        self.continues_at.saturating_duration_since(Instant::now())
    }

    fn claims_wait(&self) -> bool {
        self.rounds == 0 && Instant::now() < self.claims_wait_until
    }

    /// The next round begins later.
    fn next_round(&mut self) {
        (self.cursor, self.tally) = (None, Tally::default());
        self.continues_at = Instant::now() + REPEAT_INTERVAL;
    }
}

impl<S: Storage, P: Publisher, O: Observer> Relay<S, P, O> {
    /// Begins a comparison if another server is there than the one that was compared last, and continues one that has begun: to the end of
    /// its first round, for as long as claims wait for that, and then by a page each time.
    pub(super) async fn compare(&self, work: &mut Work, stop: &CancellationToken) -> Result<(), Outage> {
        if self.settings.republish_window.is_zero() {
            return Ok(());
        }
        let outbox = match &work.outbox {
            Some(outbox) => outbox.clone(),
            None => {
                let name = outbox_name(&self.storage.identity().await?, &self.settings.types);
                work.outbox.insert(name).clone()
            }
        };
        let server = self.publisher.server(&outbox).await?;
        // A server that was emptied meanwhile has lost its record, too.
        let is_recorded = server.is_compared || server.unfinished_since.is_some();
        let is_known = match &work.comparison {
            Some(comparison) => comparison.server == server.id && is_recorded,
            None => server.is_compared,
        };
        if !is_known {
            self.begin_comparison(work, &outbox, server).await?;
        }
        while let Some(comparison) = &mut work.comparison {
            if stop.is_cancelled() || comparison.continues_in() > Duration::ZERO {
                break;
            }
            if self.compare_page(comparison).await? && self.end_round(comparison, &outbox).await? {
                work.comparison = None;
            } else if !comparison.claims_wait() {
                comparison.continues_at = comparison.continues_at.max(Instant::now() + PAGE_PAUSE);
            }
        }
        Ok(())
    }

    /// The newest mark may be a lease younger than its acknowledgement.
    fn compared_window(&self) -> Duration {
        self.settings.republish_window + self.settings.lease_timeout
    }

    async fn begin_comparison(&self, work: &mut Work, outbox: &str, server: Server) -> Result<(), Outage> {
        let mut start = self.storage.comparison_start(self.compared_window()).await?;
        // What the server before acknowledged is marked, and compared with the rest.
        self.make_marks(work).await?;
        let before = work.comparison.as_ref().map(|comparison| comparison.start.since);
        for since in [before, server.unfinished_since].into_iter().flatten() {
            start.since = start.since.min(since);
        }
        self.publisher.record_server(outbox, server.id, Some(start.since)).await?;
        tracing::info!(
            relay = self.settings.relay_id.as_str(),
            delivered_since = shown(start.since),
            "another server acknowledges outbox events, which may lack some of them: comparing"
        );
        work.comparison = Some(Comparison::new(server.id, start));
        Ok(())
    }

    /// One page; true if it was the last of its round.
    async fn compare_page(&self, comparison: &mut Comparison) -> Result<bool, Outage> {
        let Comparison { start, cursor, limit, tally, .. } = comparison;
        let listed = self.storage.list_delivered(&self.settings.types, start.since, *cursor, *limit).await;
        let page = match listed {
            Err(OutboxError::Postgres(PgError::TimedOut { .. })) if *limit > 1 => {
                *limit /= 2;
                return Ok(false);
            }
            page => page?,
        };
        let found = self.publisher.find(&page.events).await?;
        tally.compared += page.events.len();
        let lost = page.events.into_iter().zip(found).filter(|(_, found)| !found).map(|(event, _)| event);
        let lost: Vec<DeliveredEvent> = lost.collect();
        for chunk in lost.chunks(REQUEUE_EVENTS) {
            self.requeue(chunk, tally).await?;
        }
        *cursor = page.next;
        Ok(cursor.is_none())
    }

    /// Makes lost events PENDING, in halves where the table refuses some.
    async fn requeue(&self, lost: &[DeliveredEvent], tally: &mut Tally) -> Result<(), Outage> {
        let mut parts = vec![lost];
        while let Some(part) = parts.pop() {
            let error = match self.storage.requeue_delivered(part).await {
                Ok(requeued) => {
                    tally.held += part.len() - requeued.len();
                    tally.requeued(part, requeued);
                    continue;
                }
                Err(error) => error,
            };
            match (error.is_about_rows(), part) {
                // A table that refuses so many refuses the others, too.
                (true, _) if tally.refused.len() >= MAX_REFUSED => tally.held += part.len(),
                (true, [event]) => tally.refused.push(event.event_id),
                (true, [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                _ => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reports a round; true if it was the last.
    async fn end_round(&self, comparison: &mut Comparison, outbox: &str) -> Result<bool, Outage> {
        let is_held = self.storage.has_claims_until(comparison.start.now).await?;
        let is_unsettled = is_held || comparison.tally.held > 0;
        let is_last = comparison.rounds > 0 && (!is_unsettled || comparison.rounds + 1 >= MAX_ROUNDS);
        let unfinished_since = (!is_last).then(|| {
            // What is marked from now on was delivered after the comparison began, or in a transaction that began not long before. So
            // servers that replace each other quickly do not make the comparison longer each time.
            comparison.start.since.max(earlier(comparison.start.now, self.compared_window()))
        });
        self.publisher.record_server(outbox, comparison.server, unfinished_since).await?;
        comparison.start.since = unfinished_since.unwrap_or(comparison.start.since);
        comparison.rounds += 1;
        self.report(&comparison.tally, is_last && is_unsettled);
        comparison.next_round();
        Ok(is_last)
    }

    fn report(&self, tally: &Tally, is_given_up: bool) {
        let relay = self.settings.relay_id.as_str();
        if let Some((first, last)) = tally.range {
            self.observer.requeued(tally.requeued_count);
            tracing::warn!(
                relay,
                events = tally.requeued_count,
                event_ids = %list_ids(tally.requeued.iter().copied()),
                first_delivered_at = shown(first),
                last_delivered_at = shown(last),
                "delivered outbox events were lost by their server; they are PENDING again"
            );
        }
        if !tally.refused.is_empty() {
            tracing::error!(
                relay,
                events = tally.refused.len(),
                event_ids = %list_ids(tally.refused.iter().copied()),
                "delivered outbox events were lost by their server, and their table refuses to make them PENDING; requeue them by hand"
            );
        }
        if is_given_up {
            tracing::error!(
                relay,
                events = tally.held,
                "events or claims of the outbox were held by other transactions for too long to be compared; look at delivered events by hand"
            );
        }
        tracing::info!(
            relay,
            compared = tally.compared,
            requeued = tally.requeued_count,
            held = tally.held,
            "delivered outbox events were compared with what their server holds"
        );
    }
}

impl Tally {
    fn requeued(&mut self, part: &[DeliveredEvent], requeued: Vec<Uuid>) {
        for event in part.iter().filter(|event| requeued.contains(&event.event_id)) {
            let (first, last) = self.range.unwrap_or((event.delivered_at, event.delivered_at));
            self.range = Some((first.min(event.delivered_at), last.max(event.delivered_at)));
        }
        self.requeued_count += requeued.len();
        if self.requeued.len() < REQUEUE_EVENTS {
            self.requeued.extend(requeued);
        }
    }
}

/// The name under which a server is recorded: relays that carry other types compare other events.
fn outbox_name(identity: &str, types: &EventTypes) -> String {
    match types {
        EventTypes::All => identity.to_owned(),
        EventTypes::Only(names) => {
            let mut names = names.clone();
            names.sort();
            format!("{identity}/{:016x}", fnv1a(&names.join(",")))
        }
    }
}

fn earlier(time: RawTimestamp, by: Duration) -> RawTimestamp {
    let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
    RawTimestamp::from_server_micros(time.as_server_micros().saturating_sub(by))
}

fn shown(time: RawTimestamp) -> String {
    time.timestamp().map_or_else(|| "beyond all times".to_owned(), |time| time.to_string())
}
