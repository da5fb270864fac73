//! A relay on the storage in memory, with a publisher that the test controls.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    Deadline, Event, EventTypes, MemoryStorage, Publication, Publisher, PublisherOutage, Relay, RelayId,
    RelayObserver, RelaySettings, RelayState, RetryPolicy, ServerNumber, Stats,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{LEASE, MINUTE, Memory, World};

/// A publisher: its behaviour and what it has published.
#[derive(Clone, Default)]
pub(crate) struct Stand(Arc<Mutex<State>>, pub(crate) Arc<Notify>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) published: Vec<Uuid>,
    pub(crate) calls: Vec<usize>,
    pub(crate) outcomes: HashMap<Uuid, Publication>,
    /// True if it is unreachable.
    pub(crate) away: bool,
    /// True if it publishes, but its responses are lost.
    pub(crate) silent: bool,
    /// The duration of each call.
    pub(crate) takes: Duration,
    pub(crate) deadlines: usize,
}

impl Stand {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().expect("no panic"))
    }

    pub(crate) fn published(&self) -> Vec<Uuid> {
        self.with(|state| state.published.clone())
    }
}

fn outage() -> PublisherOutage {
    PublisherOutage { operation: "could not reach the stand-in", source: "it is away".into() }
}

impl Publisher for Stand {
    async fn deadline(&self, after: Duration) -> Result<Deadline, PublisherOutage> {
        let away = self.with(|state| {
            state.deadlines += 1;
            state.away
        });
        let unix_ms = u64::try_from(after.as_millis()).expect("short");
        if away { Err(outage()) } else { Ok(Deadline { unix_ms, server: ServerNumber::default() }) }
    }

    async fn publish(&self, events: &[Event], _: Deadline) -> Result<Vec<Publication>, PublisherOutage> {
        self.1.notify_one();
        let takes = self.with(|state| state.takes);
        tokio::time::sleep(takes).await;
        self.with(|state| {
            if state.away {
                return Err(outage());
            }
            state.calls.push(events.len());
            let mut failed = HashSet::new();
            let mut publish = |event: &Event| {
                if failed.contains(&event.partition_key) {
                    return Publication::Withheld;
                }
                let outcome = state.outcomes.get(&event.event_id).cloned().unwrap_or(Publication::Done);
                match outcome {
                    Publication::Done => state.published.push(event.event_id),
                    Publication::Failed(_) if !event.partition_key.is_empty() => {
                        failed.insert(event.partition_key.clone());
                    }
                    _ => {}
                }
                outcome
            };
            let outcomes = events.iter().map(&mut publish).collect();
            if state.silent { Err(outage()) } else { Ok(outcomes) }
        })
    }
}

/// An observer that records the relay's calls.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn tell(&self, line: String) {
        self.0.lock().expect("no panic").push(line);
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.0.lock().expect("no panic").iter().filter(|told| *told == line).count()
    }

    pub(crate) fn states(&self) -> Vec<String> {
        let told = self.0.lock().expect("no panic");
        told.iter().filter(|line| line.starts_with("state")).cloned().collect()
    }
}

impl RelayObserver for Told {
    fn claimed(&self, events: usize) {
        self.tell(format!("claimed {events}"));
    }

    fn marked(&self, result: &'static str, events: usize) {
        self.tell(format!("{result} {events}"));
    }

    fn published(&self, latency: Duration) {
        self.tell(format!("latency {}", latency.as_millis()));
    }

    fn leases_lost(&self, events: usize) {
        self.tell(format!("lost {events}"));
    }

    fn requeued(&self, events: usize) {
        self.tell(format!("requeued {events}"));
    }

    fn state(&self, state: &RelayState) {
        let state = if *state == RelayState::Running { 1 } else { 2 };
        self.tell(format!("state {state}"));
    }

    fn backlog(&self, stats: &Stats) {
        self.tell(format!("backlog {}", stats.pending));
    }
}

pub(crate) fn settings() -> RelaySettings {
    RelaySettings {
        relay_id: RelayId::parse("relay").expect("a name"),
        types: EventTypes::All,
        batch_size: 10,
        poll_interval: Duration::from_millis(500),
        lease_timeout: LEASE,
        max_claim_bytes: 16 * 1024 * 1024,
        max_event_bytes: 1_000,
        retry: RetryPolicy { jitter: 0.0, ..RetryPolicy::default() },
        republish_window: MINUTE * 10,
    }
}

/// A relay that runs until the test stops it.
pub(crate) struct Running<P = Stand> {
    pub(crate) memory: Memory,
    pub(crate) stand: P,
    pub(crate) told: Told,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl<P: Publisher + Clone> Running<P> {
    pub(crate) fn start(memory: Memory, stand: P, settings: RelaySettings) -> Self {
        let (told, stop) = (Told::default(), CancellationToken::new());
        let storage: MemoryStorage = memory.storage().clone();
        let relay = Relay::new(storage, stand.clone(), told.clone(), settings);
        let until = stop.clone();
        let task = tokio::spawn(async move { relay.run(until).await });
        Self { memory, stand, told, stop, task }
    }

    pub(crate) async fn stop(self) -> (Memory, P, Told) {
        self.stop.cancel();
        self.task.await.expect("it does not panic");
        (self.memory, self.stand, self.told)
    }
}

pub(crate) async fn with_events(numbers: impl IntoIterator<Item = u64>, key: &str) -> Memory {
    let memory = Memory::new();
    for number in numbers {
        memory.add(number, key).await;
    }
    memory
}

/// Advances the runtime's paused clock by `time` and runs everything due meanwhile.
pub(crate) async fn go_on(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) const MS: Duration = Duration::from_millis(1);
