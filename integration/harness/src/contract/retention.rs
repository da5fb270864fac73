//! Old rows are removed, unless a route of theirs is live or another transaction has locked it.

use std::time::Duration;

use domain::accept::Known;
use domain::outcome::Outcome;
use domain::ports::{
    AcceptanceStore, Completion, Cutoff, Expired, Fate, MalformedKey, Removal, RetentionStore, RouteStore,
    RowLocks,
};
use domain::record::NotificationId;
use domain::route::{Channel, Failed, Published, RouteKey, SkipReason, Start};

use super::accepted::{accept, at, broken, commit, decide, entry};
use super::acknowledged;

/// A store under test, and a test's observations of it and actions on it.
pub trait RetentionFixture {
    /// A transaction that has locked a route.
    type Lock;

    /// The store; acceptance creates its rows.
    fn store(
        &self,
    ) -> &(impl AcceptanceStore + RouteStore + RetentionStore<NotificationId> + RetentionStore<MalformedKey>);

    /// Locks a route as another transaction.
    fn lock(&self, key: &RouteKey) -> impl Future<Output = Self::Lock>;

    /// Ends that transaction without a change.
    fn release(&self, lock: Self::Lock) -> impl Future<Output = ()>;

    /// The keys of all routes and dead letters, `<notification_id>/<route_id>`, sorted.
    fn dependents(&self) -> impl Future<Output = Vec<String>>;
}

/// Runs every case of [`crate::contract::retention`], each on a fixture of its own.
#[macro_export]
macro_rules! retention_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            retention, $fixture;
            records_older_than_the_cutoff_are_listed_oldest_first_page_by_page,
            a_record_goes_with_its_routes_and_dead_letters,
            a_record_with_a_live_route_stays,
            a_skipped_route_is_never_due_and_goes_with_its_record,
            a_record_with_a_locked_route_stays_and_the_others_go,
            a_record_that_is_not_old_enough_stays_even_if_it_is_named,
            a_record_whose_key_was_promised_for_longer_stays,
            malformed_intents_older_than_the_cutoff_are_listed_and_removed,
        );
    };
}

/// The cutoff for rows written before `seconds`, by either clock: the database's own is months later.
fn before(seconds: i64) -> Cutoff {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
    Cutoff::new(at(seconds) + MONTH, MONTH)
}

/// Completes all routes of all records: the pushes as published, the e-mails as dead letters.
async fn complete_all(fixture: &impl RetentionFixture) {
    let store = fixture.store();
    for key in live(fixture, Channel::Push).await {
        let published = Published { key: key.key, version: key.version, entry: acknowledged("7-0") };
        let completed = store.complete_routes_published(&[published], at(50), RowLocks::Wait).await;
        assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    }
    for route in live(fixture, Channel::Email).await {
        let failed = Failed {
            key: route.key,
            version: route.version,
            channel: route.channel,
            attempt_count: 7,
            retry_at: None,
            classification: "mail_stream_publish_failed",
            message: "WRONGTYPE".to_owned(),
        };
        let completed = store.complete_routes_failed(&[failed], at(50), RowLocks::Wait).await;
        assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    }
}

async fn live(fixture: &impl RetentionFixture, channel: Channel) -> Vec<domain::route::LiveRoute> {
    let order = domain::ports::DueOrder::OldestFirst;
    let page = fixture.store().list_due_routes(channel, order, at(1_000), None, 100).await;
    page.expect("the store is there").routes
}

async fn list(
    fixture: &impl RetentionFixture,
    cutoff: Cutoff,
    after: Option<&Expired<NotificationId>>,
    limit: usize,
) -> Vec<Expired<NotificationId>> {
    fixture.store().list_expired(cutoff, after, limit).await.expect("the store is there")
}

async fn delete(fixture: &impl RetentionFixture, ids: &[&str], cutoff: Cutoff) -> Removal {
    let keys: Vec<NotificationId> = ids.iter().map(|id| NotificationId::from((*id).to_owned())).collect();
    let keys: Vec<&NotificationId> = keys.iter().collect();
    fixture.store().delete_expired(&keys, cutoff).await.expect("the store is there")
}

async fn records(fixture: &impl RetentionFixture) -> Vec<String> {
    let all = list(fixture, before(1_000), None, 100).await;
    all.iter().map(|expired| expired.key.to_string()).collect()
}

pub async fn records_older_than_the_cutoff_are_listed_oldest_first_page_by_page(
    fixture: impl RetentionFixture,
) {
    accept(fixture.store(), [1, 2], at(1)).await;
    accept(fixture.store(), [3], at(0)).await;
    accept(fixture.store(), [4], at(2)).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = list(&fixture, before(2), after.as_ref(), 2).await;
        assert!(page.len() <= 2 && page.iter().all(|expired| expired.rows == 3 && expired.live));
        seen.extend(page.iter().map(|expired| (expired.key.to_string(), expired.at)));
        after = page.last().cloned();
        if after.is_none() {
            break;
        }
    }
    // Record 4 is exactly as old as the cutoff.
    assert_eq!(seen, [("3-0".to_owned(), at(0)), ("1-0".to_owned(), at(1)), ("2-0".to_owned(), at(1))]);
}

pub async fn a_record_goes_with_its_routes_and_dead_letters(fixture: impl RetentionFixture) {
    accept(fixture.store(), [1, 2], at(0)).await;
    complete_all(&fixture).await;
    assert!(list(&fixture, before(1), None, 9).await.iter().all(|expired| !expired.live));
    let removal = delete(&fixture, &["1-0"], before(1)).await;
    assert_eq!(removal, Removal { removed: 1, live: 0, locked: 0 });
    assert_eq!(records(&fixture).await, ["2-0"]);
    let left = fixture.dependents().await;
    assert_eq!(left, ["2-0/email:user:u-1", "2-0/email:user:u-1", "2-0/push:user:u-1"]);
    // A deleted record is not counted again, and its key is free.
    assert_eq!(delete(&fixture, &["1-0"], before(1)).await, Removal::default());
    accept(fixture.store(), [1], at(1)).await;
}

pub async fn a_record_with_a_live_route_stays(fixture: impl RetentionFixture) {
    accept(fixture.store(), [1], at(0)).await;
    complete_all(&fixture).await;
    accept(fixture.store(), [2], at(0)).await;
    let removal = delete(&fixture, &["1-0", "2-0"], before(1)).await;
    assert_eq!(removal, Removal { removed: 1, live: 1, locked: 0 });
    assert_eq!(records(&fixture).await, ["2-0"]);
}

pub async fn a_skipped_route_is_never_due_and_goes_with_its_record(fixture: impl RetentionFixture) {
    let mut outcomes = decide([entry(1, "key-1", 54)], &Known::default(), at(0));
    let Outcome::Accepted(acceptance) = &mut outcomes[0] else { panic!("it is accepted") };
    for route in acceptance.routes.iter_mut().filter(|route| route.channel == Channel::Email) {
        route.start = Start::Skipped(SkipReason::NoEmailAddress);
    }
    assert_eq!(commit(fixture.store(), &outcomes, None).await, Fate::Committed);
    assert_eq!(live(&fixture, Channel::Email).await, []);
    let listed = list(&fixture, before(1), None, 9).await;
    assert_eq!((listed[0].rows, listed[0].live), (3, true));
    complete_all(&fixture).await;
    assert_eq!(fixture.dependents().await, ["1-0/email:user:u-1", "1-0/push:user:u-1"]);
    assert_eq!(delete(&fixture, &["1-0"], before(1)).await.removed, 1);
    assert_eq!(fixture.dependents().await, [""; 0]);
}

pub async fn a_record_with_a_locked_route_stays_and_the_others_go(fixture: impl RetentionFixture) {
    accept(fixture.store(), [1, 2], at(0)).await;
    let key = live(&fixture, Channel::Push).await.remove(0).key;
    complete_all(&fixture).await;
    let lock = fixture.lock(&key).await;
    let removal = delete(&fixture, &["1-0", "2-0"], before(1)).await;
    assert_eq!(removal, Removal { removed: 1, live: 0, locked: 1 });
    assert_eq!(records(&fixture).await, [key.notification_id.as_str()]);
    fixture.release(lock).await;
    assert_eq!(delete(&fixture, &["1-0", "2-0"], before(1)).await.removed, 1);
}

pub async fn a_record_that_is_not_old_enough_stays_even_if_it_is_named(fixture: impl RetentionFixture) {
    accept(fixture.store(), [1], at(0)).await;
    accept(fixture.store(), [2], at(1)).await;
    complete_all(&fixture).await;
    assert_eq!(delete(&fixture, &["1-0", "2-0"], before(1)).await.removed, 1);
    assert_eq!(records(&fixture).await, ["2-0"]);
}

pub async fn a_record_whose_key_was_promised_for_longer_stays(fixture: impl RetentionFixture) {
    accept(fixture.store(), [1], at(0)).await;
    complete_all(&fixture).await;
    // One replica keeps records for a minute, another for a month.
    let minute = Cutoff::new(at(120), Duration::from_secs(60));
    assert_eq!(delete(&fixture, &["1-0"], minute).await, Removal::default());
    assert_eq!(records(&fixture).await, ["1-0"]);
    assert_eq!(delete(&fixture, &["1-0"], before(60)).await.removed, 1);
}

pub async fn malformed_intents_older_than_the_cutoff_are_listed_and_removed(fixture: impl RetentionFixture) {
    for (number, seconds) in [(1, 1), (2, 0), (3, 2)] {
        let outcomes = decide([broken(number)], &Known::default(), at(seconds));
        assert_eq!(commit(fixture.store(), &outcomes, None).await, Fate::Committed);
    }
    let list = async |after: Option<&Expired<MalformedKey>>, limit| {
        fixture.store().list_expired(before(2), after, limit).await.expect("the store is there")
    };
    let ids = |page: &[Expired<MalformedKey>]| -> Vec<String> {
        page.iter().map(|expired| expired.key.entry_id.clone()).collect()
    };
    let first = list(None, 1).await;
    assert_eq!(ids(&first), ["2-0"]);
    assert_eq!((first[0].rows, first[0].live), (1, false));
    let second = list(first.last(), 9).await;
    assert_eq!(ids(&second), ["1-0"]);
    let keys = [&first[0].key, &second[0].key];
    let removal = fixture.store().delete_expired(&keys, before(1)).await.expect("the store is there");
    assert_eq!(removal.removed, 1);
    assert_eq!(ids(&list(None, 9).await), ["1-0"]);
}
