//! One row for each replica, and what it did added up.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::ports::{Activity, ActivityQueries, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};

/// A store to try, and what a test must do to it or see of it.
pub trait ReplicasFixture {
    /// It.
    fn store(&self) -> &impl ReplicaStore;

    /// What reads the activity of all replicas together.
    fn queries(&self) -> &impl ActivityQueries;

    /// Each replica and what it leads, by name.
    fn replicas(&self) -> impl Future<Output = Vec<(String, Vec<String>)>>;

    /// What each replica did, by name.
    fn activity(&self) -> impl Future<Output = BTreeMap<String, Activity>>;

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
            the_activity_of_all_replicas_is_summed_by_minute_for_the_last_hour,
            only_replicas_unseen_for_the_age_are_deleted_and_no_more_than_the_limit,
            only_activity_older_than_the_age_is_deleted_and_no_more_than_the_limit,
        );
    };
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A report with everything that it can have.
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
            deferred: 0,
        }],
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
    let history = fixture.queries().activity().await.expect("the store is there");
    let (mut both, newest) = (of(1, 2), history.minutes.last().expect("a minute"));
    both += of(5, 7);
    // The two may fall into two minutes.
    let counted: Vec<Activity> = history.minutes.iter().map(|minute| minute.activity).collect();
    let sum = counted.iter().skip(1).fold(Activity::default(), |mut sum, activity| {
        sum += *activity;
        sum
    });
    assert_eq!((counted.first(), sum), (Some(&of(10, 20)), both));
    assert!(newest.minute <= history.present && newest.minute + Duration::from_mins(2) > history.present);
    let apart = newest.minute.saturating_since(history.minutes[0].minute);
    assert!((Duration::from_mins(20)..=Duration::from_mins(21)).contains(&apart), "{apart:?}");
}
