//! Live routes → leases → appends with receipts → completions in SQL, for one channel.
//!
//! What is left when this dies, step by step: a lease won is a key that runs out by itself; an append leaves its receipt
//! in the place of the lease, and whoever tries the route next finds it and completes without appending; a completion
//! is the end. A reply that was lost is asked for again under the same token, and the answer is what happened. A
//! completion that cannot be committed is kept, its receipts are kept alive, and nothing else of the channel is begun.
//!
//! Work comes from two sides: parcels of routes that this replica has just accepted, and the scan for whatever is due:
//! retries, what the hand-over could not take, and what a dead replica left. Replicas take turns at the scan, page by page.

mod chunk;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ambient::{Clock, Jitter, Timestamp, Tokens};
use domain::backoff::Backoff;
use domain::dead_letter::PAYLOAD_ENCODING_FAILED;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Append, DueCursor, Failed, Lease, LeaseStore, LeaseToken, Outbound, Published, RouteStore, StoreError,
    Swap, error_chain,
};
use domain::route::{AfterFailure, Channel, LiveRoute, RouteKey};
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::handover::{Inbox, PARCEL_ROUTES, Parcel, Stalled};
use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{Trouble, pause};

/// The most that goes into one append.
const CHUNK_BYTES: usize = 1024 * 1024;
/// With nothing due, how long until the scan looks again for what others may have left.
const IDLE_LOOK: Duration = Duration::from_secs(5);
/// How long a replica has the due routes of a channel to itself, unless it is done with its page before: if it dies, the
/// others wait no longer.
const TURN: Duration = Duration::from_secs(1);
/// How soon a replica asks again for the turn that another has.
const TURN_LOOK: Duration = Duration::from_millis(50);
/// The most rows that are remembered as reported.
const REPORTED_MAX: usize = 1_000;
/// How many chunks of a channel go out together, so that Redis appends one while PostgreSQL completes the other.
const TOGETHER: usize = 2;
/// While there is a backlog, this many chunks of routes that were accepted just now go before each page of it.
const FRESH_FIRST: usize = 8;
/// How long after the stop what is in hand may still be published; the rest is found by the next publisher.
const DRAIN: Duration = Duration::from_secs(5);

/// What publishing is told by configuration.
#[derive(Clone, Copy, Debug)]
pub struct PublishSettings {
    /// The most routes in one append.
    pub batch_size: usize,
    /// How soon the scan looks again while there are due routes that it could not take.
    pub poll_interval: Duration,
    /// How long a lease lives.
    pub lease_ttl: Duration,
    /// How long a receipt lives.
    pub dedupe_ttl: Duration,
    /// Between attempts.
    pub backoff: Backoff,
}

/// The loop that publishes the routes of one channel.
#[derive(Debug)]
pub struct RoutePublisher<R, L, O, C, J, T> {
    /// Its channel.
    pub channel: Channel,
    /// The state of routes.
    pub routes: R,
    /// Exclusivity and receipts.
    pub leases: L,
    /// The streams.
    pub outbound: O,
    /// The time.
    pub clock: C,
    /// The spread of retries.
    pub jitter: J,
    /// Lease tokens.
    pub tokens: T,
    /// Bounds and times.
    pub settings: PublishSettings,
    /// What is counted.
    pub metrics: Metrics,
    /// How the loop stands.
    pub status: Status,
}

/// Where the scan is, and when it goes on.
struct Scan {
    cursor: Option<DueCursor>,
    at: Instant,
    /// What was said of rows that cannot be read or completed.
    reported: HashSet<String>,
}

impl Scan {
    fn go_on(&mut self, at: Instant, cursor: Option<DueCursor>) {
        (self.at, self.cursor) = (at, cursor);
    }

    fn no_later_than(&mut self, at: Instant) {
        self.at = self.at.min(at);
    }

    /// Whether `trouble` has not been said before.
    fn is_news(&mut self, trouble: &str) -> bool {
        if self.reported.len() >= REPORTED_MAX {
            self.reported.clear();
        }
        self.reported.insert(trouble.to_owned())
    }
}

/// The service stops; whatever was in hand is found by the next publisher.
#[derive(PartialEq, Eq)]
struct Stopped;

/// What the chunks that are on their way share.
struct Desk {
    scan: Mutex<Scan>,
    trouble: Mutex<Trouble>,
    stalled: Stalled,
    stop: CancellationToken,
}

impl Desk {
    fn new(channel: Channel, stalled: Stalled, stop: CancellationToken) -> Self {
        let scan = Scan { cursor: None, at: Instant::now(), reported: HashSet::new() };
        Self { scan: Mutex::new(scan), trouble: Mutex::new(Trouble::new(channel.as_str())), stalled, stop }
    }

    // Nothing panics while either is held.
    fn scan(&self) -> MutexGuard<'_, Scan> {
        self.scan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R, L, O, C, J, T> RoutePublisher<R, L, O, C, J, T>
where
    R: RouteStore,
    L: LeaseStore,
    O: Outbound,
    C: Clock,
    J: Jitter,
    T: Tokens,
{
    /// Runs until `stop`. What has been handed over by then is still published, if the stores let it and within five seconds:
    /// intake stops first.
    pub async fn run(self, inbox: Inbox, stop: CancellationToken) {
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = self.work(inbox, &stop) => {}
            () = too_late => {
                let channel = self.channel.as_str();
                tracing::warn!(channel, "publishing was broken off: the next publisher goes on with what is left");
            }
        }
    }

    async fn work(&self, inbox: Inbox, stop: &CancellationToken) {
        let Inbox { mut parcels, stalled } = inbox;
        let desk = Desk::new(self.channel, stalled, stop.clone());
        let mut fresh = 0;
        while !stop.is_cancelled() {
            // Behind a backlog, what has just been accepted goes first, but not for ever.
            if desk.scan().at <= Instant::now() && (fresh >= FRESH_FIRST || parcels.is_empty()) {
                fresh = 0;
                match self.scan_once(&desk).await {
                    Ok(()) => self.status.passed(),
                    Err(error) => self.stall(&desk, &error).await,
                }
            }
            let wake = tokio::time::Instant::from_std(desk.scan().at);
            let parcel = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                parcel = parcels.recv() => parcel,
                () = tokio::time::sleep_until(wake) => continue,
            };
            // The sending side lives in the intake; when that ends, the service stops.
            let Some(parcel) = parcel else {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep_until(wake) => continue,
                }
            };
            let together = merge(parcel, &mut parcels, self.settings.batch_size);
            fresh += together.len();
            let published = join_all(together.into_iter().map(|parcel| self.publish(parcel, &desk))).await;
            if published.contains(&Err(Stopped)) {
                return;
            }
            self.status.passed();
        }
        while let Ok(parcel) = parcels.try_recv() {
            if self.publish(parcel, &desk).await.is_err() {
                return;
            }
        }
    }

    /// One page of due routes, if it is this replica's turn, and when to look again.
    async fn scan_once(&self, desk: &Desk) -> Result<(), StoreError> {
        let now = self.clock.now();
        let started = Instant::now();
        let begins = desk.scan().cursor.is_none();
        if begins {
            let due = self.routes.next_due().await?.get(&self.channel).copied();
            let wait = due.map_or(self.idle_look(), |due| due.saturating_since(now)).min(self.idle_look());
            if !wait.is_zero() {
                desk.scan().at = started + wait;
                self.works(desk);
                return Ok(());
            }
        }
        // Two replicas that read the same page would ask for the same leases, and one of them in vain.
        let turn = self.token();
        if !self.leases.take_turn(self.channel, &turn, TURN).await? {
            desk.scan().at = started + TURN_LOOK;
            self.works(desk);
            return Ok(());
        }
        let scanned = self.publish_page(desk, now).await;
        if let Err(error) = self.leases.end_turn(self.channel, &turn).await {
            tracing::debug!(error = error_chain(&error), "a turn was not ended and runs out by itself");
        }
        scanned
    }

    /// Reads one page of due routes and publishes it.
    async fn publish_page(&self, desk: &Desk, now: Timestamp) -> Result<(), StoreError> {
        let started = Instant::now();
        let limit = self.settings.batch_size;
        let cursor = desk.scan().cursor.clone();
        let page = self.routes.list_due_routes(self.channel, now, cursor.as_ref(), limit).await?;
        self.report_corrupt(desk, &page.corrupt);
        // A page that was not full was the last: from the beginning again, but not at once, because what is still due
        // is in somebody else's hands or waits for this interval. Rows that cannot be read are in no hurry at all.
        let at = match &page.next {
            Some(_) => started,
            None if page.routes.is_empty() => started + self.idle_look(),
            None => started + self.settings.poll_interval,
        };
        desk.scan().go_on(at, page.next);
        self.works(desk);
        if !page.routes.is_empty() {
            let parcel = Parcel { routes: page.routes, read_at: started };
            // Stopped: the loop above sees it, too.
            if self.publish(parcel, desk).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Another replica's new routes are due one lease TTL after their acceptance: looking that often finds them in time.
    fn idle_look(&self) -> Duration {
        IDLE_LOOK.min(self.settings.lease_ttl)
    }

    /// Says of each row that cannot be read that it cannot, once.
    fn report_corrupt(&self, desk: &Desk, corrupt: &[StoreError]) {
        for error in corrupt.iter().map(|error| error_chain(error)) {
            if desk.scan().is_news(&error) {
                let channel = self.channel.as_str();
                tracing::error!(
                    channel,
                    error,
                    "a route cannot be read and waits until somebody mends the row"
                );
            }
        }
    }

    fn token(&self) -> LeaseToken {
        LeaseToken(self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn works(&self, desk: &Desk) {
        desk.trouble().clear();
        desk.stalled.set(false);
        self.status.passed();
    }

    /// A store does not serve: says so, lets the other channels go on without this one, and waits.
    async fn stall(&self, desk: &Desk, error: &StoreError) {
        desk.stalled.set(true);
        self.status.fails(&error_chain(error));
        let wait = desk.trouble().note(error);
        pause(&desk.stop, wait).await;
    }
}

/// The parcel and what else is waiting, in as few full chunks as may go out together: a burst of small batches is published
/// as a few large ones. Nothing is waited for.
fn merge(first: Parcel, waiting: &mut mpsc::Receiver<Parcel>, batch_size: usize) -> Vec<Parcel> {
    let mut parcels = vec![first];
    while let Some(last) = parcels.last_mut() {
        let has_room = last.routes.len() + PARCEL_ROUTES <= batch_size;
        if !has_room && parcels.len() >= TOGETHER {
            break;
        }
        let Ok(next) = waiting.try_recv() else { break };
        match parcels.last_mut() {
            Some(last) if has_room => {
                last.read_at = last.read_at.min(next.read_at);
                last.routes.extend(next.routes);
            }
            _ => parcels.push(next),
        }
    }
    parcels
}

#[cfg(test)]
mod tests;
