//! Live routes → leases → appends with receipts → completions in SQL, for one channel.
//!
//! What is left when this dies, step by step: a lease won is a key that runs out by itself; an append leaves its receipt
//! in the place of the lease, and whoever tries the route next finds it and completes without appending; a completion
//! is the end. A reply that was lost is asked for again under the same token, and the answer is what happened. A
//! completion that cannot be committed is kept, its receipts are kept alive, and nothing else of the channel is begun.
//!
//! Work comes from two sides: parcels of routes that this replica has just accepted, and the scan for whatever is due:
//! retries, what the hand-over could not take, and what a dead replica left.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::{Duration, Instant};

use ambient::{Clock, Jitter, Timestamp, Tokens};
use domain::backoff::Backoff;
use domain::dead_letter::PAYLOAD_ENCODING_FAILED;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Append, DueCursor, Failed, Lease, LeaseStore, LeaseToken, Outbound, Published, RouteStore, StoreError,
    Swap,
};
use domain::route::{AfterFailure, Channel, LiveRoute, RouteKey};
use tokio_util::sync::CancellationToken;

use crate::handover::{Inbox, Parcel};
use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{Trouble, error_chain, pause};

/// The most that goes into one append.
const CHUNK_BYTES: usize = 1024 * 1024;
/// With nothing due, how long until the scan looks again for what others may have left.
const IDLE_LOOK: Duration = Duration::from_secs(5);
/// The most rows that are remembered as reported.
const REPORTED_MAX: usize = 1_000;
/// A route that was read longer ago than the dedupe TTL less this is read again before it is appended.
const REREAD_MARGIN: Duration = Duration::from_secs(10);

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
    /// The rows that could not be read and were reported.
    reported: HashSet<String>,
}

impl Scan {
    fn no_later_than(&mut self, at: Instant) {
        self.at = self.at.min(at);
    }
}

/// One pass over one chunk: what is known of each route so far.
struct Chunk {
    token: LeaseToken,
    published: Vec<Published>,
    failed: Vec<Failed>,
}

/// The service stops; whatever was in hand is found by the next publisher.
struct Stopped;

impl<R, L, O, C, J, T> RoutePublisher<R, L, O, C, J, T>
where
    R: RouteStore,
    L: LeaseStore,
    O: Outbound,
    C: Clock,
    J: Jitter,
    T: Tokens,
{
    /// Runs until `stop`. What has been handed over by then is still published, if the stores let it: intake stops first.
    pub async fn run(self, mut inbox: Inbox, stop: CancellationToken) {
        let mut trouble = Trouble::new(self.channel.as_str());
        let mut scan = Scan { cursor: None, at: Instant::now(), reported: HashSet::new() };
        while !stop.is_cancelled() {
            if scan.at <= Instant::now() {
                match self.scan_once(&mut scan, &inbox, &mut trouble, &stop).await {
                    Ok(()) => self.status.passed(),
                    Err(error) => self.stall(&inbox, &mut trouble, &stop, &error).await,
                }
            }
            let wake = tokio::time::Instant::from_std(scan.at);
            let parcel = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                parcel = inbox.parcels.recv() => parcel,
                () = tokio::time::sleep_until(wake) => continue,
            };
            // The sending side lives in the intake; when that ends, the service stops.
            let Some(parcel) = parcel else {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep_until(wake) => continue,
                }
            };
            for parcel in merge(parcel, &mut inbox, self.settings.batch_size) {
                if self.publish(parcel, &mut scan, &inbox, &mut trouble, &stop).await.is_err() {
                    return;
                }
            }
            self.status.passed();
        }
        while let Ok(parcel) = inbox.parcels.try_recv() {
            if self.publish(parcel, &mut scan, &inbox, &mut trouble, &stop).await.is_err() {
                return;
            }
        }
    }

    /// One page of due routes, and when to look again.
    async fn scan_once(
        &self,
        scan: &mut Scan,
        inbox: &Inbox,
        trouble: &mut Trouble,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let started = Instant::now();
        if scan.cursor.is_none() {
            let due = self.routes.next_due().await?.get(&self.channel).copied();
            let wait = due.map_or(self.idle_look(), |due| due.saturating_since(now)).min(self.idle_look());
            if !wait.is_zero() {
                scan.at = started + wait;
                self.works(inbox, trouble);
                return Ok(());
            }
        }
        let limit = self.settings.batch_size;
        let page = self.routes.list_due_routes(self.channel, now, scan.cursor.as_ref(), limit).await?;
        self.report_corrupt(scan, &page.corrupt);
        // A page that was not full was the last: from the beginning again, but not at once, because what is still due
        // is in somebody else's hands or waits for this interval. Rows that cannot be read are in no hurry at all.
        scan.at = match &page.next {
            Some(_) => started,
            None if page.routes.is_empty() => started + self.idle_look(),
            None => started + self.settings.poll_interval,
        };
        scan.cursor = page.next;
        self.works(inbox, trouble);
        if !page.routes.is_empty() {
            let parcel = Parcel { routes: page.routes, read_at: started };
            // Stopped: the loop above sees it, too.
            if self.publish(parcel, scan, inbox, trouble, stop).await.is_err() {
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
    fn report_corrupt(&self, scan: &mut Scan, corrupt: &[StoreError]) {
        for error in corrupt.iter().map(|error| error_chain(error)) {
            if scan.reported.len() >= REPORTED_MAX {
                scan.reported.clear();
            }
            if scan.reported.insert(error.clone()) {
                let channel = self.channel.as_str();
                tracing::error!(
                    channel,
                    error,
                    "a route cannot be read and waits until somebody mends the row"
                );
            }
        }
    }

    fn works(&self, inbox: &Inbox, trouble: &mut Trouble) {
        trouble.clear();
        inbox.set_stalled(false);
        self.status.passed();
    }

    /// A store does not serve: says so, lets the other channels go on without this one, and waits.
    async fn stall(
        &self,
        inbox: &Inbox,
        trouble: &mut Trouble,
        stop: &CancellationToken,
        error: &StoreError,
    ) {
        inbox.set_stalled(true);
        self.status.fails(&error_chain(error));
        let wait = trouble.note(error);
        pause(stop, wait).await;
    }

    async fn publish(
        &self,
        parcel: Parcel,
        scan: &mut Scan,
        inbox: &Inbox,
        trouble: &mut Trouble,
        stop: &CancellationToken,
    ) -> Result<(), Stopped> {
        let mut context = Context { inbox, trouble, stop };
        let mut routes = parcel.routes.into_iter().peekable();
        while routes.peek().is_some() {
            let mut chunk = Chunk { token: self.token(), published: Vec::new(), failed: Vec::new() };
            let mut entries: Vec<(LiveRoute, OutboundEntry)> = Vec::new();
            let mut bytes = 0;
            while let Some(route) = routes.peek() {
                let encoded = outbound::encode(route);
                let size = encoded.as_ref().map_or(0, OutboundEntry::size);
                if entries.len() + chunk.failed.len() >= self.settings.batch_size
                    || (bytes > 0 && bytes + size > CHUNK_BYTES)
                {
                    break;
                }
                bytes += size;
                // Cannot fail: it was just peeked at.
                let route = routes.next().expect("the route is there");
                match encoded {
                    Ok(entry) => entries.push((route, entry)),
                    Err(error) => {
                        let failed = self.failed(&route, PAYLOAD_ENCODING_FAILED, error.to_string());
                        chunk.failed.push(failed);
                    }
                }
            }
            self.publish_chunk(entries, parcel.read_at, chunk, scan, &mut context).await?;
        }
        Ok(())
    }

    #[tracing::instrument(target = "notification::spans", level = "info", name = "publish", skip_all,
        fields(channel = self.channel.as_str(), routes = entries.len()))]
    async fn publish_chunk(
        &self,
        entries: Vec<(LiveRoute, OutboundEntry)>,
        read_at: Instant,
        mut chunk: Chunk,
        scan: &mut Scan,
        context: &mut Context<'_>,
    ) -> Result<(), Stopped> {
        let mut won = self.win_leases(entries, &mut chunk, context).await?;
        // Its receipt could have run out since the route was read, so ask again whether it is still to be done.
        if read_at.elapsed() + REREAD_MARGIN.min(self.settings.dedupe_ttl / 2) > self.settings.dedupe_ttl {
            won = self.read_again(won, &chunk, context).await?;
        }
        self.append(won, &mut chunk, context).await?;
        let retry_at = chunk.failed.iter().filter_map(|failed| failed.retry_at).min();
        self.complete(chunk, context).await?;
        if let Some(at) = retry_at {
            scan.no_later_than(Instant::now() + at.saturating_since(self.clock.now()));
        }
        Ok(())
    }

    /// Takes the leases of a chunk. Those that somebody else holds are left to them; a receipt is as good as an append.
    async fn win_leases(
        &self,
        entries: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &mut Chunk,
        context: &mut Context<'_>,
    ) -> Result<Vec<(LiveRoute, OutboundEntry)>, Stopped> {
        if entries.is_empty() {
            return Ok(entries);
        }
        let keys: Vec<RouteKey> = entries.iter().map(|(route, _)| route.key.clone()).collect();
        let token = chunk.token.clone();
        let leases = self
            .persist(context, || self.leases.acquire_leases(&keys, &token, self.settings.lease_ttl))
            .await?;
        let mut won = Vec::with_capacity(entries.len());
        let mut held = 0;
        for ((route, entry), lease) in entries.into_iter().zip(leases) {
            match lease {
                Lease::Won => won.push((route, entry)),
                Lease::Held => held += 1,
                Lease::Published(entry_id) => chunk.published.push(published(&route, entry_id)),
            }
        }
        self.metrics.contended(self.channel, held);
        self.status.asked_for_leases(keys.len(), held);
        Ok(won)
    }

    /// Keeps of the routes those that are still live, at their present version.
    async fn read_again(
        &self,
        won: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &Chunk,
        context: &mut Context<'_>,
    ) -> Result<Vec<(LiveRoute, OutboundEntry)>, Stopped> {
        let keys: Vec<RouteKey> = won.iter().map(|(route, _)| route.key.clone()).collect();
        let page = self.persist(context, || self.routes.get_live_routes(&keys)).await?;
        let mut now: HashMap<RouteKey, LiveRoute> =
            page.routes.into_iter().map(|route| (route.key.clone(), route)).collect();
        let (fresh, gone): (Vec<_>, Vec<_>) =
            won.into_iter().partition(|(route, _)| now.contains_key(&route.key));
        self.release(gone.iter().map(|(route, _)| route.key.clone()).collect(), &chunk.token).await;
        let fresh = fresh.into_iter().filter_map(|(route, _)| now.remove(&route.key));
        Ok(fresh.filter_map(|route| outbound::encode(&route).ok().map(|entry| (route, entry))).collect())
    }

    /// Appends what was won. What Redis is in no state to append is tried again, under the same token.
    async fn append(
        &self,
        won: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &mut Chunk,
        context: &mut Context<'_>,
    ) -> Result<(), Stopped> {
        let mut routes: HashMap<RouteKey, LiveRoute> = HashMap::with_capacity(won.len());
        let mut entries: Vec<(RouteKey, OutboundEntry)> = Vec::with_capacity(won.len());
        for (route, entry) in won {
            entries.push((route.key.clone(), entry));
            routes.insert(route.key.clone(), route);
        }
        while !entries.is_empty() {
            let token = chunk.token.clone();
            let appends = self
                .persist(context, || {
                    self.outbound.append(self.channel, &entries, &token, self.settings.dedupe_ttl)
                })
                .await?;
            let now = self.clock.now();
            let mut again = Vec::new();
            let mut outage = None;
            let mut lost = 0;
            for ((key, entry), append) in entries.into_iter().zip(appends) {
                let route = &routes[&key];
                match append {
                    Append::Done(entry_id) => {
                        let latency = now.saturating_since(route.content.accepted_at);
                        self.metrics.published_after(self.channel, latency);
                        chunk.published.push(published(route, entry_id));
                    }
                    Append::LeaseLost => lost += 1,
                    Append::Refused(message) => {
                        chunk.failed.push(self.failed(route, self.channel.publish_failed(), message));
                    }
                    Append::Outage(message) => {
                        outage = Some(message);
                        again.push((key, entry));
                    }
                }
            }
            self.metrics.attempts(self.channel, "lease_lost", lost);
            entries = again;
            if let Some(message) = outage {
                let error = StoreError::Unavailable {
                    operation: "append to the outbound stream",
                    source: message.into(),
                };
                self.stall(context.inbox, context.trouble, context.stop, &error).await;
                if context.stop.is_cancelled() {
                    return Err(Stopped);
                }
            }
        }
        Ok(())
    }

    /// Writes down in SQL what happened, however long that takes.
    async fn complete(&self, chunk: Chunk, context: &mut Context<'_>) -> Result<(), Stopped> {
        let now = self.clock.now();
        if !chunk.published.is_empty() {
            let swaps = self.complete_published(&chunk.published, now, context).await?;
            self.metrics.attempts(self.channel, "published", count(&swaps, Swap::Applied));
            self.metrics.conflicts(self.channel, count(&swaps, Swap::Conflict));
        }
        if !chunk.failed.is_empty() {
            let swaps =
                self.persist(context, || self.routes.complete_routes_failed(&chunk.failed, now)).await?;
            self.report_failures(&chunk.failed, &swaps);
            self.release(chunk.failed.into_iter().map(|failed| failed.key).collect(), &chunk.token).await;
        }
        Ok(())
    }

    /// While the completions cannot be committed, their receipts must not run out.
    async fn complete_published(
        &self,
        published: &[Published],
        now: Timestamp,
        context: &mut Context<'_>,
    ) -> Result<Vec<Swap>, Stopped> {
        let mut receipts_renewed = Instant::now();
        loop {
            match self.routes.complete_routes_published(published, now).await {
                Ok(swaps) => {
                    self.works(context.inbox, context.trouble);
                    return Ok(swaps);
                }
                Err(error) => self.stall(context.inbox, context.trouble, context.stop, &error).await,
            }
            if context.stop.is_cancelled() {
                return Err(Stopped);
            }
            if receipts_renewed.elapsed() > self.settings.dedupe_ttl / 3 {
                let receipts: Vec<(RouteKey, String)> =
                    published.iter().map(|route| (route.key.clone(), route.entry_id.clone())).collect();
                self.persist(context, || self.leases.extend_receipts(&receipts, self.settings.dedupe_ttl))
                    .await?;
                receipts_renewed = Instant::now();
            }
        }
    }

    fn report_failures(&self, failed: &[Failed], swaps: &[Swap]) {
        self.metrics.conflicts(self.channel, count(swaps, Swap::Conflict));
        let applied =
            failed.iter().zip(swaps).filter(|(_, swap)| **swap == Swap::Applied).map(|(failed, _)| failed);
        let (mut retried, mut dead) = (0, 0);
        for route in applied {
            let result = if route.retry_at.is_some() { "failed" } else { "dead_letter" };
            *(if route.retry_at.is_some() { &mut retried } else { &mut dead }) += 1;
            tracing::warn!(channel = self.channel.as_str(), notification_id = %route.key.notification_id, route_id = route.key.loggable_route_id(),
                attempt = route.attempt_count, result, classification = route.classification, error = route.message,
                "an attempt to publish failed");
        }
        self.metrics.attempts(self.channel, "failed", retried);
        self.metrics.attempts(self.channel, "dead_letter", dead);
    }

    fn failed(&self, route: &LiveRoute, classification: &'static str, message: String) -> Failed {
        let after = route.after_failure(self.clock.now(), &self.settings.backoff, self.jitter.fraction());
        let (attempt_count, retry_at) = match after {
            AfterFailure::Retry { attempt_count, at } => (attempt_count, Some(at)),
            AfterFailure::DeadLetter { attempt_count } => (attempt_count, None),
        };
        Failed {
            key: route.key.clone(),
            version: route.version,
            channel: self.channel,
            attempt_count,
            retry_at,
            classification,
            message,
        }
    }

    /// Gives leases back early. That saves others the wait for their end, and no more.
    async fn release(&self, keys: Vec<RouteKey>, token: &LeaseToken) {
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.leases.release_leases(&keys, token).await {
            tracing::debug!(
                error = error_chain(&error),
                "leases were not released and run out by themselves"
            );
        }
    }

    /// Calls until it is answered or the service stops.
    async fn persist<V, F: Future<Output = Result<V, StoreError>>>(
        &self,
        context: &mut Context<'_>,
        mut call: impl FnMut() -> F,
    ) -> Result<V, Stopped> {
        loop {
            match call().await {
                Ok(value) => {
                    self.works(context.inbox, context.trouble);
                    return Ok(value);
                }
                Err(error) => self.stall(context.inbox, context.trouble, context.stop, &error).await,
            }
            if context.stop.is_cancelled() {
                return Err(Stopped);
            }
        }
    }

    fn token(&self) -> LeaseToken {
        LeaseToken(self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// What every step of a chunk needs besides the chunk.
struct Context<'a> {
    inbox: &'a Inbox,
    trouble: &'a mut Trouble,
    stop: &'a CancellationToken,
}

fn published(route: &LiveRoute, entry_id: String) -> Published {
    Published { key: route.key.clone(), version: route.version, entry_id }
}

fn count(swaps: &[Swap], wanted: Swap) -> usize {
    swaps.iter().filter(|swap| **swap == wanted).count()
}

/// The parcel and what else is waiting, up to a full chunk, so that a burst of small batches is published as a few large
/// ones. Nothing is waited for.
fn merge(first: Parcel, inbox: &mut Inbox, batch_size: usize) -> Vec<Parcel> {
    let mut parcels = vec![first];
    while let Some(last) = parcels.last_mut().filter(|last| last.routes.len() < batch_size) {
        let Ok(next) = inbox.parcels.try_recv() else { break };
        if last.routes.len() + next.routes.len() <= batch_size {
            last.read_at = last.read_at.min(next.read_at);
            last.routes.extend(next.routes);
        } else {
            parcels.push(next);
            break;
        }
    }
    parcels
}

#[cfg(test)]
mod tests;
