//! When a comparison follows, what it appends, and what is left when it does not come to its end.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use ambient::ManualClock;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, DuePage, OutboundState, Published, PublishedEntry, PublishedPage, RecordCursor, Swap,
};
use domain::route::{LiveRoute, RouteKey, Version};
use opentelemetry::global::meter;

use super::*;
use crate::fakes::{self, down, route};

const WINDOW: Duration = Duration::from_secs(600);

/// Both stores, with a gateway stream and no mail stream.
#[derive(Clone, Default)]
struct Stores(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// What ids are made of.
    clock: u64,
    run_id: u32,
    replication_id: u32,
    /// Each entry's route, by its id; `None` if there is no such key.
    stream: Option<BTreeMap<EntryId, RouteKey>>,
    last_generated: EntryId,
    max_deleted: EntryId,
    receipts: HashMap<RouteKey, EntryId>,
    /// Leases of publishers.
    held: HashSet<RouteKey>,
    /// Published routes and their entry ids.
    routes: Vec<(LiveRoute, EntryId)>,
    saved: Vec<SeenStream>,
    /// What each listing asked for: published since, accepted after.
    listed: Vec<(Timestamp, Timestamp)>,
    /// What the next replacements answer.
    replacing: VecDeque<StoreError>,
    /// How long each of them takes, and how many there were.
    replacing_takes: Duration,
    replacements: u32,
    refused: Option<RouteKey>,
    /// The attempts that appended entries say.
    attempts: Vec<String>,
    elections: u32,
    another_leads: bool,
}

impl Inner {
    fn add(&mut self, key: &RouteKey) -> EntryId {
        self.clock += 1;
        let id = EntryId::new(self.clock, 0);
        self.last_generated = id;
        self.stream.get_or_insert_default().insert(id, key.clone());
        id
    }

    fn publish(&mut self, number: u64) {
        let route = route(number, 0);
        let id = self.add(&route.key);
        self.routes.push((route, id));
    }

    /// Another server that has the first `kept` entries.
    fn fail_over(&mut self, kept: usize) {
        self.run_id += 1;
        self.replication_id += 1;
        let stream = self.stream.get_or_insert_default();
        *stream = std::mem::take(stream).into_iter().take(kept).collect();
        self.last_generated = stream.keys().next_back().copied().unwrap_or_default();
        self.receipts.clear();
    }

    /// How often each route is in the stream, in the order of the routes.
    fn counts(&self) -> Vec<usize> {
        let stream = self.stream.clone().unwrap_or_default();
        let count = |key: &RouteKey| stream.values().filter(|name| *name == key).count();
        self.routes.iter().map(|(route, _)| count(&route.key)).collect()
    }

    /// Whether each published route's entry is under its id.
    fn is_consistent(&self) -> bool {
        let stream = self.stream.clone().unwrap_or_default();
        self.routes.iter().all(|(route, id)| stream.get(id) == Some(&route.key))
    }
}

impl Stores {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics while it holds the stores")
    }
}

impl Election for Stores {
    type Term = fakes::Alone;

    async fn campaign(&self) -> Result<Option<fakes::Alone>, StoreError> {
        let mut inner = self.lock();
        inner.elections += 1;
        Ok((!inner.another_leads).then_some(fakes::Alone(1)))
    }

    async fn leader_change(&self) {}

    async fn raise_fence(&self, _: domain::ports::Fence) -> Result<(), StoreError> {
        Ok(())
    }
}

impl OutboundInspection for Stores {
    async fn observe(&self) -> Result<OutboundServer, StoreError> {
        let inner = self.lock();
        let state = inner.stream.as_ref().map(|stream| OutboundState {
            first: stream.keys().next().copied(),
            last_generated: inner.last_generated,
            max_deleted: inner.max_deleted,
        });
        Ok(OutboundServer {
            run_id: inner.run_id.to_string(),
            replication_id: inner.replication_id.to_string(),
            streams: vec![(Channel::Push, "push".into(), state), (Channel::Email, "mail".into(), None)],
        })
    }

    async fn find_entries(
        &self,
        _: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> Result<(Option<OutboundState>, Vec<bool>), StoreError> {
        let state = self.observe().await?.streams[0].2;
        let stream = self.lock().stream.clone().unwrap_or_default();
        Ok((state, entries.iter().map(|(key, id)| stream.get(id) == Some(*key)).collect()))
    }

    async fn append_again(
        &self,
        _: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        receipt_ttl: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        assert_eq!(receipt_ttl, WINDOW, "a receipt outlives an outage of PostgreSQL as long as the window");
        let mut inner = self.lock();
        let appends = entries.iter().map(|&(key, OutboundEntry(fields))| {
            if inner.held.contains(key) {
                return Append::LeaseLost;
            }
            let id = match inner.receipts.get(key) {
                Some(id) => *id,
                None => {
                    let attempt = fields.iter().find(|(name, _)| *name == "attempt").expect("it has one");
                    inner.attempts.push(attempt.1.to_string());
                    inner.add(key)
                }
            };
            inner.receipts.insert(key.clone(), id);
            Append::Done(id.to_string())
        });
        Ok(appends.collect())
    }
}

impl RepublishStore for Stores {
    async fn load_outbound_streams(&self, _: &[&str]) -> Result<Vec<SeenStream>, StoreError> {
        Ok(self.lock().saved.clone())
    }

    async fn save_outbound_streams(&self, seen: &[SeenStream]) -> Result<(), StoreError> {
        self.lock().saved = seen.to_vec();
        Ok(())
    }

    async fn list_published_entries(
        &self,
        since: Timestamp,
        after: &RecordCursor,
        _: Timestamp,
        _: usize,
    ) -> Result<PublishedPage, StoreError> {
        let mut inner = self.lock();
        inner.listed.push((since, after.accepted_at));
        let entries = inner.routes.iter().map(|(route, entry_id)| PublishedEntry {
            key: route.key.clone(),
            channel: route.channel,
            entry_id: *entry_id,
        });
        Ok(PublishedPage { entries: entries.collect(), ..PublishedPage::default() })
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let inner = self.lock();
        let routes = inner.routes.iter().map(|(route, _)| route).filter(|route| keys.contains(&&route.key));
        Ok(DuePage { routes: routes.cloned().collect(), ..DuePage::default() })
    }

    async fn replace_published_entries(
        &self,
        given: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        let takes = self.lock().replacing_takes;
        tokio::time::sleep(takes).await;
        let mut inner = self.lock();
        inner.replacements += 1;
        if let Some(error) = inner.replacing.pop_front() {
            return Err(error);
        }
        if given.iter().any(|done| inner.refused.as_ref() == Some(&done.key)) {
            return Err(StoreError::Refused { operation: "replace", source: "refused".into() });
        }
        let swaps = given.iter().map(|done| {
            let found = inner.routes.iter_mut().find(|(route, _)| route.key == done.key);
            match found.filter(|(route, _)| route.version == done.version) {
                Some((route, id)) => {
                    *id = done.entry_id.parse().expect("an id");
                    route.version = Version::read(now);
                    Swap::Applied
                }
                None => Swap::Conflict,
            }
        });
        Ok(swaps.collect())
    }
}

/// One replica: it looks when it is told to.
struct Replica {
    republisher: Republisher<Stores, Stores, Stores, ManualClock>,
    watch: Watch,
}

impl Replica {
    fn of(stores: &Stores) -> Self {
        let republisher = Republisher {
            election: stores.clone(),
            store: stores.clone(),
            outbound: stores.clone(),
            clock: ManualClock::new(Timestamp::from_millis(10_000_000).expect("in range")),
            settings: RepublishSettings { window: WINDOW, dedupe_ttl: Duration::from_secs(120) },
            metrics: Metrics::new(&meter("test")),
            health: Health::new("republish"),
        };
        Self { republisher, watch: Watch::default() }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        self.republisher.run_once(&mut self.watch, &CancellationToken::new()).await
    }

    /// Looks, lets the time pass that completions are given, and looks again.
    async fn notice(&mut self) -> Result<(), StoreError> {
        self.look().await?;
        tokio::time::advance(SETTLE_TIME).await;
        self.look().await
    }
}

/// Ten published entries, seen and saved by a replica.
async fn published() -> (Stores, Replica) {
    let stores = Stores::default();
    for number in 1..=10 {
        stores.lock().publish(number);
    }
    let mut replica = Replica::of(&stores);
    replica.look().await.expect("the fakes are there");
    assert_eq!(stores.lock().saved.len(), 2, "the first look is saved");
    assert!(stores.lock().listed.is_empty(), "there is nothing to compare with");
    (stores, replica)
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_lost_tail_is_appended_again_once_with_the_same_attempt() {
    let (stores, mut replica) = published().await;
    stores.lock().routes[9].0.attempt_count = 2;
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    let inner = stores.lock();
    assert_eq!(inner.counts(), [1; 10]);
    assert!(inner.is_consistent());
    assert_eq!(inner.attempts, ["1", "1", "1", "3"]);
    assert_eq!(inner.saved[0].run_id, "1", "the new server is saved");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_compared_before_completions_had_time_to_be_committed() {
    let (stores, mut replica) = published().await;
    stores.lock().fail_over(6);
    replica.look().await.expect("the fakes are there");
    tokio::time::advance(SETTLE_TIME / 2).await;
    replica.look().await.expect("the fakes are there");
    assert!(stores.lock().listed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_lost_nothing_is_compared_and_appends_nothing() {
    let (stores, mut replica) = published().await;
    stores.lock().run_id += 1;
    replica.notice().await.expect("the fakes are there");
    replica.look().await.expect("the fakes are there");
    let inner = stores.lock();
    assert_eq!((inner.listed.len(), inner.counts()), (1, vec![1; 10]));
    assert_eq!(inner.saved[0].run_id, "1");
}

#[tokio::test(start_paused = true)]
async fn a_last_id_that_fell_on_the_same_server_is_compared() {
    let (stores, mut replica) = published().await;
    // Later entries are seen but not saved yet.
    stores.lock().publish(11);
    replica.look().await.expect("the fakes are there");
    assert_eq!(stores.lock().saved[0].last_generated, EntryId::new(10, 0));
    {
        let mut inner = stores.lock();
        inner.stream.as_mut().expect("it is there").pop_last();
        inner.last_generated = EntryId::new(10, 0);
    }
    replica.notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [1; 11]);
    assert!(stores.lock().is_consistent());
}

#[tokio::test(start_paused = true)]
async fn a_loss_while_no_replica_ran_is_noticed_by_the_next_one() {
    let (stores, first) = published().await;
    drop(first);
    stores.lock().fail_over(0);
    stores.lock().publish(11);
    stores.lock().fail_over(1);
    // The first entry stays: entries before it would count as trimmed.
    Replica::of(&stores).notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().listed.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_window_is_counted_from_when_the_former_server_was_seen_and_records_are_an_hour_older() {
    let (stores, mut replica) = published().await;
    let seen_at = stores.lock().saved[0].seen_at;
    replica.republisher.clock.advance(Duration::from_secs(7_200));
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    let since = seen_at - WINDOW;
    assert_eq!(stores.lock().listed, [(since, since - Duration::from_secs(3_600))]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn trimmed_and_deleted_entries_are_not_appended_again() {
    let (stores, mut replica) = published().await;
    {
        let mut inner = stores.lock();
        let stream = inner.stream.as_mut().expect("it is there");
        stream.retain(|id, _| id.millis > 2 && id.millis != 4);
        inner.max_deleted = EntryId::new(4, 0);
        inner.fail_over(5);
    }
    replica.notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [0, 0, 1, 0, 1, 1, 1, 1, 1, 1]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn an_absent_or_empty_stream_is_never_filled() {
    for kept in [None, Some(0)] {
        let (stores, mut replica) = published().await;
        stores.lock().fail_over(0);
        stores.lock().stream = kept.map(|_| BTreeMap::new());
        replica.notice().await.expect("the fakes are there");
        let inner = stores.lock();
        assert_eq!((inner.listed.len(), inner.counts()), (1, vec![0; 10]));
        assert_eq!(inner.saved[0].run_id, "1", "it is reported once");
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_compares() {
    let (stores, mut one) = published().await;
    let mut two = Replica::of(&stores);
    two.look().await.expect("the fakes are there");
    stores.lock().fail_over(6);
    two.look().await.expect("the fakes are there");
    one.notice().await.expect("the fakes are there");
    two.look().await.expect("the fakes are there");
    two.look().await.expect("the fakes are there");
    assert_eq!(stores.lock().listed.len(), 1);
    assert_eq!(stores.lock().counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_not_elected_compares_and_saves_nothing_and_takes_over_later() {
    let (stores, mut replica) = published().await;
    stores.lock().another_leads = true;
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().listed.len(), 0);
    assert_eq!(stores.lock().saved[0].run_id, "0");
    stores.lock().another_leads = false;
    replica.look().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn what_was_appended_but_not_written_down_is_completed_and_not_appended_twice() {
    let (stores, mut replica) = published().await;
    stores.lock().fail_over(6);
    stores.lock().replacing.push_back(down("replace"));
    replica.notice().await.expect_err("PostgreSQL is down");
    assert_eq!(stores.lock().saved[0].run_id, "0", "the change is not forgotten");
    // Another replica goes on.
    Replica::of(&stores).notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [1; 10]);
    assert!(stores.lock().is_consistent());
}

#[tokio::test(start_paused = true)]
async fn while_a_comparison_fails_the_worker_does_not_say_that_it_has_recovered() {
    let (stores, Replica { republisher, .. }) = published().await;
    stores.lock().replacing.extend((0..20).map(|_| down("replace")));
    stores.lock().fail_over(6);
    let (health, stop) = (republisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(republisher.run(stop.clone()));
    let mut blocked = 0;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        blocked += u32::from(health.status().blocked.is_some());
        assert_eq!(health.recoveries(), 0);
    }
    assert!(blocked >= 50, "blocked for {blocked} of 60 s");
    stores.lock().replacing.clear();
    tokio::time::sleep(SETTLE_TIME * 2).await;
    assert_eq!((health.recoveries(), stores.lock().is_consistent()), (1, true));
    stop.cancel();
    running.await.expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn a_route_that_a_publisher_holds_is_compared_again_when_it_is_free() {
    let (stores, mut replica) = published().await;
    let held = route(10, 0).key;
    stores.lock().held.insert(held.clone());
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(stores.lock().saved[0].run_id, "0");
    stores.lock().held.clear();
    replica.notice().await.expect("the fakes are there");
    assert_eq!(stores.lock().counts(), [1; 10]);
    assert_eq!(stores.lock().saved[0].run_id, "1");
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_locked_replacement_is_bisected() {
    let (stores, mut replica) = published().await;
    let timed_out = || StoreError::TimedOut { operation: "replace", source: "slow".into() };
    stores.lock().replacing.extend([timed_out(), timed_out()]);
    stores.lock().fail_over(2);
    replica.notice().await.expect("the fakes are there");
    assert!(stores.lock().is_consistent());
    let locked = || StoreError::Locked { operation: "replace", source: "locked".into() };
    // Four, two, one.
    stores.lock().replacing.extend([locked(), locked(), locked()]);
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    assert!(!stores.lock().is_consistent());
    replica.notice().await.expect("the fakes are there");
    assert!(stores.lock().is_consistent(), "the locked row was compared again");
    assert_eq!(stores.lock().counts(), [1; 10]);
}

// INV-12
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_comparison_between_two_locked_rows() {
    let (stores, mut replica) = published().await;
    for number in 11..=400 {
        stores.lock().publish(number);
    }
    replica.look().await.expect("the fakes are there");
    let locked = || StoreError::Locked { operation: "replace", source: "locked".into() };
    stores.lock().replacing.extend((0..10_000).map(|_| locked()));
    stores.lock().replacing_takes = Duration::from_millis(500);
    stores.lock().fail_over(2);
    let stop = CancellationToken::new();
    let running = tokio::spawn(replica.republisher.run(stop.clone()));
    tokio::time::sleep(SETTLE_TIME * 2).await;
    let before = stores.lock().replacements;
    assert!(before > 0, "the comparison is under way");
    stop.cancel();
    running.await.expect("it does not panic");
    let after = stores.lock().replacements - before;
    assert!(after <= 1, "{after} statements after the stop");
}

#[tokio::test(start_paused = true)]
async fn a_refused_replacement_harms_no_other_and_ends_the_comparison() {
    let (stores, mut replica) = published().await;
    stores.lock().refused = Some(route(8, 0).key);
    stores.lock().fail_over(6);
    replica.notice().await.expect("the fakes are there");
    let inner = stores.lock();
    assert_eq!(inner.counts(), [1; 10]);
    assert_eq!(inner.routes[7].1, EntryId::new(8, 0), "its old id");
    assert_eq!(inner.saved[0].run_id, "1", "it is not appended for ever");
}

#[tokio::test(start_paused = true)]
async fn while_nothing_changes_neither_an_election_nor_a_write_follows() {
    let (stores, mut replica) = published().await;
    let before = stores.lock().elections;
    for _ in 0..100 {
        tokio::time::advance(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the fakes are there");
    }
    assert_eq!(stores.lock().elections, before);
}

#[tokio::test(start_paused = true)]
async fn under_traffic_the_streams_are_saved_every_ten_seconds_at_most() {
    let (stores, mut replica) = published().await;
    let before = stores.lock().elections;
    for number in 0..20 {
        stores.lock().publish(100 + number);
        tokio::time::advance(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the fakes are there");
    }
    let elections = stores.lock().elections - before;
    assert!((3..=4).contains(&elections), "{elections} in 40 s");
}
