//! One row for each replica, and its activity added up.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::ports::{
    Activity, ActivityQueries, BlockedReport, ReplicaReport, ReplicaStore, StepDownStore, WorkerReport,
};
use domain::query::{ActivityPeriod, REPLICA_FRESH_FOR};
use domain::replica::{ActivityPart, Delays, PartActivity};
use domain::route::Channel;
use domain::step_down::{StepDown, StepDownState};
use memory_stores::RecordedAction;
use serde_json::json;

/// A store under test, and a test's observations of it and actions on it.
pub trait ReplicasFixture {
    /// The store.
    fn store(&self) -> &(impl ReplicaStore + StepDownStore);

    /// The queries on the activity of all replicas together.
    fn queries(&self) -> &impl ActivityQueries;

    /// Each replica and its leaderships, by name.
    fn replicas(&self) -> impl Future<Output = Vec<(String, Vec<String>)>>;

    /// The total activity of each replica, by name.
    fn activity(&self) -> impl Future<Output = BTreeMap<String, Activity>>;

    /// The total activity of each part.
    fn parts(&self) -> impl Future<Output = BTreeMap<ActivityPart, PartActivity>>;

    /// The rows of `operator_actions`, in order.
    fn actions(&self) -> impl Future<Output = Vec<RecordedAction>>;

    /// Makes all rows older.
    fn age(&self, by: Duration) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::replicas`], each on a fixture of its own.
#[macro_export]
macro_rules! replicas_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            replicas, $fixture;
            a_replica_has_one_row_with_its_last_report,
            activity_is_added_up_for_each_replica,
            activity_is_added_up_for_each_part,
            the_activity_of_all_replicas_is_summed_by_minute_for_the_last_hour,
            only_replicas_unseen_for_the_age_are_deleted_and_no_more_than_the_limit,
            only_activity_older_than_the_age_is_deleted_and_no_more_than_the_limit,
            a_replica_reads_back_the_last_request_to_step_down,
            a_request_leaves_a_row_and_one_to_an_unknown_replica_leaves_none,
            another_replica_counts_while_it_has_been_seen_lately,
        );
    };
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A report with a value for everything that it can contain.
pub fn report(replica: &str, leader_of: &[&str]) -> ReplicaReport {
    ReplicaReport {
        replica: replica.to_owned(),
        version: "0.1.0".to_owned(),
        started_at: Timestamp::UNIX_EPOCH,
        leader_of: leader_of.iter().map(|&worker| worker.to_owned()).collect(),
        workers: vec![WorkerReport {
            worker: "intake".to_owned(),
            last_pass_at: Timestamp::UNIX_EPOCH,
            blocked: Some(BlockedReport {
                entry_id: Some(EntryId::new(7, 0)),
                cause: "slow \0 directory".to_owned(),
                since: Timestamp::UNIX_EPOCH,
            }),
            position: None,
            deferred: None,
            attempts: None,
        }],
        stopped: false,
    }
}

async fn save(fixture: &impl ReplicasFixture, replica: &str, leader_of: &[&str]) {
    fixture.store().save_replica(&report(replica, leader_of)).await.expect("the store is there");
}

async fn add(fixture: &impl ReplicasFixture, replica: &str, activity: &Activity) {
    fixture.store().add_activity(replica, activity).await.expect("the store is there");
}

async fn names(fixture: &impl ReplicasFixture) -> Vec<String> {
    fixture.replicas().await.into_iter().map(|(replica, _)| replica).collect()
}

pub async fn a_replica_has_one_row_with_its_last_report(fixture: impl ReplicasFixture) {
    save(&fixture, "b", &[]).await;
    save(&fixture, "a", &["intake"]).await;
    save(&fixture, "a", &["intake", "retention"]).await;
    let row = |replica: &str, leader_of: &[&str]| {
        (replica.to_owned(), leader_of.iter().map(|&worker| worker.to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(fixture.replicas().await, [row("a", &["intake", "retention"]), row("b", &[])]);
}

pub async fn activity_is_added_up_for_each_replica(fixture: impl ReplicasFixture) {
    let activity = Activity {
        accepted: 1,
        duplicates: 2,
        conflicts: 3,
        malformed: 4,
        published: 5,
        failed: 6,
        dead_lettered: 7,
    };
    for replica in ["a", "b", "a"] {
        add(&fixture, replica, &activity).await;
    }
    let mut twice = activity;
    twice += activity;
    let expected = BTreeMap::from([("a".to_owned(), twice), ("b".to_owned(), activity)]);
    assert_eq!(fixture.activity().await, expected);
}

pub async fn activity_is_added_up_for_each_part(fixture: impl ReplicasFixture) {
    let counted = |published, malformed, delay| {
        let mut delays = Delays::default();
        delays.add(Duration::from_millis(delay));
        PartActivity { activity: Activity { published, malformed, ..Activity::default() }, delays }
    };
    let push = ActivityPart::Routes { channel: Channel::Push, notification_type: "game.turn".to_owned() };
    let email = ActivityPart::Routes { channel: Channel::Email, notification_type: "game.turn".to_owned() };
    let producer = |name: &str| ActivityPart::Producer(name.to_owned());
    let (first, second) = (counted(1, 0, 3), counted(5, 0, 700));
    let parts =
        BTreeMap::from([(push.clone(), first), (producer("p \0"), counted(0, 2, 0)), (producer(""), first)]);
    let both = BTreeMap::from([(push.clone(), second), (email.clone(), second)]);
    let one = BTreeMap::from([(push.clone(), second)]);
    for (replica, parts) in [("a", &parts), ("b", &both), ("a", &one)] {
        fixture.store().add_part_activity(replica, parts).await.expect("the store is there");
    }
    let found = fixture.parts().await;
    let mut all = first;
    all += second;
    all += second;
    assert_eq!((found.len(), found.get(&push), found.get(&email)), (4, Some(&all), Some(&second)));
    assert_eq!(found.get(&producer("")), Some(&first));
    let history = fixture.queries().activity(ActivityPeriod::Day).await.expect("the store is there");
    let routes = |channel| history.routes.iter().find(|of| of.channel == channel).expect("its routes");
    let published: u64 = routes(Channel::Push).steps.iter().map(|step| step.published).sum();
    assert_eq!((history.routes.len(), published, history.producers.len()), (2, 11, 2));
    assert_eq!(routes(Channel::Email).steps[0].delay_p99_ms, Some(1_000));
    fixture.age(HOUR).await;
    let deleted = fixture.store().delete_activity(HOUR / 2, 3).await.expect("the store is there");
    assert_eq!((deleted, fixture.parts().await.len()), (3, 2));
}

pub async fn only_replicas_unseen_for_the_age_are_deleted_and_no_more_than_the_limit(
    fixture: impl ReplicasFixture,
) {
    for old in ["old-1", "old-2", "seen-again"] {
        save(&fixture, old, &[]).await;
    }
    fixture.age(HOUR).await;
    for young in ["seen-again", "young"] {
        save(&fixture, young, &[]).await;
    }
    fixture.age(HOUR / 2).await;
    let delete = async || fixture.store().delete_replicas(HOUR, 1).await.expect("the store is there");
    assert_eq!(delete().await, 1);
    assert_eq!(names(&fixture).await.len(), 3);
    assert_eq!((delete().await, delete().await), (1, 0));
    assert_eq!(names(&fixture).await, ["seen-again", "young"]);
}

pub async fn only_activity_older_than_the_age_is_deleted_and_no_more_than_the_limit(
    fixture: impl ReplicasFixture,
) {
    let one = Activity { accepted: 1, ..Activity::default() };
    for old in ["a", "b"] {
        add(&fixture, old, &one).await;
    }
    fixture.age(HOUR).await;
    add(&fixture, "b", &one).await;
    fixture.age(HOUR / 2).await;
    let delete = async || fixture.store().delete_activity(HOUR, 1).await.expect("the store is there");
    assert_eq!((delete().await, delete().await, delete().await), (1, 1, 0));
    assert_eq!(fixture.activity().await, BTreeMap::from([("b".to_owned(), one)]));
}

async fn ask(fixture: &impl ReplicasFixture, replica: &str) -> bool {
    let request = StepDown { replica: replica.into(), actor: "me@here".into(), request_id: "r-1".into() };
    fixture.store().request_step_down(&request).await.expect("the store is there")
}

async fn state(fixture: &impl ReplicasFixture, replica: &str) -> StepDownState {
    fixture.store().get_step_down(replica).await.expect("the store is there")
}

pub async fn a_replica_reads_back_the_last_request_to_step_down(fixture: impl ReplicasFixture) {
    let none = StepDownState { requested_ago: None, other_replica: false };
    assert_eq!(state(&fixture, "a").await, none);
    save(&fixture, "a", &["intake"]).await;
    assert_eq!(state(&fixture, "a").await, none);
    assert!(ask(&fixture, "a").await);
    fixture.age(HOUR).await;
    let ago = state(&fixture, "a").await.requested_ago.expect("it was asked");
    assert!((HOUR..HOUR + HOUR / 4).contains(&ago), "{ago:?}");
    // A report keeps the request, and a later request replaces it.
    save(&fixture, "a", &["intake"]).await;
    assert!(state(&fixture, "a").await.requested_ago.expect("it was asked") >= HOUR);
    assert!(ask(&fixture, "a").await);
    assert!(state(&fixture, "a").await.requested_ago.expect("it was asked") < HOUR / 4);
}

pub async fn a_request_leaves_a_row_and_one_to_an_unknown_replica_leaves_none(fixture: impl ReplicasFixture) {
    save(&fixture, "a", &["intake"]).await;
    assert!(!ask(&fixture, "b").await);
    assert_eq!(fixture.actions().await, []);
    assert!(ask(&fixture, "a").await);
    let expected = RecordedAction {
        actor: "me@here".to_owned(),
        action: "step_down".to_owned(),
        arguments: json!({"replica": "a"}),
        affected: 1,
        request_id: "r-1".to_owned(),
    };
    assert_eq!(fixture.actions().await, [expected]);
}

pub async fn another_replica_counts_while_it_has_been_seen_lately(fixture: impl ReplicasFixture) {
    save(&fixture, "a", &["intake"]).await;
    assert!(!state(&fixture, "a").await.other_replica);
    save(&fixture, "b", &[]).await;
    assert!(state(&fixture, "a").await.other_replica);
    fixture.age(REPLICA_FRESH_FOR * 2).await;
    assert!(!state(&fixture, "a").await.other_replica);
}

pub async fn the_activity_of_all_replicas_is_summed_by_minute_for_the_last_hour(
    fixture: impl ReplicasFixture,
) {
    let of = |accepted, published| Activity {
        accepted,
        duplicates: 1,
        conflicts: 2,
        malformed: 3,
        published,
        failed: 4,
        dead_lettered: 5,
    };
    let store = fixture.store();
    store.add_activity("one", &of(100, 100)).await.expect("the store is there");
    fixture.age(Duration::from_mins(50)).await;
    store.add_activity("one", &of(10, 20)).await.expect("the store is there");
    fixture.age(Duration::from_mins(20)).await;
    store.add_activity("one", &of(1, 2)).await.expect("the store is there");
    store.add_activity("other", &of(5, 7)).await.expect("the store is there");
    let history = fixture.queries().activity(ActivityPeriod::Hour).await.expect("the store is there");
    let present = history.steps.last().expect("a step").at;
    let minutes: Vec<_> = history.steps.iter().filter(|step| step.activity != Activity::default()).collect();
    let (mut both, newest) = (of(1, 2), minutes.last().expect("a minute"));
    both += of(5, 7);
    // The two may fall into different minutes.
    let counted: Vec<Activity> = minutes.iter().map(|step| step.activity).collect();
    let sum = counted.iter().skip(1).fold(Activity::default(), |mut sum, activity| {
        sum += *activity;
        sum
    });
    assert_eq!((counted.first(), sum), (Some(&of(10, 20)), both));
    assert!(newest.at <= present && newest.at + Duration::from_mins(2) > present);
    let apart = newest.at.saturating_since(minutes[0].at);
    assert!((Duration::from_mins(20)..=Duration::from_mins(21)).contains(&apart), "{apart:?}");
}
