//! Fixtures of the workers' unit tests: the in-memory stores behind one script, and a meter whose values can
//! be read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{FixedJitter, ManualClock, SeededTokens, Timestamp};
use domain::catalog::Catalog;
use domain::checkpoint::Checkpoint;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::policy::Policy;
use domain::ports::{Acknowledged, ServerId, StoreError};
use domain::record::{NotificationId, RecordContent};
use domain::route::{Channel, LiveRoute, RouteKey, Version};
use memory_stores::{
    MemoryCheckpoints, MemoryDatabase, MemoryDirectory, MemoryElection, MemoryIntents, MemoryPublishing,
    MemoryReplicas, Script, Scripted,
};
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, Gauge, InstrumentBuilder, InstrumentProvider, Meter,
    ObservableGauge, SyncInstrument,
};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

use crate::ports::Ports;
use crate::traces::{TracedStreams, Traces};

/// The intents stream.
pub(crate) const STREAM: &str = "intents";

/// All stores, behind one script. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) script: Script,
    /// The clock of the replica and of both servers.
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) election: Scripted<MemoryElection>,
    pub(crate) intents: Scripted<MemoryIntents>,
    pub(crate) database: Scripted<MemoryDatabase>,
    pub(crate) cache: Scripted<MemoryCheckpoints>,
    pub(crate) directory: Scripted<MemoryDirectory>,
    pub(crate) publishing: Scripted<MemoryPublishing>,
    pub(crate) replicas: Scripted<MemoryReplicas>,
}

/// The ports of a world.
#[derive(Debug)]
pub(crate) struct WorldPorts;

impl Ports for WorldPorts {
    type Election = Scripted<MemoryElection>;
    type Intents = Scripted<MemoryIntents>;
    type Store = Scripted<MemoryDatabase>;
    type Cache = Scripted<MemoryCheckpoints>;
    type Directory = Scripted<MemoryDirectory>;
    type Leases = Scripted<MemoryPublishing>;
    type Outbound = Scripted<MemoryPublishing>;
    type Clock = Arc<ManualClock>;
    type Jitter = FixedJitter;
    type Tokens = SeededTokens;
}

impl World {
    /// Creates empty stores whose time begins at `start`.
    pub(crate) fn new(start: Timestamp) -> Self {
        let (script, clock) = (Script::default(), Arc::new(ManualClock::new(start)));
        let database = MemoryDatabase::default();
        database.set_clock(Arc::clone(&clock));
        Self {
            election: Scripted::new(MemoryElection::default(), &script),
            intents: Scripted::new(MemoryIntents::default(), &script),
            database: Scripted::new(database, &script),
            cache: Scripted::new(MemoryCheckpoints::default(), &script),
            directory: Scripted::new(MemoryDirectory::default(), &script),
            publishing: Scripted::new(MemoryPublishing::new(Arc::clone(&clock)), &script),
            replicas: Scripted::new(MemoryReplicas::new(Arc::clone(&clock)), &script),
            script,
            clock,
        }
    }

    /// The durable checkpoint.
    pub(crate) fn durable(&self) -> Option<EntryId> {
        self.database.checkpoint(STREAM).map(|checkpoint| checkpoint.last_entry_id)
    }

    /// The cached checkpoint.
    pub(crate) fn cached(&self) -> Option<EntryId> {
        self.cache.get(STREAM).map(|checkpoint| checkpoint.last_entry_id)
    }

    /// Sets the durable checkpoint to this entry, with the fence of a term before the first one here.
    pub(crate) fn set_durable(&self, last_entry_id: EntryId) {
        self.database.set_checkpoint(STREAM, Some(Checkpoint { fence: 0, last_entry_id }));
    }

    /// Sets the cached checkpoint to this entry, with the fence of a term before the first one here.
    pub(crate) fn set_cached(&self, last_entry_id: EntryId) {
        self.cache.set(STREAM, Checkpoint { fence: 0, last_entry_id });
    }

    /// Returns the routes whose entries are in the stream of the gateway, in order.
    pub(crate) fn appended(&self) -> Vec<String> {
        self.publishing.entries(Channel::Push).into_iter().map(|(_, mut fields)| fields.remove(0).1).collect()
    }
}

/// The time at which the tests of acceptance begin.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000).expect("in range")
}

/// The configuration of acceptance.
pub(crate) fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(60),
        head_start: Duration::from_secs(5),
    }
}

pub(crate) fn down(operation: &'static str) -> StoreError {
    StoreError::Unavailable { operation, source: "down".into() }
}

pub(crate) fn refused(operation: &'static str) -> StoreError {
    StoreError::Refused { operation, source: "not storable".into() }
}

pub(crate) fn locked(operation: &'static str) -> StoreError {
    StoreError::Locked { operation, source: "a lock".into() }
}

pub(crate) fn timed_out(operation: &'static str) -> StoreError {
    StoreError::TimedOut { operation, source: "too slow".into() }
}

/// The values that gauges were set to, by name.
#[derive(Clone, Default)]
pub(crate) struct RecordedGauges {
    /// The values in the order in which they were set.
    values: Arc<Mutex<Vec<(String, f64)>>>,
    observed: Arc<Mutex<Vec<GaugeCallback>>>,
}

/// The callback of an observable gauge.
enum GaugeCallback {
    Number(String, Callback<u64>),
    Time(String, Callback<f64>),
}

impl RecordedGauges {
    pub(crate) fn meter(&self) -> Meter {
        Meter::new(Arc::new(self.clone()))
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        let recorded = self.values.lock().expect("no test panics while it holds the values");
        recorded.iter().filter(|(gauge, _)| gauge == name).map(|(_, value)| *value).collect()
    }

    /// Reads the observable gauges, as a scrape does.
    pub(crate) fn read(&self) {
        for observed in self.observed.lock().expect("no test panics while it holds the gauges").iter() {
            match observed {
                GaugeCallback::Number(name, ask) => ask(&RecordedGauge(name.clone(), self.clone())),
                GaugeCallback::Time(name, ask) => ask(&RecordedGauge(name.clone(), self.clone())),
            }
        }
    }

    fn observe(&self, observed: impl Iterator<Item = GaugeCallback>) {
        self.observed.lock().expect("no test panics while it holds the gauges").extend(observed);
    }
}

impl InstrumentProvider for RecordedGauges {
    fn u64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<u64>>) -> Gauge<u64> {
        Gauge::new(Arc::new(RecordedGauge(builder.name.into_owned(), self.clone())))
    }

    fn f64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<f64>>) -> Gauge<f64> {
        Gauge::new(Arc::new(RecordedGauge(builder.name.into_owned(), self.clone())))
    }

    fn u64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<u64>, u64>,
    ) -> ObservableGauge<u64> {
        let name = builder.name;
        self.observe(builder.callbacks.into_iter().map(|ask| GaugeCallback::Number(name.to_string(), ask)));
        ObservableGauge::new()
    }

    fn f64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<f64>, f64>,
    ) -> ObservableGauge<f64> {
        let name = builder.name;
        self.observe(builder.callbacks.into_iter().map(|ask| GaugeCallback::Time(name.to_string(), ask)));
        ObservableGauge::new()
    }
}

struct RecordedGauge(String, RecordedGauges);

impl RecordedGauge {
    fn set(&self, value: f64) {
        let Self(name, recorded) = self;
        recorded.values.lock().expect("no test panics while it holds the values").push((name.clone(), value));
    }
}

impl SyncInstrument<u64> for RecordedGauge {
    fn measure(&self, value: u64, _: &[KeyValue]) {
        self.set(value as f64);
    }
}

impl SyncInstrument<f64> for RecordedGauge {
    fn measure(&self, value: f64, _: &[KeyValue]) {
        self.set(value);
    }
}

impl AsyncInstrument<u64> for RecordedGauge {
    fn observe(&self, value: u64, _: &[KeyValue]) {
        self.set(value as f64);
    }
}

impl AsyncInstrument<f64> for RecordedGauge {
    fn observe(&self, value: f64, _: &[KeyValue]) {
        self.set(value);
    }
}

/// Creates traces that record every span, and the exporter that contains the spans.
pub(crate) fn recorded_traces() -> (Traces, InMemorySpanExporter) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .with_max_links_per_span(u32::MAX)
        .build();
    let streams = TracedStreams {
        intents: "in".to_owned(),
        push: "out:push".to_owned(),
        email: "out:email".to_owned(),
    };
    (Traces::new(BoxedTracer::new(Box::new(provider.tracer("test"))), streams), exporter)
}

/// A well-formed intent for one user.
pub(crate) fn intent(number: u64, key: &str, user: &str) -> RawEntry {
    let fields = RawFields::from_iter([
        ("notification_type", "game.turn.ready"),
        ("producer", "game_master"),
        ("audience_kind", "user"),
        ("recipient_user_ids_json", &format!("[{user:?}]")),
        ("idempotency_key", key),
        ("occurred_at_ms", "1775121700000"),
        ("payload_json", r#"{"game_id":"g","game_name":"n","turn_number":54}"#),
    ]);
    RawEntry { id: EntryId::new(number, 0), fields }
}

/// An entry that the first server of [`MemoryPublishing`] acknowledged.
pub(crate) fn acknowledged(entry_id: &str) -> Acknowledged {
    let server = ServerId { run_id: "0".into(), replication_id: "0".into() };
    Acknowledged { entry_id: entry_id.to_owned(), server }
}

/// A push route that is due at the epoch.
pub(crate) fn route(number: u64, attempt_count: u32) -> LiveRoute {
    let at = Timestamp::UNIX_EPOCH;
    LiveRoute {
        replaces: None,
        key: RouteKey {
            notification_id: NotificationId::of(EntryId::new(number, 0), 0),
            route_id: "push:user:u-1".into(),
        },
        version: Version::read(at),
        channel: Channel::Push,
        recipient_ref: "user:u-1".into(),
        resolved_email: String::new(),
        resolved_locale: "en".into(),
        attempt_count,
        max_attempts: 3,
        next_attempt_at: at,
        content: Arc::new(RecordContent {
            producer: "p".into(),
            notification_type: "game.turn.ready".into(),
            payload_json: "{}".into(),
            occurred_at: at,
            accepted_at: at,
            request_id: String::new(),
            trace_id: String::new(),
        }),
    }
}
