//! Operators' searches: hand-written filters with their expected results, and random ones with the results of
//! an evaluator.

mod drawn;

use domain::outcome::Outcome;
use domain::personal::Sight;
use domain::ports::{AcceptanceStore, Queries, ReceiptStore, RouteStore};
use domain::query::{
    FilterFault, Notification, NotificationFilter, NotificationSummary, Page, PageLimit, SearchFilter,
    SearchOutcome,
};
use domain::receipt::{ReceiptStatus, Report, RouteReport};
use domain::record::RecordCursor;
use domain::route::Channel;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use self::drawn::any_filter;
use super::accepted::at;
use super::drafts::{
    ADMINISTRATOR, WITH_ADMINISTRATOR, WITHOUT_ADMINISTRATOR, accept_draft, fail, live, publish,
    to_administrators,
};
use super::evaluator::matches;
use super::queries::QueriesFixture;
use crate::turn_ready;

/// Runs every case of [`crate::contract::search`], each on a fixture of its own.
#[macro_export]
macro_rules! search_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            search, $fixture;
            a_search_finds_what_its_filter_says_newest_first,
            conditions_of_one_object_speak_of_one_and_the_same_route_and_under_not_of_none,
            pages_of_a_search_list_every_notification_once_while_others_arrive,
            a_filter_that_is_none_is_told_with_its_place,
            a_reader_who_does_not_see_personal_data_cannot_search_by_it,
            a_drawn_filter_finds_what_the_evaluator_finds_in_the_same_order_and_pages,
        );
    };
}

/// The number of random filters.
const DRAWN_FILTERS: usize = 300;
/// More pages than any search of these cases has.
const MAX_PAGES: usize = 100;

/// Creates eight notifications, some accepted at the same time, with routes in every state and some receipts.
async fn populate(store: &(impl AcceptanceStore + RouteStore + ReceiptStore)) {
    let named = |name: &str, draft: domain::intent::IntentDraft| domain::intent::IntentDraft {
        payload_json: draft.payload_json.replace("Nova", name),
        ..draft
    };
    let traced = |draft| domain::intent::IntentDraft {
        request_id: Some("r-1".to_owned()),
        trace_id: Some("t-1".to_owned()),
        occurred_at_ms: "1775121600000".to_owned(),
        ..draft
    };
    accept_draft(store, 1, turn_ready(["u-1", "u-2"], "key-1", 1), at(1)).await;
    let second = accept_draft(store, 2, turn_ready(["u-2", "u-3"], "key-2", 2), at(2)).await;
    let draft = to_administrators(WITH_ADMINISTRATOR, "game_master", "key-2b");
    let third = accept_draft(store, 3, draft, at(3)).await;
    accept_draft(store, 4, to_administrators(WITHOUT_ADMINISTRATOR, "game_lobby", "key-1"), at(4)).await;
    let draft = named("2026-04-02T09:21:40.5Z", turn_ready(["u-1"], "key-5", 1));
    let fifth = accept_draft(store, 5, draft, at(2)).await;
    accept_draft(store, 6, traced(named("nova", turn_ready([ADMINISTRATOR], "key-6", 2))), at(5)).await;
    let seventh = accept_draft(store, 7, turn_ready(["u-1", "u-3"], "key-7", 9_007_199), at(5)).await;
    let draft = domain::intent::IntentDraft {
        request_id: Some("2026-04-02T09:21:40Z".to_owned()),
        ..turn_ready(["u-3"], "Key-8", 2)
    };
    let eighth = accept_draft(store, 8, draft, at(5)).await;
    for route in live(&second) {
        match (&*route.recipient_ref, route.channel) {
            ("user:u-2", Channel::Push) => publish(store, &route, at(6)).await,
            ("user:u-2", Channel::Email) => fail(store, &route, Some(at(20)), at(7)).await,
            _ => {}
        }
    }
    for route in live(&third) {
        fail(store, &route, None, at(6)).await;
    }
    for route in live(&fifth).iter().chain(&live(&seventh)).filter(|route| route.channel == Channel::Push) {
        publish(store, route, at(8)).await;
    }
    for route in live(&eighth) {
        fail(store, &route, None, at(9)).await;
    }
    let reports = [
        report(&second, Channel::Push, ReceiptStatus::Delivered, 7),
        report(&fifth, Channel::Push, ReceiptStatus::Opened, 9),
        report(&seventh, Channel::Push, ReceiptStatus::Delivered, 9),
        report(&seventh, Channel::Email, ReceiptStatus::Bounced, 10),
    ];
    store.record_reports(&reports, None).await.expect("the store is there");
}

/// A report on the first route of `channel` at this second.
fn report(routes: &[Outcome], channel: Channel, status: ReceiptStatus, second: i64) -> RouteReport {
    let route = live(routes).into_iter().find(|route| route.channel == channel).expect("it has such a route");
    RouteReport { key: route.key, report: Report { status, at: at(second), detail: String::new() } }
}

async fn search(
    queries: &impl Queries,
    filter: &str,
    after: Option<&RecordCursor>,
    items: usize,
) -> Page<NotificationSummary, RecordCursor> {
    let limit = PageLimit::new(items).expect("within the bounds");
    let outcome = queries.search_notifications(&SearchFilter::new(filter, Sight::Whole), after, limit).await;
    match outcome.unwrap_or_else(|error| panic!("{filter}: {}", ambient::error_chain(&error))) {
        SearchOutcome::Found(page) => page,
        other => panic!("{filter}: {other:?}"),
    }
}

/// All results of a search, in pages of so many items.
async fn all(queries: &impl Queries, filter: &str, items: usize) -> Vec<NotificationSummary> {
    let (mut found, mut after): (Vec<NotificationSummary>, Option<RecordCursor>) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        let page = search(queries, filter, after.as_ref(), items).await;
        assert!(page.items.len() <= items, "{filter}");
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
    panic!("the pages do not end: {filter}");
}

async fn numbers(queries: &impl Queries, filter: &str) -> Vec<u32> {
    let number = |item: &NotificationSummary| {
        let id = item.notification_id.as_str();
        id.split('-').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    all(queries, filter, 3).await.iter().map(number).collect()
}

async fn check(fixture: &impl QueriesFixture, cases: &[(&str, &[u32])]) {
    populate(fixture.store()).await;
    for (filter, expected) in cases {
        assert_eq!(numbers(fixture.queries(), filter).await, *expected, "{filter}");
    }
}

pub async fn a_search_finds_what_its_filter_says_newest_first(fixture: impl QueriesFixture) {
    let cases: &[(&str, &[u32])] = &[
        ("{}", &[8, 7, 6, 4, 3, 5, 2, 1]),
        (r#"{"notification_id": {"$in": ["2-0", "7-0", "9-0", 3]}}"#, &[7, 2]),
        (r#"{"producer": "game_lobby"}"#, &[4]),
        (r#"{"producer": "GAME_LOBBY"}"#, &[]),
        (r#"{"notification_type": {"$ne": "game.turn.ready"}}"#, &[4, 3]),
        (r#"{"audience_kind": "admin_email"}"#, &[4, 3]),
        (r#"{"idempotency_key": "key-1"}"#, &[4, 1]),
        (r#"{"idempotency_key": "key-1", "producer": "game_master"}"#, &[1]),
        (r#"{"idempotency_key": {"$lt": "key"}}"#, &[8]),
        (r#"{"idempotency_key": {"$gte": "key-5"}}"#, &[7, 6, 5]),
        (r#"{"accepted_at": {"$after": "2026-04-02T09:21:42Z"}}"#, &[8, 7, 6, 4, 3]),
        (
            r#"{"accepted_at": {"$after": "2026-04-02T11:21:41+02:00", "$before": "2026-04-02T09:21:43Z"}}"#,
            &[5, 2],
        ),
        (r#"{"occurred_at": {"$before": "2026-04-02T09:21:40Z"}}"#, &[6]),
        (r#"{"request_id": "r-1"}"#, &[6]),
        (r#"{"request_id": {"$before": "2026-04-02T11:21:41+02:00"}}"#, &[8]),
        (r#"{"request_id": {"$after": "2026-04-02T09:21:40Z"}}"#, &[]),
        (
            r#"{"request_id": {"$exists": false}, "trace_id": {"$exists": false}, "producer": "game_lobby"}"#,
            &[4],
        ),
        (r#"{"trace_id": {"$exists": true}}"#, &[6]),
        (r#"{"recipient": "u-2"}"#, &[2, 1]),
        (r#"{"recipient": "ops@example.com"}"#, &[6, 3]),
        (r#"{"recipient": "u"}"#, &[]),
        (r#"{"recipient": {"$exists": false}}"#, &[4]),
        (r#"{"recipient": {"$gt": "u-2"}}"#, &[8, 7, 2]),
        (r#"{"route.status": "skipped"}"#, &[4]),
        (r#"{"route.status": "dead_letter"}"#, &[8, 3]),
        (r#"{"route.status": "pending"}"#, &[7, 6, 5, 2, 1]),
        (r#"{"route.status": {"$in": ["published", "failed"]}}"#, &[7, 5, 2]),
        (r#"{"route.status": "nonsense"}"#, &[]),
        (r#"{"route.attempt_count": {"$gt": 2}}"#, &[8, 3]),
        (r#"{"route.attempt_count": 1.0}"#, &[2]),
        (r#"{"route.last_error_classification": "no_admin_recipients"}"#, &[4]),
        (r#"{"route.published_at": {"$after": "2026-04-02T09:21:46Z"}}"#, &[7, 5]),
        (r#"{"payload.game_name": "Nova"}"#, &[8, 7, 4, 3, 2, 1]),
        (r#"{"payload.game_name": {"$in": ["nova", "x"]}}"#, &[6]),
        (r#"{"payload.game_name": {"$before": "2026-04-02T09:21:41Z"}}"#, &[5]),
        (r#"{"payload.turn_number": {"$gte": 2, "$lt": 100.5}}"#, &[8, 6, 2]),
        (r#"{"payload.turn_number": "2"}"#, &[]),
        (r#"{"payload.failure_reason": {"$exists": true}}"#, &[3]),
        (r#"{"$or": [{"producer": "game_lobby"}, {"payload.turn_number": 9007199}]}"#, &[7, 4]),
        (r#"{"$not": {"audience_kind": "user"}}"#, &[4, 3]),
        (r#"{"$and": [{"recipient": "u-1"}, {"payload.turn_number": 1}]}"#, &[5, 1]),
    ];
    check(&fixture, cases).await;
}

pub async fn conditions_of_one_object_speak_of_one_and_the_same_route_and_under_not_of_none(
    fixture: impl QueriesFixture,
) {
    let cases: &[(&str, &[u32])] = &[
        (r#"{"recipient": "u-2", "route.status": "published"}"#, &[2]),
        (r#"{"recipient": "u-3", "route.status": "published", "route.channel": "push"}"#, &[7]),
        (r#"{"recipient": "u-2", "route.channel": "email", "route.status": "published"}"#, &[]),
        (
            r#"{"$and": [{"recipient": "u-2", "route.channel": "email"}, {"route.status": "published"}]}"#,
            &[2],
        ),
        (r#"{"recipient": "u-2", "$not": {"route.status": "published"}}"#, &[1]),
        (r#"{"$not": {"route.status": {"$in": ["pending", "failed"]}}}"#, &[8, 4, 3]),
        (r#"{"$not": {"recipient": "u-3", "route.status": "pending"}, "recipient": "u-3"}"#, &[8]),
        (r#"{"route.status": {"$ne": "pending"}, "route.channel": "email"}"#, &[8, 4, 3, 2]),
        (
            r#"{"$or": [{"route.status": "failed", "recipient": "u-3"}, {"route.status": "failed", "recipient": "u-2"}]}"#,
            &[2],
        ),
        (r#"{"recipient": "u-1", "route.published_at": {"$before": "2026-04-02T09:21:49Z"}}"#, &[7, 5]),
        (
            r#"{"recipient": "u-2", "route.last_error_classification": {"$exists": true}, "route.attempt_count": 1}"#,
            &[2],
        ),
    ];
    check(&fixture, cases).await;
}

pub async fn pages_of_a_search_list_every_notification_once_while_others_arrive(
    fixture: impl QueriesFixture,
) {
    populate(fixture.store()).await;
    // One filter that an index serves, and one that is checked along the list.
    for (filter, later, expected) in [
        (r#"{"recipient": "u-3"}"#, 21, vec!["8-0", "7-0", "2-0"]),
        (r#"{"payload.turn_number": {"$gt": 1}}"#, 22, vec!["21-0", "8-0", "7-0", "6-0", "2-0"]),
    ] {
        let first = search(fixture.queries(), filter, None, 1).await;
        accept_draft(fixture.store(), later, turn_ready(["u-3"], &format!("key-{later}"), 2), at(60)).await;
        let mut found = first.items;
        let mut after = first.next;
        while let Some(place) = after {
            let page = search(fixture.queries(), filter, Some(&place), 1).await;
            assert!(found.len() < MAX_PAGES && page.next.as_ref() != Some(&place), "{filter}");
            found.extend(page.items);
            after = page.next;
        }
        let ids: Vec<&str> = found.iter().map(|item| item.notification_id.as_str()).collect();
        assert_eq!(ids, expected, "{filter}");
        assert!(found.iter().all(|item| item.routes.iter().next().is_some()), "routes are counted");
    }
}

pub async fn a_reader_who_does_not_see_personal_data_cannot_search_by_it(fixture: impl QueriesFixture) {
    populate(fixture.store()).await;
    let search = async |filter: &str| {
        let given = SearchFilter::new(filter, Sight::Masked);
        let outcome = fixture.queries().search_notifications(&given, None, PageLimit::default()).await;
        outcome.expect("the database is there")
    };
    for personal in [
        r#"{"recipient": "u-1"}"#,
        r#"{"payload.game_name": "Nova"}"#,
        r#"{"pay\u006coad.game_name": {"$exists": true}}"#,
        r#"{"$and": [{"$or": [{"$not": {"recipient": {"$gt": "a"}}}]}, {"producer": "game_master"}]}"#,
    ] {
        assert_eq!(search(personal).await, SearchOutcome::Personal, "{personal}");
    }
    for allowed in ["{}", r#"{"producer": "payload.game_name", "route.channel": "push"}"#] {
        assert!(matches!(search(allowed).await, SearchOutcome::Found(_)), "{allowed}");
    }
}

pub async fn a_filter_that_is_none_is_told_with_its_place(fixture: impl QueriesFixture) {
    for (filter, reason, line, column) in [
        ("{\"colour\": 1}", "payload.<member>", 1, 2),
        ("{\n  \"payload.a.b\": 1}", "unknown name", 2, 3),
        (r#"{"accepted_at": "2026-04-02T09:21:40Z"}"#, "$before and $after", 1, 2),
        (r#"{"route.published_at": {"$gt": 1}}"#, "$before and $after", 1, 25),
        (r#"{"accepted_at": {"$after": "yesterday"}}"#, "must be a time", 1, 28),
        (r#"{"producer": {"$like": "a"}}"#, "unknown operator", 1, 15),
        (r#"{"$or": []}"#, "is empty", 1, 9),
        (r#"{"producer": "a", "producer": "a"}"#, "repeated member", 1, 19),
        ("[]", "must be an object", 1, 1),
        ("7", "must be an object", 1, 1),
        (r#"{"producer": "\u0000"}"#, "", 1, 15),
    ] {
        let given = SearchFilter::new(filter, Sight::Whole);
        let outcome = fixture.queries().search_notifications(&given, None, PageLimit::default()).await;
        let outcome = outcome.expect("the store is there");
        let SearchOutcome::Invalid(fault) = outcome else { panic!("{filter}: {outcome:?}") };
        let FilterFault { reason: told, line: at_line, column: at_column } = fault;
        assert!(told.contains(reason), "{filter}: {told}");
        assert_eq!((at_line, at_column), (line, column), "{filter}: {told}");
    }
}

/// All notifications, newest first, read without a search.
async fn everything(queries: &impl Queries) -> Vec<(NotificationSummary, Notification)> {
    let listed = queries.list_notifications(&NotificationFilter::default(), None, PageLimit::default()).await;
    let mut everything = Vec::new();
    for summary in listed.expect("the store is there").items {
        let found = queries.get_notification(&summary.notification_id).await.expect("the store is there");
        everything.push((summary, found.expect("it was listed")));
    }
    assert_eq!(everything.len(), 8, "all are in one page");
    everything
}

pub async fn a_drawn_filter_finds_what_the_evaluator_finds_in_the_same_order_and_pages(
    fixture: impl QueriesFixture,
) {
    populate(fixture.store()).await;
    let everything = everything(fixture.queries()).await;
    let mut runner = TestRunner::default();
    let mut found_some = 0;
    for _ in 0..DRAWN_FILTERS {
        let drawn = (any_filter(), 1..5_usize).new_tree(&mut runner).expect("a filter").current();
        let (filter, items) = drawn;
        let expected = everything.iter().filter(|(_, notification)| matches(&filter, notification));
        let expected: Vec<NotificationSummary> = expected.map(|(summary, _)| summary.clone()).collect();
        assert_eq!(all(fixture.queries(), &filter, items).await, expected, "{filter} in pages of {items}");
        found_some += usize::from(!expected.is_empty() && expected.len() < 8);
    }
    assert!(found_some > DRAWN_FILTERS / 10, "{found_some} filters tell the notifications apart");
}
