//! The conditions for a comparison, the entries that it appends, and what remains when it is not complete.

mod changes;
mod comparison;
mod losses;
mod order;

use std::sync::Arc;

use ambient::ManualClock;
use domain::accept::{self, Known};
use domain::catalog::Catalog;
use domain::operations::{Budgets, OperatorAction, RouteChange, Selection};
use domain::outbound::encode;
use domain::policy::Policy;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Append, ChangeOutcome, Completion, Failed, Fate, LeaseOutcome,
    LeaseStore, LeaseToken, Lookup, Operations, Outbound, Published, RouteStore, RowLocks, User,
};
use domain::record::NotificationId;
use domain::route::{LiveRoute, RouteKey, RouteStatus};
use memory_stores::{Effect, MemoryDatabase, MemoryElection, MemoryPublishing, Scripted};
use opentelemetry::global::meter;

use super::*;
use crate::fixtures::{World, down, intent, locked, refused, timed_out};

const WINDOW: Duration = Duration::from_secs(600);
/// The call that stores the new ids of entries that were appended again.
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

    /// Accepts an intent and returns its push route.
    async fn accept(&self, number: u64) -> LiveRoute {
        let (policy, now) = (policy(), self.world.clock.now());
        let entry = intent(10 + number, &format!("key-{number}"), "u-1");
        let decoded = [accept::decode("intents", entry, &policy, now)];
        let user = User { email: "u-1@example.com".into(), preferred_language: "en".into() };
        let users = [("u-1".to_owned(), Lookup::Found(user))].into();
        let schedule = policy.schedule(now, true);
        let mut decision = accept::decide("intents", &decoded, &Known::default(), &users, &policy, schedule);
        let outcome = decision.decided.remove(0).outcome;
        let batch = AcceptanceBatch { outcomes: vec![&outcome], checkpoint: None, responses: Vec::new() };
        assert_eq!(self.world.database.accept(batch).await.expect("it is there"), Fate::Committed);
        let mut routes = outcome.acceptance().expect("accepted").live_routes();
        routes.find(|route| route.channel == Channel::Push).expect("a push route")
    }

    /// Accepts an intent and publishes its push route.
    async fn publish(&self, number: u64) {
        self.publish_after(number, 0).await;
    }

    /// Same as [`Fixture::publish`], after `failures` failed attempts.
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
        let published = self.append_route(&route).await;
        self.complete(published).await;
    }

    /// Has a published push route sent again, and publishes it.
    async fn resend(&self, number: u64) {
        let (database, now) = (&self.world.database, self.world.clock.now());
        let change = RouteChange::resend(Budgets { push: 3, email: 7 }, String::new()).expect("no reason");
        let selection = Selection::Ids(vec![key(number).to_string()]);
        let targets = database.select_routes(&change, &selection).await.expect("it is there").targets;
        let action = OperatorAction {
            actor: "ops".to_owned(),
            request_id: "r-1".to_owned(),
            idempotency_key: None,
            selection,
        };
        let changed = database.change_routes(&change, &targets, &action, now).await;
        assert_eq!(changed.expect("it is there"), [ChangeOutcome::Changed]);
        let live = database.get_live_routes(&[&key(number)]).await.expect("it is there").routes.remove(0);
        let published = self.append_route(&live).await;
        self.complete(published).await;
    }

    /// Accepts an intent and appends the entry of its push route, without committing the completion.
    async fn append(&self, number: u64) -> Published {
        let route = self.accept(number).await;
        self.append_route(&route).await
    }

    async fn append_route(&self, route: &LiveRoute) -> Published {
        let token = LeaseToken("the publisher".to_owned());
        let lease = self.world.publishing.acquire_leases(&[route], &token, WINDOW).await;
        assert_eq!(lease.expect("it is there"), [LeaseOutcome::Won]);
        let entry = encode(route).expect("it can be encoded");
        let entries = [(&route.key, &entry)];
        let appended =
            Outbound::append(&self.world.publishing, Channel::Push, &entries, &token, WINDOW, None).await;
        let Append::Done(entry) = appended.expect("it is there").entries.remove(0) else {
            panic!("not appended")
        };
        Published { key: route.key.clone(), version: route.version, entry }
    }

    async fn complete(&self, published: Published) {
        let now = self.world.clock.now();
        let done = self.world.database.complete_routes_published(&[published], now, RowLocks::Wait).await;
        assert_eq!(done.expect("it is there"), [Completion::Applied]);
    }

    /// The ids of the entries of the gateway's stream.
    fn ids(&self) -> Vec<EntryId> {
        self.world.publishing.entries(Channel::Push).into_iter().map(|(id, _)| id).collect()
    }

    /// The attempts in the entries.
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

    /// The number of entries of each published route in the stream.
    fn counts(&self) -> Vec<usize> {
        let appended = self.world.appended();
        let count = |key: &RouteKey| appended.iter().filter(|name| **name == key.to_string()).count();
        self.published().iter().map(count).collect()
    }

    /// True if the entry of each published route is in the stream under the route's id.
    fn is_consistent(&self) -> bool {
        let names = self.ids().into_iter().map(|id| id.to_string()).zip(self.world.appended());
        let entries: std::collections::HashMap<String, String> = names.collect();
        self.published().iter().all(|key| {
            let id = self.world.database.route(key).expect("it is published").published_entry_id;
            entries.get(&id) == Some(&key.to_string())
        })
    }

    /// The streams as they were saved last.
    async fn saved(&self) -> Vec<SavedStream> {
        let streams = Channel::ALL.map(Channel::as_str);
        RepublishStore::load_outbound_streams(&*self.world.database, &streams).await.expect("it is there")
    }

    /// The run id of the server that was saved last.
    async fn saved_run_id(&self) -> String {
        self.saved().await[0].seen.server.run_id.to_string()
    }

    /// The arguments of each listing: accepted before, accepted since.
    fn listings(&self) -> Vec<Vec<String>> {
        let calls = self.world.script.calls_of("list_published_entries");
        calls.into_iter().map(|call| call.elements).collect()
    }

    /// Advances the time of the replica and of the servers.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.world.clock.advance(time);
    }

    fn campaigns(&self) -> usize {
        self.world.script.count("campaign")
    }
}

/// One replica, which observes when a test calls it.
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
        let unobserved = self.republisher.run_once(&mut self.watch, &CancellationToken::new()).await?;
        assert!(unobserved.is_none(), "{unobserved:?}");
        Ok(())
    }

    /// Observes, waits for the time that completions need, and observes again.
    async fn notice(&mut self) -> Result<(), StoreError> {
        self.look().await?;
        tokio::time::advance(SETTLE_TIME).await;
        self.republisher.clock.advance(SETTLE_TIME);
        self.look().await
    }
}

/// Creates ten published entries, observed and saved by a replica.
async fn published() -> (Fixture, Replica) {
    published_after(0).await
}

/// Same as [`published`], but `failures` attempts of the last route failed before.
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
