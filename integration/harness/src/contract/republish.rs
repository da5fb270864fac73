//! Published entries are listed page by page, and their entry ids replaced.

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::operations::{Budgets, OperatorAction, RouteChange, Selection};
use domain::outbound::encode;
use domain::ports::{
    AcceptanceStore, Completion, DueOrder, Operations, Published, PublishedPage, RecordCursor,
    RepublishStore, RouteStore, RowLocks, ServerId, apply_change,
};
use domain::republish::SeenStream;
use domain::route::{Channel, LiveRoute, RouteKey};

use super::accepted::{HEAD_START, accept, at};
use super::acknowledged;

/// A store under test.
pub trait RepublishFixture {
    /// The store.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + RepublishStore + Operations);
}

/// Runs every case of [`crate::contract::republish`], each on a fixture of its own.
#[macro_export]
macro_rules! republish_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            republish, $fixture;
            published_entries_are_listed_newest_first_whatever_the_page,
            a_listing_is_bounded_by_acceptance,
            what_is_accepted_while_a_listing_is_read_moves_none_of_its_pages,
            routes_that_are_not_published_are_neither_listed_nor_read,
            a_published_route_is_encoded_as_its_publisher_encoded_it,
            a_replaced_entry_id_is_listed_and_the_version_rises_even_if_the_clock_does_not,
            a_replacement_under_an_older_version_or_of_a_live_route_is_a_conflict,
            the_entry_of_a_route_whose_resend_was_cancelled_is_listed_and_replaced,
            how_a_stream_was_seen_is_loaded_as_it_was_saved_last,
            the_streams_of_each_channel_are_listed_by_when_they_were_used,
        );
    };
}

/// A time after every route here is due.
const LATE: i64 = 1_000;

async fn live(fixture: &impl RepublishFixture) -> Vec<LiveRoute> {
    let mut routes = Vec::new();
    for channel in Channel::ALL {
        let page = fixture.store().list_due_routes(channel, DueOrder::OldestFirst, at(LATE), None, 100).await;
        routes.extend(page.expect("the store is there").routes);
    }
    routes.sort_by(|one, other| one.key.cmp(&other.key));
    routes
}

/// Publishes these routes, each at its head start after acceptance, under an id with the number of its
/// intent.
async fn publish(fixture: &impl RepublishFixture, routes: &[LiveRoute]) {
    for route in routes {
        let number = route.key.notification_id.as_str().split('-').next().expect("a number");
        let published = Published {
            key: route.key.clone(),
            version: route.version,
            entry: acknowledged(&format!("{number}-7")),
        };
        let now = route.content.accepted_at + HEAD_START;
        let done = fixture.store().complete_routes_published(&[published], now, RowLocks::Wait).await;
        assert_eq!(done.expect("the store is there"), [Completion::Applied]);
    }
}

/// Accepts intents `1..=count`, a second apart, and publishes both routes of each.
async fn published(fixture: &impl RepublishFixture, count: u64) {
    for number in 1..=count {
        accept(fixture.store(), [number], at(number.cast_signed())).await;
    }
    publish(fixture, &live(fixture).await).await;
}

async fn page(
    fixture: &impl RepublishFixture,
    before: &RecordCursor,
    since: Timestamp,
    records: usize,
) -> PublishedPage {
    let page = fixture.store().list_published_entries(before, since, records).await;
    let page = page.expect("the store is there");
    assert!(page.corrupt.is_empty(), "{:?}", page.corrupt);
    page
}

/// Every page of routes of intents accepted from `from` on and before `until`.
async fn all(fixture: &impl RepublishFixture, (from, until): (i64, i64), records: usize) -> Vec<String> {
    let (mut before, mut found) = (RecordCursor::before(at(until)), Vec::new());
    loop {
        let page = page(fixture, &before, at(from), records).await;
        found.extend(page.entries.iter().map(|entry| format!("{} {}", entry.key, entry.entry_id)));
        match page.next {
            Some(next) => before = next,
            None => return found,
        }
    }
}

async fn read(fixture: &impl RepublishFixture, keys: &[RouteKey]) -> Vec<LiveRoute> {
    let keys: Vec<&RouteKey> = keys.iter().collect();
    let page = fixture.store().get_published_routes(&keys).await.expect("the store is there");
    let mut routes = page.routes;
    routes.sort_by(|one, other| one.key.cmp(&other.key));
    routes
}

fn keys(routes: &[LiveRoute]) -> Vec<RouteKey> {
    routes.iter().map(|route| route.key.clone()).collect()
}

fn replaced(routes: &[LiveRoute], entry_id: &str) -> Vec<Published> {
    let replaced = |route: &LiveRoute| Published {
        key: route.key.clone(),
        version: route.version,
        entry: acknowledged(entry_id),
    };
    routes.iter().map(replaced).collect()
}

pub async fn published_entries_are_listed_newest_first_whatever_the_page(fixture: impl RepublishFixture) {
    published(&fixture, 5).await;
    let whole = all(&fixture, (0, LATE), 100).await;
    assert_eq!(whole.len(), 10);
    let records: Vec<&str> = whole.iter().filter_map(|route| route.split('/').next()).collect();
    assert!(records.is_sorted_by(|newer, older| newer >= older), "{whole:?}");
    for records in [1, 2, 3, 5] {
        assert_eq!(all(&fixture, (0, LATE), records).await, whole, "{records}");
    }
}

pub async fn a_listing_is_bounded_by_acceptance(fixture: impl RepublishFixture) {
    published(&fixture, 5).await;
    let whole = all(&fixture, (0, LATE), 100).await;
    assert_eq!(all(&fixture, (3, LATE), 2).await, whole[..6], "accepted at the third second or later");
    assert_eq!(all(&fixture, (0, 3), 2).await, whole[6..], "accepted before the third second");
}

pub async fn what_is_accepted_while_a_listing_is_read_moves_none_of_its_pages(
    fixture: impl RepublishFixture,
) {
    published(&fixture, 5).await;
    let whole = all(&fixture, (0, LATE), 100).await;
    let first = page(&fixture, &RecordCursor::before(at(LATE)), at(0), 2).await;
    accept(fixture.store(), [6], at(6)).await;
    publish(&fixture, &live(&fixture).await).await;
    let rest = page(&fixture, &first.next.expect("there are more"), at(0), 100).await;
    assert_eq!((first.entries.len(), rest.entries.len()), (4, 6));
    assert_eq!(all(&fixture, (0, LATE), 100).await[2..], whole, "the sixth is before them");
}

pub async fn routes_that_are_not_published_are_neither_listed_nor_read(fixture: impl RepublishFixture) {
    accept(fixture.store(), 1..=2, at(1)).await;
    let routes = live(&fixture).await;
    publish(&fixture, &routes[1..2]).await;
    assert_eq!(all(&fixture, (0, LATE), 1).await, [format!("{} 1-7", routes[1].key)]);
    assert_eq!(keys(&read(&fixture, &keys(&routes)).await), keys(&routes[1..2]));
}

pub async fn a_published_route_is_encoded_as_its_publisher_encoded_it(fixture: impl RepublishFixture) {
    accept(fixture.store(), [1], at(1)).await;
    let routes = live(&fixture).await;
    publish(&fixture, &routes).await;
    let published = read(&fixture, &keys(&routes)).await;
    assert_eq!(published.len(), 2);
    for (published, live) in published.iter().zip(&routes) {
        assert_eq!(encode(published).expect("it can be encoded"), encode(live).expect("it can be encoded"));
    }
}

// INV-03
pub async fn a_replaced_entry_id_is_listed_and_the_version_rises_even_if_the_clock_does_not(
    fixture: impl RepublishFixture,
) {
    published(&fixture, 1).await;
    let listed = page(&fixture, &RecordCursor::before(at(LATE)), at(0), 9).await;
    let keys: Vec<RouteKey> = listed.entries.into_iter().map(|entry| entry.key).collect();
    let before = read(&fixture, &keys).await;
    let swaps = fixture.store().replace_published_entries(&replaced(&before, "9-9"), at(0)).await;
    assert_eq!(swaps.expect("the store is there"), [Completion::Applied; 2]);
    let expected: Vec<String> = keys.iter().map(|key| format!("{key} 9-9")).collect();
    assert_eq!(all(&fixture, (0, LATE), 9).await, expected);
    for (after, before) in read(&fixture, &keys).await.into_iter().zip(before) {
        assert!(after.version.updated_at() > before.version.updated_at());
        assert_eq!(LiveRoute { version: before.version, ..after }, before, "nothing else changed");
    }
}

pub async fn a_replacement_under_an_older_version_or_of_a_live_route_is_a_conflict(
    fixture: impl RepublishFixture,
) {
    accept(fixture.store(), 1..=3, at(1)).await;
    let routes = live(&fixture).await;
    publish(&fixture, &routes[..4]).await;
    let published = read(&fixture, &keys(&routes)).await;
    let mut given = replaced(&published, "9-9");
    given[1].version = routes[1].version;
    given.push(replaced(&routes[4..5], "9-9").remove(0));
    let swaps = fixture.store().replace_published_entries(&given, at(9)).await.expect("the store is there");
    use Completion::{Applied, Conflict};
    assert_eq!(swaps, [Applied, Conflict, Applied, Applied, Conflict]);
    let again = fixture.store().replace_published_entries(&given, at(9)).await.expect("the store is there");
    assert_eq!(again, [Conflict; 5], "the versions are used");
}

pub async fn the_entry_of_a_route_whose_resend_was_cancelled_is_listed_and_replaced(
    fixture: impl RepublishFixture,
) {
    accept(fixture.store(), 1..=2, at(1)).await;
    let routes = live(&fixture).await;
    publish(&fixture, &routes[..2]).await;
    let resend = RouteChange::Resend { budgets: Budgets { push: 3, email: 7 }, reason: String::new() };
    let cancel = RouteChange::cancel("enough".to_owned()).expect("a reason");
    let all_keys = Selection::Ids(routes.iter().map(|route| route.key.to_string()).collect());
    for (change, changed) in [(resend, 2), (cancel, 4)] {
        let targets = fixture.store().select_routes(&change, &all_keys).await.expect("the store is there");
        let action = OperatorAction {
            actor: "ops".to_owned(),
            request_id: "r-1".to_owned(),
            idempotency_key: None,
            selection: all_keys.clone(),
        };
        let report = apply_change(fixture.store(), &change, &targets, &action, at(20)).await;
        assert_eq!(report.expect("the store is there").changed, changed);
    }
    let expected: Vec<String> = routes[..2].iter().map(|route| format!("{} 1-7", route.key)).collect();
    assert_eq!(all(&fixture, (0, LATE), 9).await, expected, "the others have no entry");
    let kept = read(&fixture, &keys(&routes)).await;
    assert_eq!(keys(&kept), keys(&routes[..2]));
    assert!(kept.iter().all(|route| route.replaces.is_none()));
    let swaps = fixture.store().replace_published_entries(&replaced(&kept, "9-9"), at(30)).await;
    assert_eq!(swaps.expect("the store is there"), [Completion::Applied; 2]);
    let expected: Vec<String> = routes[..2].iter().map(|route| format!("{} 9-9", route.key)).collect();
    assert_eq!(all(&fixture, (0, LATE), 9).await, expected);
}

pub async fn how_a_stream_was_seen_is_loaded_as_it_was_saved_last(fixture: impl RepublishFixture) {
    let seen = |stream: &str, run_id: &str, millis| SeenStream {
        stream: stream.into(),
        server: ServerId { run_id: run_id.into(), replication_id: "r".into() },
        last_generated: EntryId::new(millis, 3),
    };
    let load = async || {
        let mut loaded =
            fixture.store().load_outbound_streams(&["a", "b"]).await.expect("the store is there");
        loaded.sort_by(|one, other| one.seen.stream.cmp(&other.seen.stream));
        loaded
    };
    let save = async |seen: &[(SeenStream, Option<Timestamp>)]| {
        fixture.store().save_outbound_streams(seen).await.expect("the store is there");
    };
    assert_eq!(load().await, []);
    let again = Some(at(7));
    save(&[(seen("a", "one", 5), again), (seen("b", "one", 6), again), (seen("other", "one", 7), None)])
        .await;
    let before = load().await;
    save(&[(seen("b", "two", 1), None)]).await;
    let after = load().await;
    let rows: Vec<_> = after.iter().map(|saved| (saved.seen.clone(), saved.compare_again_since)).collect();
    assert_eq!(rows, [(seen("a", "one", 5), again), (seen("b", "two", 1), None)]);
    assert_eq!(after[0].seen_at, before[0].seen_at);
    assert!(after[1].seen_at >= before[1].seen_at, "by the clock of the store");
}

pub async fn the_streams_of_each_channel_are_listed_by_when_they_were_used(fixture: impl RepublishFixture) {
    let store = fixture.store();
    let list = async |since| {
        let mut names = store.list_outbound_names(since).await.expect("the store is there");
        names.sort_by(|(_, one), (_, other)| one.cmp(other));
        names
    };
    store.touch_outbound_names(&[(Channel::Push, "a"), (Channel::Email, "c")]).await.expect("it is there");
    store.touch_outbound_names(&[(Channel::Push, "b"), (Channel::Email, "c")]).await.expect("it is there");
    let named = |channel, name: &str| (channel, name.to_owned());
    let all = [named(Channel::Push, "a"), named(Channel::Push, "b"), named(Channel::Email, "c")];
    assert_eq!(list(Timestamp::MIN).await, all);
    assert_eq!(list(Timestamp::MAX).await, []);
}
