//! The stages of one chunk of routes: encode, lease, append, complete. Every call is repeated until it gets a
//! response. The output of a stage is the input of the next. Routes under a permit need no lease.

use std::collections::HashSet;

use ambient::{Clock, Jitter, Timestamp, Tokens};
use domain::dead_letter::PAYLOAD_ENCODING_FAILED;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Acknowledged, Append, Failed, LeaseOutcome, LeaseStore, LeaseToken, Outbound, Published, RouteStore,
    StoreError, error_chain,
};
use domain::route::{AfterFailure, LiveRoute, RouteKey};
use tokio::time::Instant;

use super::RoutePublisher;
use super::state::{PublisherState, ReadBeforeServer};
use super::tally::Tally;
use crate::dispatch::RouteBatch;
use crate::health::Stopped;
use crate::ports::Ports;
use crate::traces::PublishSpan;

/// The size limit of one append.
const CHUNK_BYTES: usize = 1024 * 1024;
/// The number of times that leases of a chunk may expire before their append. After that, the rest is left to
/// the scan.
const MAX_LEASE_RETRIES: usize = 3;

/// A route, with the entry to append for it.
pub(super) struct Encoded<'a> {
    pub(super) route: &'a LiveRoute,
    entry: OutboundEntry<'a>,
}

/// Routes whose leases are held under one token, or that are free under the token of a permit.
pub(super) struct Leased<'a> {
    pub(super) token: LeaseToken,
    pub(super) routes: Vec<Encoded<'a>>,
}

/// The routes to complete in PostgreSQL.
#[derive(Default)]
pub(super) struct Appended {
    pub(super) published: Vec<Published>,
    pub(super) failed: Vec<Failed>,
    /// Routes whose lease or permit expired before the append, or whose lease another token held.
    lease_lost: Vec<RouteKey>,
}

/// The result of publishing, for the scan.
#[derive(Debug, Default)]
pub(super) struct ChunkResult {
    /// True if another replica holds some of the routes, or if their leases expired.
    pub(super) contended: bool,
    /// The time at which the first of the failed routes is retried.
    pub(super) retry_at: Option<Timestamp>,
}

impl ChunkResult {
    pub(super) fn merge(self, other: Self) -> Self {
        let retry_at = [self.retry_at, other.retry_at].into_iter().flatten().min();
        Self { contended: self.contended || other.contended, retry_at }
    }
}

impl<P: Ports> RoutePublisher<P> {
    /// Publishes a batch in chunks. Routes whose leases or permit expired before the append are read again
    /// and retried at once, under leases.
    pub(super) async fn publish(
        &self,
        batch: RouteBatch,
        shared: &PublisherState,
    ) -> Result<ChunkResult, Stopped> {
        let (mut report, mut lost) = self.publish_once(&batch, shared).await?;
        for _ in 0..MAX_LEASE_RETRIES {
            if lost.is_empty() {
                return Ok(report);
            }
            let keys: Vec<&RouteKey> = lost.iter().collect();
            let read_at = Instant::now();
            let routes = self.live_routes(&keys, shared).await?;
            let batch = RouteBatch { routes, read_at, due_at: read_at };
            let (again, still_lost) = self.publish_once(&batch, shared).await?;
            (report, lost) = (report.merge(again), still_lost);
        }
        report.contended |= !lost.is_empty();
        Ok(report)
    }

    /// Publishes the routes of a batch, chunk by chunk. Also returns the keys of routes whose lease was lost.
    async fn publish_once(
        &self,
        batch: &RouteBatch,
        shared: &PublisherState,
    ) -> Result<(ChunkResult, Vec<RouteKey>), Stopped> {
        let (mut report, mut lost) = (ChunkResult::default(), Vec::new());
        let mut routes = &batch.routes[..];
        while !routes.is_empty() {
            let (encoded, failed) = self.encode(routes);
            let (chunk, rest) = routes.split_at(encoded.len() + failed.len());
            routes = rest;
            let traced = self.traces.is_on().then(|| (chunk, self.clock.now()));
            let (of_chunk, lost_here) = self.publish_chunk(encoded, failed, batch, traced, shared).await?;
            report = report.merge(of_chunk);
            lost.extend(lost_here);
        }
        Ok((report, lost))
    }

    /// Encodes as many of the first routes as make a chunk. Returns their entries, and the routes that cannot
    /// be encoded.
    fn encode<'a>(&self, routes: &'a [LiveRoute]) -> (Vec<Encoded<'a>>, Vec<Failed>) {
        let mut encoded = Vec::with_capacity(routes.len().min(self.settings.batch_size));
        let (mut failed, mut tally) = (Vec::new(), Tally::default());
        let mut bytes = 0;
        for route in routes.iter().take(self.settings.batch_size) {
            match outbound::encode(route) {
                Ok(entry) => {
                    let size = entry.size();
                    if bytes > 0 && bytes + size > CHUNK_BYTES {
                        break;
                    }
                    bytes += size;
                    encoded.push(Encoded { route, entry });
                }
                Err(error) => {
                    let failure = self.failed(route, PAYLOAD_ENCODING_FAILED, error.to_string());
                    tally.failed(route, &failure);
                    failed.push(failure);
                }
            }
        }
        tally.count(self.channel, &self.health);
        (encoded, failed)
    }

    /// Runs the stages of one chunk. `traced` is `Some` if traces are on: the routes of the chunk, and the
    /// time at which it began.
    async fn publish_chunk(
        &self,
        encoded: Vec<Encoded<'_>>,
        failed: Vec<Failed>,
        batch: &RouteBatch,
        traced: Option<(&[LiveRoute], Timestamp)>,
        shared: &PublisherState,
    ) -> Result<(ChunkResult, Vec<RouteKey>), Stopped> {
        let permit = self.permit_for(&encoded, batch.due_at, shared).await?;
        // No acknowledgement of the chunk is older.
        let acknowledged_at = Instant::now();
        let mut report = ChunkResult::default();
        let (mut outcomes, leases) = if let Some(token) = permit {
            // MODEL-35
            // No other replica sees these routes as due until the permit has expired.
            (self.append(Leased { token, routes: encoded }, batch.read_at, shared).await?, None)
        } else {
            let token = self.token();
            let (appended, contended) =
                self.append_leased(encoded, token.clone(), batch.read_at, shared).await?;
            report.contended = contended;
            (appended, Some(token))
        };
        outcomes.failed.extend(failed);
        report.retry_at = outcomes.failed.iter().filter_map(|failed| failed.retry_at).min();
        let lost = std::mem::take(&mut outcomes.lease_lost);
        let span = traced.and_then(|(chunk, started)| {
            PublishSpan::of(self.channel, started, chunk, &outcomes.published, &outcomes.failed)
        });
        self.complete(outcomes, acknowledged_at, leases.as_ref(), shared).await?;
        if let Some(span) = span {
            self.traces.publish(span, self.clock.now());
        }
        Ok((report, lost))
    }

    /// Leases and appends a chunk. Also returns true if another token holds some of the leases.
    async fn append_leased(
        &self,
        encoded: Vec<Encoded<'_>>,
        token: LeaseToken,
        read_at: Instant,
        shared: &PublisherState,
    ) -> Result<(Appended, bool), Stopped> {
        let asked = encoded.len();
        if asked == 0 {
            return Ok((Appended::default(), false));
        }
        let (leased, markers) = self.lease(encoded, token, shared).await?;
        let contended = leased.routes.len() + markers.len() < asked;
        let leased = self.without_held(leased, shared).await?;
        // MODEL-25
        // The marker of another publisher may have expired since the route was read, because it may have been
        // half its TTL old then. So PostgreSQL is queried again whether the route is still to be published.
        let mut appended = if read_at.elapsed() > self.settings.dedupe_ttl / 2 {
            let read_at = Instant::now();
            let live = self.read_again(&leased, shared).await?;
            let (routes, failed) = self.encode(&live);
            let mut appended = self.append(Leased { token: leased.token, routes }, read_at, shared).await?;
            appended.failed.extend(failed);
            appended
        } else {
            self.append(leased, read_at, shared).await?
        };
        appended.published.extend(markers);
        Ok((appended, contended))
    }

    /// Acquires the leases of a chunk. Routes whose leases another replica holds are dropped. A route with a
    /// marker counts as appended.
    async fn lease<'a>(
        &self,
        encoded: Vec<Encoded<'a>>,
        token: LeaseToken,
        shared: &PublisherState,
    ) -> Result<(Leased<'a>, Vec<Published>), Stopped> {
        let routes: Vec<&LiveRoute> = encoded.iter().map(|encoded| encoded.route).collect();
        let ttl = self.settings.lease_ttl;
        let leases = shared.until_answered(|| self.leases.acquire_leases(&routes, &token, ttl)).await?;
        let asked = encoded.len();
        let (mut won, mut markers) = (Vec::with_capacity(asked), Vec::new());
        for (encoded, lease) in encoded.into_iter().zip(leases) {
            match lease {
                LeaseOutcome::Won => won.push(encoded),
                LeaseOutcome::Held => {}
                LeaseOutcome::Published(entry) => markers.push(published(encoded.route, entry)),
            }
        }
        let held = asked - won.len() - markers.len();
        self.metrics.contended(self.channel, held);
        self.health.count_leases(asked, held);
        Ok((Leased { token, routes: won }, markers))
    }

    /// Returns the routes that are still live, at their current version, and releases the leases of the
    /// others.
    async fn read_again(
        &self,
        leased: &Leased<'_>,
        shared: &PublisherState,
    ) -> Result<Vec<LiveRoute>, Stopped> {
        let mut keys: Vec<&RouteKey> = leased.routes.iter().map(|encoded| &encoded.route.key).collect();
        let live = self.live_routes(&keys, shared).await?;
        let still: HashSet<&RouteKey> = live.iter().map(|route| &route.key).collect();
        keys.retain(|key| !still.contains(key));
        self.release(&keys, &leased.token).await;
        Ok(live)
    }

    /// Returns the routes that are live, read in as few parts as PostgreSQL can read in time.
    async fn live_routes(
        &self,
        keys: &[&RouteKey],
        shared: &PublisherState,
    ) -> Result<Vec<LiveRoute>, Stopped> {
        let (mut live, mut rest, mut limit) = (Vec::with_capacity(keys.len()), keys, keys.len());
        while !rest.is_empty() {
            let (part, later) = rest.split_at(limit.min(rest.len()));
            match self.routes.get_live_routes(part).await {
                Ok(page) => {
                    shared.mark_healthy();
                    live.extend(page.routes);
                    rest = later;
                }
                Err(error) => {
                    if matches!(error, StoreError::TimedOut { .. }) {
                        limit = (part.len() / 2).max(1);
                    }
                    shared.pause_after(&error).await?;
                }
            }
        }
        Ok(live)
    }

    /// Appends leased routes that were read at this time. An append that Redis cannot perform at present is
    /// retried under the same token. The leases are lost if Redis is another server than it was then.
    async fn append(
        &self,
        leased: Leased<'_>,
        read_at: Instant,
        shared: &PublisherState,
    ) -> Result<Appended, Stopped> {
        let Leased { token, mut routes } = leased;
        let (mut appended, mut tally) = (Appended::default(), Tally::default());
        let server = match shared.server_of(read_at) {
            Ok(server) => server,
            Err(ReadBeforeServer) => {
                appended.lease_lost.extend(routes.drain(..).map(|encoded| encoded.route.key.clone()));
                None
            }
        };
        while !routes.is_empty() {
            let entries: Vec<_> = routes.iter().map(|encoded| (&encoded.route.key, &encoded.entry)).collect();
            let dedupe_ttl = self.settings.dedupe_ttl;
            let appends = shared
                .until_answered(|| {
                    self.outbound.append(self.channel, &entries, &token, dedupe_ttl, server.as_ref())
                })
                .await?;
            shared.note_server(appends.server);
            let now = self.clock.now();
            let mut again = Vec::new();
            let mut outage = None;
            for (encoded, append) in routes.into_iter().zip(appends.entries) {
                let route = encoded.route;
                match append {
                    // The marker of the replaced entry was written over the lease, by the publisher that
                    // appended that entry and has not committed it.
                    Append::Done(entry) if route.replaces.as_ref() == Some(&entry.entry_id) => {
                        appended.lease_lost.push(route.key.clone());
                    }
                    Append::Done(entry) => {
                        let accepted_at = route.replaces.is_none().then_some(route.content.accepted_at);
                        let latency = accepted_at.map(|at| now.saturating_since(at));
                        if let Some(latency) = latency {
                            self.metrics.published_after(self.channel, latency);
                        }
                        tally.published(route, latency);
                        appended.published.push(published(route, entry));
                    }
                    Append::LeaseLost => appended.lease_lost.push(route.key.clone()),
                    Append::Refused(message) => {
                        let failure = self.failed(route, self.channel.publish_failed(), message);
                        tally.failed(route, &failure);
                        appended.failed.push(failure);
                    }
                    Append::Outage(message) => {
                        outage = Some(message);
                        again.push(encoded);
                    }
                }
            }
            routes = again;
            if let Some(message) = outage {
                let error = StoreError::Unavailable {
                    operation: "append to the outbound stream",
                    source: message.into(),
                };
                shared.pause_after(&error).await?;
            }
        }
        tally.count(self.channel, &self.health);
        // Another server than the expected one may have granted them.
        self.release(&appended.lease_lost.iter().collect::<Vec<_>>(), &token).await;
        self.metrics.attempts(self.channel, "lease_lost", appended.lease_lost.len());
        self.health.count_leases(0, appended.lease_lost.len());
        Ok(appended)
    }

    /// Returns the completion of a failed attempt: a retry or a dead letter.
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

    /// Releases leases early, so that other publishers do not wait until they expire.
    pub(super) async fn release(&self, keys: &[&RouteKey], token: &LeaseToken) {
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.leases.release_leases(keys, token).await {
            tracing::debug!(error = error_chain(&error), "leases were not released; they will expire");
        }
    }

    // MODEL-18
    pub(super) fn token(&self) -> LeaseToken {
        LeaseToken(self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn published(route: &LiveRoute, entry: Acknowledged) -> Published {
    Published { key: route.key.clone(), version: route.version, entry }
}
