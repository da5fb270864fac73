//! A publisher whose server is replaced by one that lacks what was acknowledged: what the relay sends again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    Deadline, DeliveredEvent, Event, Publication, Publisher, PublisherOutage, RelaySettings, Server,
    ServerId, Storage,
};
use pg::RawTimestamp;
use uuid::Uuid;

use crate::relay_fixture::{MS, Running, go_on, settings, with_events};
use crate::support::{LEASE, MINUTE, Memory, World, id, ids};

/// A publisher on one server after the other; clones share it.
#[derive(Clone, Default)]
struct Servers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    server: u64,
    /// What the server holds.
    held: HashSet<Uuid>,
    /// What it was told about each outbox: the server, and since when a comparison is unfinished.
    records: HashMap<String, (u64, Option<RawTimestamp>)>,
    /// Everything that was ever published.
    published: Vec<Uuid>,
    /// How many events were looked for.
    looked_for: usize,
    away: bool,
}

impl Servers {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().expect("no panic"))
    }

    /// Another server takes over, which lacks these events.
    fn replace(&self, lost: &[Uuid]) {
        self.with(|state| {
            state.server += 1;
            state.held.retain(|id| !lost.contains(id));
        });
    }

    fn published(&self) -> Vec<Uuid> {
        self.with(|state| state.published.clone())
    }
}

fn outage() -> PublisherOutage {
    PublisherOutage { operation: "could not reach the stand-in", source: "it is away".into() }
}

impl Publisher for Servers {
    async fn deadline(&self, _: Duration) -> Result<Deadline, PublisherOutage> {
        self.with(|state| match state.away {
            true => Err(outage()),
            false => Ok(Deadline { unix_ms: 0, server: ServerId(state.server) }),
        })
    }

    async fn publish(
        &self,
        events: &[Event],
        deadline: Deadline,
    ) -> Result<Vec<Publication>, PublisherOutage> {
        self.with(|state| {
            if state.away || deadline.server.0 != state.server {
                return Err(outage());
            }
            for event in events.iter().filter(|event| state.held.insert(event.event_id)) {
                state.published.push(event.event_id);
            }
            Ok(events.iter().map(|_| Publication::Done).collect())
        })
    }

    async fn server(&self, outbox: &str) -> Result<Server, PublisherOutage> {
        self.with(|state| {
            let record = state.records.get(outbox);
            let is_compared = record == Some(&(state.server, None));
            let unfinished_since = record.and_then(|(_, since)| *since);
            match state.away {
                true => Err(outage()),
                false => Ok(Server { id: ServerId(state.server), is_compared, unfinished_since }),
            }
        })
    }

    async fn record_server(
        &self,
        outbox: &str,
        server: ServerId,
        unfinished_since: Option<RawTimestamp>,
    ) -> Result<(), PublisherOutage> {
        self.with(|state| {
            if server.0 != state.server {
                return Err(outage());
            }
            state.records.insert(outbox.to_owned(), (server.0, unfinished_since));
            Ok(())
        })
    }

    async fn find(&self, events: &[DeliveredEvent]) -> Result<Vec<bool>, PublisherOutage> {
        self.with(|state| {
            state.looked_for += events.len();
            Ok(events.iter().map(|event| state.held.contains(&event.event_id)).collect())
        })
    }
}

/// A relay that has delivered events 1 to 5, and compared the server.
async fn delivered() -> Running<Servers> {
    let running = Running::start(with_events(1..=5, "k").await, Servers::default(), settings());
    go_on(MINUTE * 2).await;
    assert_eq!(running.stand.published(), ids(1..=5));
    assert_eq!(running.stand.with(|state| state.records["memory"]), (0, None), "nothing is left to compare");
    running
}

#[tokio::test(start_paused = true)]
async fn what_the_next_server_lacks_is_published_again_once_and_before_what_is_new() {
    let running = delivered().await;
    running.memory.add(6, "k").await;
    running.stand.replace(&ids([4, 5]));
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([4, 5, 6]));
    go_on(MINUTE * 10).await;
    let (memory, stand, told) = running.stop().await;
    assert_eq!(stand.published().len(), 8, "and not once more");
    assert_eq!(told.count("requeued 2"), 1);
    for number in 1..=6 {
        assert_eq!(memory.status(id(number)).await, "DELIVERED");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lacks_nothing_is_looked_at_twice_and_nothing_is_published() {
    let running = delivered().await;
    let before = running.stand.with(|state| state.looked_for);
    running.stand.replace(&[]);
    go_on(MINUTE * 20).await;
    assert_eq!(running.stand.with(|state| state.looked_for) - before, 10);
    assert_eq!(running.stand.published().len(), 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_starts_on_a_server_that_was_compared_looks_for_nothing() {
    let running = delivered().await;
    let (memory, stand, _) = running.stop().await;
    let before = stand.with(|state| state.looked_for);
    stand.with(|state| state.held.clear());
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.with(|state| state.looked_for), before, "what consumers have taken is not sent again");
}

#[tokio::test(start_paused = true)]
async fn a_loss_while_no_relay_ran_is_noticed_by_the_next_however_late() {
    let (memory, stand, _) = delivered().await.stop().await;
    stand.replace(&ids([5]));
    go_on(MINUTE * 600).await;
    let running = Running::start(memory, stand, settings());
    go_on(MS * 100).await;
    assert_eq!(running.stand.published()[5..], ids([5]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_outlived_its_server_is_found_by_a_later_round() {
    let running = delivered().await;
    // Another relay has published event 6, and its mark takes as long as its lease.
    running.memory.add(6, "late").await;
    let (token, claimed) = running.memory.claim(1).await;
    assert_eq!(claimed, ids([6]));
    running.stand.replace(&ids([]));
    go_on(MS * 1_500).await;
    let records = running.stand.with(|state| state.records["memory"]);
    assert!(records.1.is_some(), "the first round is over, and the comparison is not: {records:?}");
    go_on(LEASE - MS * 2_000).await;
    running.memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 2).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6]));
}

#[tokio::test(start_paused = true)]
async fn rounds_go_on_while_a_claim_is_held_that_was_made_before_the_change() {
    let long = RelaySettings { lease_timeout: MINUTE * 10, ..settings() };
    let memory = Memory::new();
    memory.add(1, "late").await;
    let (token, claimed) = memory.claim(1).await;
    let running = Running::start(memory, Servers::default(), long);
    go_on(MINUTE * 8).await;
    running.memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published(), ids([1]), "the server never had it");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_killed_during_a_comparison_leaves_its_beginning_to_the_next() {
    let running = delivered().await;
    running.task.abort();
    let Running { memory, stand, .. } = running;
    stand.replace(&ids([4, 5]));
    go_on(MINUTE * 30).await;
    // It records the beginning, delivers what is new, and is killed.
    let since = memory.storage().comparison_start(MINUTE * 10).await.expect("no failure").since;
    stand.record_server("memory", ServerId(1), Some(since)).await.expect("it is there");
    memory.add(6, "new").await;
    let (token, claimed) = memory.claim(1).await;
    stand.with(|state| state.held.insert(id(6)));
    memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 30).await;
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([4, 5]));
}

#[tokio::test(start_paused = true)]
async fn two_relays_send_a_lost_event_once() {
    let running = delivered().await;
    let other = Running::start(Memory(running.memory.0.clone()), running.stand.clone(), settings());
    go_on(MINUTE).await;
    running.stand.replace(&ids([2, 3, 4, 5]));
    go_on(MINUTE * 3).await;
    let (_, _, told) = other.stop().await;
    let (_, stand, told_too) = running.stop().await;
    assert_eq!(stand.published().len(), 9);
    assert_eq!(told.count("requeued 4") + told_too.count("requeued 4"), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_window_nothing_is_compared() {
    let without = RelaySettings { republish_window: Duration::ZERO, ..settings() };
    let running = Running::start(with_events(1..=5, "k").await, Servers::default(), without);
    go_on(MINUTE).await;
    running.stand.replace(&ids([5]));
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!((stand.published().len(), stand.with(|state| state.looked_for)), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_delivered_before_the_window_is_left_alone() {
    let running = delivered().await;
    go_on(MINUTE * 30).await;
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    running.stand.replace(&ids([1, 6]));
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

#[tokio::test(start_paused = true)]
async fn servers_that_replace_each_other_quickly_make_the_comparison_no_longer() {
    let running = delivered().await;
    go_on(MINUTE * 60).await;
    for _ in 0..100 {
        running.stand.replace(&[]);
        go_on(MINUTE / 2).await;
    }
    let since = running.stand.with(|state| state.records["memory"]).1.expect("it is not finished");
    let now = running.memory.now().await;
    let window = settings().republish_window + LEASE + MINUTE;
    assert!(since >= (now - window).into(), "{since:?}");
    let looked_for = running.stand.with(|state| state.looked_for);
    running.stand.replace(&[]);
    go_on(MINUTE / 2).await;
    assert_eq!(
        running.stand.with(|state| state.looked_for),
        looked_for + 5,
        "those of the newest window alone"
    );
    running.stop().await;
}
