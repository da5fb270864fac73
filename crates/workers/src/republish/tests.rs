//! When a comparison follows, what it appends, and what is left when it does not come to its end.

mod changes;

use std::sync::Arc;

use ambient::ManualClock;
use domain::accept::{self, Known};
use domain::catalog::Catalog;
use domain::outbound::encode;
use domain::policy::Policy;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Append, Commit, Completion, Failed, Lease, LeaseStore, LeaseToken,
    Lookup, Outbound, Published, RouteStore, RowLocks, User,
};
use domain::record::NotificationId;
use domain::route::{LiveRoute, RouteKey, RouteStatus};
use memory_stores::{Effect, MemoryDatabase, MemoryElection, MemoryPublishing, Scripted};
use opentelemetry::global::meter;

use super::*;
use crate::fixtures::{World, down, intent, locked, refused, timed_out};

const WINDOW: Duration = Duration::from_secs(600);
/// The call that writes down what was appended again.
const REPLACE: &str = "replace_published_entries";

/// The stores, with a gateway stream and no mail stream.
struct Fixture {
    world: World,
}

/// The push route of the intent with this number. Numbers of two digits are in the same order as their names.
fn key(number: u64) -> RouteKey {
    RouteKey {
        notification_id: NotificationId::of(EntryId::new(10 + number, 0), 0),
        route_id: "push:user:u-1".into(),
    }
}

fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: Default::default(),
        locales: vec!["en".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(60),
        head_start: Duration::ZERO,
    }
}

impl Fixture {
    fn new() -> Self {
        Self { world: World::new(Timestamp::from_millis(10_000_000).expect("in range")) }
    }

    /// Accepts an intent; its push route.
    async fn accept(&self, number: u64) -> LiveRoute {
        let (policy, now) = (policy(), self.world.clock.now());
        let entry = intent(10 + number, &format!("key-{number}"), "u-1");
        let decoded = [accept::decode("intents", entry, &policy, now)];
        let user = User { email: "u-1@example.com".into(), preferred_language: "en".into() };
        let users = [("u-1".to_owned(), Lookup::Found(user))].into();
        let schedule = policy.schedule(now, true);
        let mut decision = accept::decide("intents", &decoded, &Known::default(), &users, &policy, schedule);
        let outcome = decision.decided.remove(0).outcome;
        let batch = AcceptanceBatch { outcomes: vec![&outcome], checkpoint: None, answers: Vec::new() };
        assert_eq!(self.world.database.accept(batch).await.expect("it is there"), Commit::Committed);
        let mut routes = outcome.acceptance().expect("accepted").live_routes();
        routes.find(|route| route.channel == Channel::Push).expect("a push route")
    }

    /// Accepts an intent and publishes its push route.
    async fn publish(&self, number: u64) {
        self.publish_after(number, 0).await;
    }

    /// As [`Fixture::publish`], after as many failed attempts.
    async fn publish_after(&self, number: u64, failures: u32) {
        let (mut route, now) = (self.accept(number).await, self.world.clock.now());
        for attempt_count in 1..=failures {
            let failed = Failed {
                key: route.key.clone(),
                version: route.version,
                channel: route.channel,
                attempt_count,
                retry_at: Some(now),
                classification: "gateway_stream_publish_failed",
                message: "WRONGTYPE".into(),
            };
            let done = self.world.database.complete_routes_failed(&[failed], now, RowLocks::Wait).await;
            assert_eq!(done.expect("it is there"), [Completion::Applied]);
            let page = self.world.database.get_live_routes(&[&route.key]).await.expect("it is there");
            route = page.routes.into_iter().next().expect("it is live");
        }
        let token = LeaseToken("the publisher".to_owned());
        let lease = self.world.publishing.acquire_leases(&[&route.key], &token, WINDOW).await;
        assert_eq!(lease.expect("it is there"), [Lease::Won]);
        let entry = encode(&route).expect("it can be encoded");
        let entries = [(&route.key, &entry)];
        let appended =
            Outbound::append(&self.world.publishing, Channel::Push, &entries, &token, WINDOW).await;
        let Append::Done(entry_id) = appended.expect("it is there").remove(0) else { panic!("not appended") };
        let published = Published { key: route.key.clone(), version: route.version, entry_id };
        let done = self.world.database.complete_routes_published(&[published], now, RowLocks::Wait).await;
        assert_eq!(done.expect("it is there"), [Completion::Applied]);
    }

    /// The ids of the entries of the gateway's stream.
    fn ids(&self) -> Vec<EntryId> {
        self.world.publishing.entries(Channel::Push).into_iter().map(|(id, _)| id).collect()
    }

    /// The attempts that the entries say.
    fn attempts(&self) -> Vec<String> {
        let entries = self.world.publishing.entries(Channel::Push).into_iter();
        let attempt = |fields: Vec<(String, String)>| fields.into_iter().find(|(name, _)| name == "attempt");
        entries.filter_map(|(_, fields)| Some(attempt(fields)?.1)).collect()
    }

    /// The keys of the published routes, in their order.
    fn published(&self) -> Vec<RouteKey> {
        let routes = self.world.database.routes().into_iter();
        routes.filter(|(_, status)| *status == RouteStatus::Published).map(|(key, _)| key).collect()
    }

    fn published_entry_id(&self, number: u64) -> String {
        self.world.database.route(&key(number)).expect("it was published").published_entry_id
    }

    /// How often each published route is in the stream.
    fn counts(&self) -> Vec<usize> {
        let appended = self.world.appended();
        let count = |key: &RouteKey| appended.iter().filter(|name| **name == key.to_string()).count();
        self.published().iter().map(count).collect()
    }

    /// Whether each published route's entry is under its id.
    fn is_consistent(&self) -> bool {
        let names = self.ids().into_iter().map(|id| id.to_string()).zip(self.world.appended());
        let entries: std::collections::HashMap<String, String> = names.collect();
        self.published().iter().all(|key| {
            let id = self.world.database.route(key).expect("it is published").published_entry_id;
            entries.get(&id) == Some(&key.to_string())
        })
    }

    /// How the streams were seen when that was saved last.
    async fn saved(&self) -> Vec<SeenStream> {
        let streams = Channel::ALL.map(Channel::as_str);
        RepublishStore::load_outbound_streams(&*self.world.database, &streams).await.expect("it is there")
    }

    /// What each listing asked for: published since, accepted after.
    fn listings(&self) -> Vec<Vec<String>> {
        let calls = self.world.script.calls_of("list_published_entries");
        calls.into_iter().map(|call| call.elements).collect()
    }

    /// Lets time pass, for the replica and for the servers.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.world.clock.advance(time);
    }

    fn campaigns(&self) -> usize {
        self.world.script.count("campaign")
    }
}

/// One replica: it looks when it is told to.
struct Replica {
    republisher: Republisher<
        Scripted<MemoryElection>,
        Scripted<MemoryDatabase>,
        Scripted<MemoryPublishing>,
        Arc<ManualClock>,
    >,
    watch: Watch,
}

impl Replica {
    fn of(Fixture { world }: &Fixture) -> Self {
        let republisher = Republisher {
            election: world.election.clone(),
            store: world.database.clone(),
            outbound: world.publishing.clone(),
            clock: Arc::clone(&world.clock),
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
        self.republisher.clock.advance(SETTLE_TIME);
        self.look().await
    }
}

/// Ten published entries, seen and saved by a replica.
async fn published() -> (Fixture, Replica) {
    published_after(0).await
}

/// As [`published`]; attempts of the last route failed before.
async fn published_after(failures: u32) -> (Fixture, Replica) {
    let fixture = Fixture::new();
    for number in 1..=9 {
        fixture.publish(number).await;
    }
    fixture.publish_after(10, failures).await;
    let mut replica = Replica::of(&fixture);
    replica.look().await.expect("the stores are there");
    assert_eq!(fixture.saved().await.len(), 2, "the first look is saved");
    assert!(fixture.listings().is_empty(), "there is nothing to compare with");
    (fixture, replica)
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_lost_tail_is_appended_again_once_with_the_same_attempt() {
    let (fixture, mut replica) = published_after(2).await;
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert!(fixture.is_consistent());
    assert_eq!(fixture.attempts()[6..], ["1", "1", "1", "3"]);
    let receipt = fixture.world.publishing.remaining(&key(10));
    assert_eq!(receipt, Some(WINDOW), "a receipt outlives an outage of PostgreSQL as long as the window");
    assert_eq!(fixture.saved().await[0].run_id, "1", "the new server is saved");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn trimmed_and_deleted_entries_are_not_appended_again() {
    let (fixture, mut replica) = published().await;
    let ids = fixture.ids();
    fixture.world.publishing.trim(Channel::Push, ids[2]);
    fixture.world.publishing.delete_entry(Channel::Push, ids[3]);
    fixture.world.publishing.fail_over(5);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [0, 0, 1, 0, 1, 1, 1, 1, 1, 1]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn an_absent_or_empty_stream_is_never_filled() {
    for is_absent in [true, false] {
        let (fixture, mut replica) = published().await;
        fixture.world.publishing.fail_over(0);
        if is_absent {
            fixture.world.publishing.delete_stream(Channel::Push);
        }
        replica.notice().await.expect("the stores are there");
        assert_eq!((fixture.listings().len(), fixture.counts()), (1, vec![0; 10]));
        assert_eq!(fixture.saved().await[0].run_id, "1", "it is reported once");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_appended_but_not_written_down_is_completed_and_not_appended_twice() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    fixture.world.script.fail(REPLACE, down(REPLACE));
    replica.notice().await.expect_err("PostgreSQL is down");
    assert_eq!(fixture.saved().await[0].run_id, "0", "the change is not forgotten");
    // Another replica goes on.
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert!(fixture.is_consistent());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_a_publisher_holds_is_compared_again_when_it_is_free() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    let (held, token) = (key(10), LeaseToken("a publisher".to_owned()));
    let leases = fixture.world.publishing.acquire_leases(&[&held], &token, WINDOW).await;
    assert_eq!(leases.expect("the stores are there"), [Lease::Won]);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(fixture.saved().await[0].run_id, "0");
    let released = fixture.world.publishing.release_leases(&[&held], &token).await;
    released.expect("the stores are there");
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert_eq!(fixture.saved().await[0].run_id, "1");
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_locked_replacement_is_bisected() {
    let (fixture, mut replica) = published().await;
    for _ in 0..2 {
        fixture.world.script.fail(REPLACE, timed_out(REPLACE));
    }
    fixture.world.publishing.fail_over(2);
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_consistent());
    // Four, two, one.
    for _ in 0..3 {
        fixture.world.script.fail(REPLACE, locked(REPLACE));
    }
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert!(!fixture.is_consistent());
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_consistent(), "the locked row was compared again");
    assert_eq!(fixture.counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_replacement_harms_no_other_and_ends_the_comparison() {
    let (fixture, mut replica) = published().await;
    let (before, refused_key) = (fixture.published_entry_id(8), key(8).to_string());
    fixture.world.script.on(REPLACE, move |call| match call.elements.contains(&refused_key) {
        true => Effect::Fail(refused(REPLACE)),
        false => Effect::Pass,
    });
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert_eq!(fixture.published_entry_id(8), before, "its old id");
    assert_eq!(fixture.saved().await[0].run_id, "1", "it is not appended for ever");
}

#[tokio::test(start_paused = true)]
async fn while_a_comparison_fails_the_worker_does_not_say_that_it_has_recovered() {
    let (fixture, Replica { republisher, .. }) = published().await;
    fixture.world.script.on(REPLACE, |_| Effect::Fail(down(REPLACE)));
    fixture.world.publishing.fail_over(6);
    let (health, stop) = (republisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(republisher.run(stop.clone()));
    let mut blocked = 0;
    for _ in 0..60 {
        fixture.pass(Duration::from_secs(1)).await;
        blocked += u32::from(health.status().blocked.is_some());
        assert_eq!(health.recoveries(), 0);
    }
    assert!(blocked >= 50, "blocked for {blocked} of 60 s");
    fixture.world.script.off(REPLACE);
    fixture.pass(SETTLE_TIME * 2).await;
    assert_eq!((health.recoveries(), fixture.is_consistent()), (1, true));
    stop.cancel();
    running.await.expect("it does not panic");
}

// INV-12
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_comparison_between_two_locked_rows() {
    let (fixture, mut replica) = published().await;
    for number in 11..=400 {
        fixture.publish(number).await;
    }
    replica.look().await.expect("the stores are there");
    let _locks: Vec<_> = (1..=400).map(|number| fixture.world.database.lock_route(&key(number))).collect();
    fixture.world.script.on(REPLACE, |_| Effect::Delay(Duration::from_millis(500)));
    fixture.world.publishing.fail_over(2);
    let stop = CancellationToken::new();
    let running = tokio::spawn(replica.republisher.run(stop.clone()));
    fixture.pass(SETTLE_TIME * 2).await;
    let before = fixture.world.script.count(REPLACE);
    assert!(before > 0, "the comparison is under way");
    stop.cancel();
    running.await.expect("it does not panic");
    let after = fixture.world.script.count(REPLACE) - before;
    assert!(after <= 1, "{after} statements after the stop");
}
