//! Every instrument of the workers, named once. Durations and ages are in seconds. docs/metrics.md lists the
//! instruments for operators, and a test compares the two.

mod instruments;
mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::hold::HoldKey;
use domain::malformed_intent::FailureCode;
use domain::ports::{FailureCounts, StoreError};
use domain::route::Channel;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

pub use self::instruments::{Instruments, SECONDS};
pub use self::replica::observe_replica;

/// The instruments of the workers.
#[derive(Clone, Debug)]
pub struct Metrics {
    intents: Counter<u64>,
    malformed_intents: Counter<u64>,
    route_attempts: Counter<u64>,
    completion_conflicts: Counter<u64>,
    lease_contention: Counter<u64>,
    dispatch_overflow: Counter<u64>,
    republished: Counter<u64>,
    lost_entries: Counter<u64>,
    retention_deleted: Counter<u64>,
    retention_skipped: Counter<u64>,
    acceptance_duration: Histogram<f64>,
    publish_latency: Histogram<f64>,
    schedule_depth: Gauge<u64>,
    schedule_oldest_age: Gauge<f64>,
    stream_oldest_age: Gauge<f64>,
    channel_oldest_due_age: Gauge<f64>,
    failing_routes: Gauge<u64>,
    open_dead_letters: Gauge<u64>,
    oldest_dead_letter_age: Gauge<f64>,
    oldest_expired_age: Gauge<f64>,
    hold_age: Gauge<f64>,
    hold_routes: Gauge<u64>,
    dependency_up: Gauge<u64>,
    leader: Gauge<u64>,
    http_duration: Histogram<f64>,
    receipts: Counter<u64>,
    idempotency_claims: Counter<u64>,
    idempotency_fenced: Counter<u64>,
    /// The producers that are a label.
    producers: Arc<BTreeSet<String>>,
}

/// The label `source` of intents from the stream.
pub(crate) const STREAM: &str = "stream";
/// The label `source` of intents from the HTTP API, each in a request of its own.
pub(crate) const HTTP: &str = "http";
/// The label `source` of elements of a batch of the HTTP API.
pub(crate) const BATCH: &str = "batch";

impl Metrics {
    /// The instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let make = Instruments::new(meter);
        let metrics = Self {
            intents: make.counter("notification.intents", "Intents by outcome, type, producer and source"),
            malformed_intents: make.counter(
                "notification.malformed_intents",
                "Intents that were not accepted, by failure code and producer",
            ),
            route_attempts: make
                .counter("notification.route_attempts", "Attempts to publish by channel and result"),
            completion_conflicts: make.counter(
                "notification.completion_conflicts",
                "Changes of a route that another replica had made already",
            ),
            lease_contention: make
                .counter("notification.lease_contention", "Leases that another publisher held"),
            dispatch_overflow: make.counter(
                "notification.dispatch_overflow",
                "Routes left to the due scan because their channel did not keep up",
            ),
            lost_entries: make.counter(
                "notification.lost_entries",
                "Entries of an outbound stream that Redis lost and that are not appended again",
            ),
            republished: make.counter(
                "notification.republished",
                "Entries that Redis had lost and that were appended again, by channel",
            ),
            retention_deleted: make.counter("notification.retention.deleted", "Rows removed by table"),
            retention_skipped: make.counter(
                "notification.retention.skipped",
                "Expired rows that a pass could not delete by table and reason",
            ),
            acceptance_duration: make.duration(
                "notification.acceptance.duration",
                &SECONDS,
                "From reading a batch of intents to its commit",
            ),
            publish_latency: make.duration(
                "notification.publish.latency",
                &SECONDS,
                "From the acceptance of a route to its append",
            ),
            schedule_depth: make.gauge(
                "notification.route_schedule.depth",
                "{route}",
                "Due routes, counted up to 10,000",
            ),
            schedule_oldest_age: make
                .age("notification.route_schedule.oldest_age", "How long the longest due route has been due"),
            stream_oldest_age: make.age(
                "notification.intent_stream.oldest_unprocessed_age",
                "Age of the oldest entry that has no outcome yet, by its id",
            ),
            channel_oldest_due_age: make.age(
                "notification.channel.oldest_due_age",
                "How long the longest due route of a channel has been due",
            ),
            failing_routes: make.gauge(
                "notification.channel.failing_routes",
                "{route}",
                "Routes of a channel whose last attempt failed, counted up to 10,000",
            ),
            open_dead_letters: make.gauge(
                "notification.dead_letters.open",
                "{route}",
                "Dead letters of a channel that were not discarded, counted up to 10,000",
            ),
            oldest_dead_letter_age: make.age(
                "notification.dead_letters.oldest_age",
                "Age of the oldest dead letter of a channel that was not discarded",
            ),
            oldest_expired_age: make.age(
                "notification.retention.oldest_expired_age",
                "How long the oldest row has been past its retention",
            ),
            hold_age: make.age("notification.hold.age", "How long an operator has held something"),
            hold_routes: make.gauge(
                "notification.hold.routes",
                "{route}",
                "Routes that a hold keeps, counted up to 10,000",
            ),
            dependency_up: make.gauge(
                "notification.dependency.up",
                "{dependency}",
                "1 if the dependency responded to the last check, else 0",
            ),
            leader: make.gauge(
                "notification.intake.leader",
                "{replica}",
                "1 on the replica that reads the intents stream, else 0",
            ),
            http_duration: make.duration(
                "http.server.request.duration",
                &SECONDS,
                "From the first byte of a request to the API to its response, by route and status",
            ),
            receipts: make.counter("notification.receipts", "Reports of consumers by outcome"),
            idempotency_claims: make.counter("idempotency.claims", "Claims of idempotency keys by outcome"),
            idempotency_fenced: make.counter(
                "idempotency.fenced",
                "Responses not stored because the claim of their key had expired",
            ),
            producers: Arc::default(),
        };
        metrics.begin_at_zero();
        metrics
    }

    /// Creates series with the value 0. An alert on the growth of a counter sees the first event only if the
    /// series existed before it.
    fn begin_at_zero(&self) {
        for channel in Channel::ALL {
            for result in [
                "published",
                "failed",
                "dead_letter",
                "lease_lost",
                "append_lost",
                "append_unconfirmed",
                "held",
            ] {
                self.route_attempts.add(0, &attempt(channel, result));
            }
        }
    }

    /// Adds the types and producers of `catalog` as labels. Their series exist from the start, for intents
    /// from the stream and if `has_api` also for those of the HTTP API.
    #[must_use]
    pub fn with_catalog(self, catalog: &Catalog, has_api: bool) -> Self {
        let sources = if has_api { &[STREAM, HTTP, BATCH][..] } else { &[STREAM] };
        let pairs = catalog
            .types()
            .flat_map(|known| known.producers().iter().map(|producer| (known.name(), producer.as_str())));
        // An entry that cannot be decoded has neither.
        for (kind, producer) in pairs.chain([("", "")]) {
            let outcomes = ["accepted", "duplicate", "conflict", "malformed"];
            let counts = outcomes.into_iter().filter(|outcome| !kind.is_empty() || *outcome == "malformed");
            let counts = counts.map(|outcome| ((outcome, kind, producer), 0)).collect();
            sources.iter().for_each(|source| self.outcomes(source, &counts));
        }
        let producers = catalog.types().flat_map(|known| known.producers().iter().cloned()).collect();
        let metrics = Self { producers: Arc::new(producers), ..self };
        for code in FailureCode::ALL {
            let known = metrics.producers.iter().map(String::as_str);
            known.chain([""]).for_each(|producer| metrics.malformed(producer, code, 0));
        }
        metrics
    }

    /// Counts intents that were not accepted. A producer that is not in the catalogue is empty: it could be
    /// anything, and each value would be a time series.
    pub(crate) fn malformed(&self, producer: &str, code: FailureCode, count: u64) {
        let known = self.producers.get(producer).cloned().unwrap_or_default();
        let labels = [KeyValue::new("code", code.as_str()), KeyValue::new("producer", known)];
        self.malformed_intents.add(count, &labels);
    }

    /// Counts intents by outcome, type and producer. Type and producer of an entry that cannot be decoded are
    /// empty: they could be anything, and each value would be a time series.
    pub(crate) fn outcomes(&self, source: &'static str, counts: &BTreeMap<(&'static str, &str, &str), u64>) {
        for ((outcome, kind, producer), count) in counts {
            let labels = [
                KeyValue::new("outcome", *outcome),
                KeyValue::new("type", (*kind).to_owned()),
                KeyValue::new("producer", (*producer).to_owned()),
                KeyValue::new("source", source),
            ];
            self.intents.add(*count, &labels);
        }
    }

    pub(crate) fn accepted_within(&self, time: Duration) {
        self.acceptance_duration.record(time.as_secs_f64(), &[]);
    }

    pub(crate) fn attempts(&self, channel: Channel, result: &'static str, count: usize) {
        if count > 0 {
            self.route_attempts.add(count as u64, &attempt(channel, result));
        }
    }

    pub(crate) fn published_after(&self, channel: Channel, time: Duration) {
        self.publish_latency.record(time.as_secs_f64(), &[KeyValue::new("channel", channel.as_str())]);
    }

    pub(crate) fn conflicts(&self, channel: Channel, count: usize) {
        if count > 0 {
            self.completion_conflicts.add(count as u64, &[KeyValue::new("channel", channel.as_str())]);
        }
    }

    pub(crate) fn contended(&self, channel: Channel, count: usize) {
        if count > 0 {
            self.lease_contention.add(count as u64, &[KeyValue::new("channel", channel.as_str())]);
        }
    }

    pub(crate) fn overflowed(&self, count: usize) {
        if count > 0 {
            self.dispatch_overflow.add(count as u64, &[]);
        }
    }

    pub(crate) fn republished(&self, channel: Channel, count: usize) {
        if count > 0 {
            self.republished.add(count as u64, &[KeyValue::new("channel", channel.as_str())]);
        }
    }

    /// Counts entries of an outbound stream that Redis lost and that are not appended again.
    pub(crate) fn lost_entries(&self, channel: Channel, count: u64) {
        if count > 0 {
            self.lost_entries.add(count, &[KeyValue::new("channel", channel.as_str())]);
        }
    }

    pub(crate) fn deleted(&self, table: &'static str, count: u64) {
        self.retention_deleted.add(count, &[KeyValue::new("table", table)]);
    }

    pub(crate) fn stays(&self, table: &'static str, reason: &'static str, count: u64) {
        if count > 0 {
            self.retention_skipped
                .add(count, &[KeyValue::new("table", table), KeyValue::new("reason", reason)]);
        }
    }

    /// Records a response of the API. `route` is the template of its route; `None` if no route matched.
    pub fn answered(&self, route: Option<&str>, status: u16, time: Duration) {
        let status = KeyValue::new("http.response.status_code", i64::from(status));
        let route = route.map(|route| KeyValue::new("http.route", route.to_owned()));
        let labels: Vec<KeyValue> = route.into_iter().chain([status]).collect();
        self.http_duration.record(time.as_secs_f64(), &labels);
    }

    /// Counts delivery receipts that ended with `outcome`: `recorded`, `stale`, `unknown_route` or `invalid`.
    pub fn receipts(&self, outcome: &'static str, count: u64) {
        self.receipts.add(count, &[KeyValue::new("outcome", outcome)]);
    }

    /// Counts claims of idempotency keys that ended with `outcome`: `new`, `pending`, `completed`, `conflict`
    /// or `failed`.
    pub fn claimed(&self, outcome: &'static str, count: u64) {
        self.idempotency_claims.add(count, &[KeyValue::new("outcome", outcome)]);
    }

    /// Counts responses that were not stored, because the claim of their key had expired.
    pub fn fenced(&self, count: u64) {
        self.idempotency_fenced.add(count, &[]);
    }

    /// Records the number of due routes, and how long the first of them has been due.
    pub fn schedule(&self, depth: u64, oldest_age: Duration) {
        self.schedule_depth.record(depth, &[]);
        self.schedule_oldest_age.record(oldest_age.as_secs_f64(), &[]);
    }

    /// Records how long the first due route of `channel` has been due.
    pub(crate) fn due(&self, channel: Channel, oldest_age: Duration) {
        let channel = KeyValue::new("channel", channel.as_str());
        self.channel_oldest_due_age.record(oldest_age.as_secs_f64(), &[channel]);
    }

    /// Records the routes of `channel` that failed, and the age of the oldest dead letter at `now`.
    pub(crate) fn failures(&self, channel: Channel, counts: FailureCounts, now: Timestamp) {
        let channel = [KeyValue::new("channel", channel.as_str())];
        self.failing_routes.record(counts.failing, &channel);
        self.open_dead_letters.record(counts.dead_letters, &channel);
        let age = counts.oldest_dead_letter.map_or(Duration::ZERO, |since| now.saturating_since(since));
        self.oldest_dead_letter_age.record(age.as_secs_f64(), &channel);
    }

    /// Records how long the oldest row of `table` has been past its retention.
    pub(crate) fn expired(&self, table: &'static str, age: Duration) {
        self.oldest_expired_age.record(age.as_secs_f64(), &[KeyValue::new("table", table)]);
    }

    /// Records the time since a hold was made and the number of routes that it keeps; zero once it is gone.
    pub(crate) fn held(&self, hold: &HoldKey, age: Duration, routes: u64) {
        let labels = [KeyValue::new("scope", hold.scope.as_str()), KeyValue::new("name", hold.name.clone())];
        self.hold_age.record(age.as_secs_f64(), &labels);
        self.hold_routes.record(routes, &labels);
    }

    /// Records the outcome of a call to `dependency`. Every outcome except `Unavailable` shows that the
    /// dependency is up.
    pub(crate) fn looked_at(&self, dependency: &'static str, outcome: Result<(), &StoreError>) {
        let is_up = !matches!(outcome, Err(StoreError::Unavailable { .. }));
        self.dependency_up.record(u64::from(is_up), &[KeyValue::new("dependency", dependency)]);
    }

    /// Records the age of the first entry without an outcome.
    pub fn oldest_unprocessed(&self, age: Duration) {
        self.stream_oldest_age.record(age.as_secs_f64(), &[]);
    }

    pub(crate) fn leads(&self, leader: bool) {
        self.leader.record(u64::from(leader), &[]);
    }
}

fn attempt(channel: Channel, result: &'static str) -> [KeyValue; 2] {
    [KeyValue::new("channel", channel.as_str()), KeyValue::new("result", result)]
}
