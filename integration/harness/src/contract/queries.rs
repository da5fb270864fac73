//! Queries: lists in pages, single notifications with all details, and the status.

use domain::accept::Known;
use domain::document::Age;
use domain::outcome::Outcome;
use domain::ports::{AcceptanceStore, Queries, ReceiptStore, RouteStore};
use domain::query::{
    DeadLetterFilter, MAX_RECORDS, MalformedFilter, Notification, NotificationFilter, NotificationSummary,
    Page, PageLimit,
};
use domain::record::{NotificationId, Record, RecordCursor};
use domain::route::{Channel, FailedAttempt, RouteStatus};

use super::accepted::{STREAM, accept, at, broken, commit, decide};
use super::drafts::{
    ADMINISTRATOR, WITH_ADMINISTRATOR, WITHOUT_ADMINISTRATOR, accept_draft, fail, live, publish,
    to_administrators,
};
use crate::turn_ready;

/// A store under test.
pub trait QueriesFixture {
    /// The store; acceptance, completions and reports create its rows.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + ReceiptStore);

    /// The queries on the rows.
    fn queries(&self) -> &impl Queries;
}

/// Runs every case of [`crate::contract::queries`], each on a fixture of its own.
#[macro_export]
macro_rules! queries_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            queries, $fixture;
            a_notification_is_shown_with_all_its_routes,
            records_are_read_by_their_ids_and_no_more_than_the_bound,
            notifications_are_found_by_request_and_by_trace_the_newest_first,
            pages_list_every_notification_once_newest_first_while_others_arrive,
            each_condition_selects_and_all_of_them_must_hold,
            a_search_by_each_status_finds_the_notifications_with_such_a_route,
            the_time_of_a_notification_is_within_the_bounds_if_it_is_the_first_and_not_the_second,
            dead_letters_are_listed_newest_first_and_selected_by_each_condition,
            malformed_intents_are_listed_newest_first_and_shown_with_their_fields,
            causes_are_counted_by_channel_and_by_producer_the_most_frequent_first,
            the_status_counts_what_is_due_what_fails_and_why,
        );
    };
}

fn limit(items: usize) -> PageLimit {
    PageLimit::new(items).expect("within the bounds")
}

fn everything() -> NotificationFilter {
    NotificationFilter::default()
}

async fn list(
    queries: &impl Queries,
    filter: &NotificationFilter,
    after: Option<&RecordCursor>,
    items: usize,
) -> Page<NotificationSummary, RecordCursor> {
    queries.list_notifications(filter, after, limit(items)).await.expect("the store is there")
}

/// The ids of all notifications that a filter selects, in pages of two. Bounded: a list that does not end
/// fails.
async fn ids(queries: &impl Queries, filter: &NotificationFilter) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..100 {
        let page = list(queries, filter, after.as_ref(), 2).await;
        found.extend(page.items.iter().map(|item| item.notification_id.to_string()));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
    panic!("the list does not end");
}

pub async fn a_notification_is_shown_with_all_its_routes(fixture: impl QueriesFixture) {
    let outcomes = accept(fixture.store(), 1..=2, at(0)).await;
    let routes = live(&outcomes);
    publish(fixture.store(), &routes[0], at(1)).await;
    fail(fixture.store(), &routes[1], Some(at(9)), at(2)).await;
    let record = &outcomes[0].acceptance().expect("accepted").record;
    let found = fixture.queries().get_notification(&record.notification_id).await;
    let found = found.expect("the store is there").expect("it was accepted");
    let expected = Notification::new(record.clone(), at(0), found.routes.clone());
    assert_eq!(found, Notification { obstacles: found.obstacles.clone(), ..expected });
    let mut seen: Vec<_> = found.routes.iter().map(|route| (route.channel, route.status)).collect();
    seen.sort_by_key(|(channel, _)| *channel);
    let mut expected =
        vec![(routes[0].channel, RouteStatus::Published), (routes[1].channel, RouteStatus::Failed)];
    expected.sort_by_key(|(channel, _)| *channel);
    assert_eq!(seen, expected);
    let published = found.route(&routes[0].key).expect("it is there");
    assert_eq!((published.published_at, &*published.published_entry_id), (Some(at(1)), "7-0"));
    assert_eq!((published.next_attempt_at, published.created_at), (None, at(0)));
    let failed = found.route(&routes[1].key).expect("it is there");
    assert_eq!((failed.attempt_count, failed.next_attempt_at), (1, Some(at(9))));
    assert_eq!((&*failed.last_error_message, failed.last_error_at), ("WRONGTYPE", Some(at(2))));
    let attempt = FailedAttempt {
        attempt: 1,
        at: at(2),
        classification: failed.channel.publish_failed().to_owned(),
        message: "WRONGTYPE".to_owned(),
    };
    assert_eq!((&failed.failed_attempts, &published.failed_attempts), (&vec![attempt], &Vec::new()));
    assert!(failed.recovery_hint.is_empty() && failed.discarded.is_none());
    let unknown = fixture.queries().get_notification(&"9-0".to_owned().into()).await;
    assert_eq!(unknown.expect("the store is there"), None);
}

pub async fn records_are_read_by_their_ids_and_no_more_than_the_bound(fixture: impl QueriesFixture) {
    let outcomes = accept(fixture.store(), 1..=MAX_RECORDS as u64 + 1, at(0)).await;
    let records: Vec<&Record> =
        outcomes.iter().filter_map(Outcome::acceptance).map(|one| &one.record).collect();
    let read = async |ids: &[NotificationId]| {
        let mut found = fixture.queries().list_records(ids).await.expect("the store is there");
        found.sort_by_key(|record| record.idempotency_key.key.clone());
        found
    };
    assert_eq!(read(&[]).await, []);
    let some = [records[1], records[0]].map(|record| record.notification_id.clone());
    let with_unknown = [some.as_slice(), &["9000-0".to_owned().into()]].concat();
    let found = read(&with_unknown).await;
    assert_eq!(found.iter().collect::<Vec<_>>(), [records[0], records[1]]);
    let all: Vec<NotificationId> = records.iter().map(|record| record.notification_id.clone()).collect();
    let found = read(&all).await;
    assert_eq!(found.len(), MAX_RECORDS);
    assert!(!found.contains(records[MAX_RECORDS]), "the first ones are read");
}

pub async fn notifications_are_found_by_request_and_by_trace_the_newest_first(fixture: impl QueriesFixture) {
    for (number, request_id, trace_id) in [(1, "r-1", "t-1"), (2, "r-1", "r-2"), (3, "r-2", "t-1")] {
        let mut draft = turn_ready(["u-1"], &format!("k-{number}"), 1);
        draft.request_id = Some(request_id.to_owned());
        draft.trace_id = Some(trace_id.to_owned());
        accept_draft(fixture.store(), number, draft, at(i64::try_from(number).expect("small"))).await;
    }
    for (id, expected) in
        [("r-1", ["2-0", "1-0"].as_slice()), ("t-1", &["3-0", "1-0"]), ("r-2", &["3-0", "2-0"]), ("k-1", &[])]
    {
        let found = fixture.queries().list_traced(id).await.expect("the store is there");
        assert_eq!(found.iter().map(NotificationId::as_str).collect::<Vec<_>>(), expected, "{id}");
    }
}

pub async fn pages_list_every_notification_once_newest_first_while_others_arrive(
    fixture: impl QueriesFixture,
) {
    accept(fixture.store(), 1..=3, at(0)).await;
    accept(fixture.store(), 4..=5, at(1)).await;
    let first = list(fixture.queries(), &everything(), None, 2).await;
    accept(fixture.store(), 6..=7, at(2)).await;
    let mut found = first.items;
    let mut after = first.next;
    while let Some(place) = after {
        let page = list(fixture.queries(), &everything(), Some(&place), 2).await;
        assert!(page.items.len() <= 2 && page.next.as_ref() != Some(&place));
        found.extend(page.items);
        after = page.next;
    }
    let ids: Vec<String> = found.iter().map(|item| item.notification_id.to_string()).collect();
    assert_eq!(ids, ["5-0", "4-0", "3-0", "2-0", "1-0"]);
    let counts: Vec<_> = found[0].routes.iter().collect();
    assert_eq!(counts, [(RouteStatus::Pending, 2)]);
    assert_eq!((found[4].accepted_at, &*found[4].idempotency_key), (at(0), "key-1"));
}

pub async fn each_condition_selects_and_all_of_them_must_hold(fixture: impl QueriesFixture) {
    let store = fixture.store();
    accept_draft(store, 1, turn_ready(["u-1", "u-2"], "key-1", 1), at(1)).await;
    accept_draft(store, 2, turn_ready(["u-2", "u-3"], "key-2", 1), at(2)).await;
    accept_draft(store, 3, to_administrators(WITH_ADMINISTRATOR, "game_master", "key-2b"), at(3)).await;
    accept_draft(store, 4, to_administrators(WITHOUT_ADMINISTRATOR, "game_lobby", "key-1"), at(4)).await;
    let text = |text: &str| Some(text.to_owned());
    let by_recipient = |recipient| NotificationFilter { recipient: text(recipient), ..everything() };
    let cases = [
        (everything(), vec!["4-0", "3-0", "2-0", "1-0"]),
        (NotificationFilter { producer: text("game_master"), ..everything() }, vec!["3-0", "2-0", "1-0"]),
        (
            NotificationFilter { notification_type: text("game.turn.ready"), ..everything() },
            vec!["2-0", "1-0"],
        ),
        (NotificationFilter { idempotency_key: text("key-1"), ..everything() }, vec!["4-0", "1-0"]),
        (
            NotificationFilter {
                idempotency_key: text("key-1"),
                producer: text("game_lobby"),
                ..everything()
            },
            vec!["4-0"],
        ),
        (by_recipient("u-2"), vec!["2-0", "1-0"]),
        (by_recipient("u-3"), vec!["2-0"]),
        (by_recipient("u"), vec![]),
        (by_recipient(""), vec![]),
        (by_recipient(ADMINISTRATOR), vec!["3-0"]),
        (NotificationFilter { users_only: true, ..by_recipient(ADMINISTRATOR) }, vec![]),
        (NotificationFilter { users_only: true, ..by_recipient("u-3") }, vec!["2-0"]),
        (NotificationFilter { status: Some(RouteStatus::Skipped), ..by_recipient("u-2") }, vec![]),
        (NotificationFilter { idempotency_key: text("key-2"), ..by_recipient("u-2") }, vec!["2-0"]),
        (NotificationFilter { accepted_before: Some(at(2)), ..by_recipient("u-2") }, vec!["1-0"]),
        (NotificationFilter { accepted_after: Some(at(2)), ..by_recipient("u-2") }, vec!["2-0"]),
    ];
    for (filter, expected) in cases {
        assert_eq!(ids(fixture.queries(), &filter).await, expected, "{filter:?}");
    }
}

pub async fn a_search_by_each_status_finds_the_notifications_with_such_a_route(fixture: impl QueriesFixture) {
    let store = fixture.store();
    let routes = live(&accept(store, 1..=4, at(0)).await);
    accept_draft(store, 5, to_administrators(WITHOUT_ADMINISTRATOR, "game_lobby", "key-5"), at(0)).await;
    for route in &routes {
        match route.key.notification_id.as_str() {
            "1-0" => publish(store, route, at(1)).await,
            "2-0" => fail(store, route, Some(at(9)), at(1)).await,
            "3-0" => fail(store, route, None, at(1)).await,
            _ => {}
        }
    }
    for (status, expected) in [
        (RouteStatus::Published, "1-0"),
        (RouteStatus::Failed, "2-0"),
        (RouteStatus::DeadLetter, "3-0"),
        (RouteStatus::Pending, "4-0"),
        (RouteStatus::Skipped, "5-0"),
    ] {
        let filter = NotificationFilter { status: Some(status), ..everything() };
        assert_eq!(ids(fixture.queries(), &filter).await, [expected], "{status:?}");
        let mine = NotificationFilter { recipient: Some("u-1".to_owned()), ..filter };
        let expected = if status == RouteStatus::Skipped { vec![] } else { vec![expected] };
        assert_eq!(ids(fixture.queries(), &mine).await, expected, "{status:?}");
    }
}

pub async fn the_time_of_a_notification_is_within_the_bounds_if_it_is_the_first_and_not_the_second(
    fixture: impl QueriesFixture,
) {
    for (number, seconds) in [(1, 1), (2, 2), (3, 3)] {
        accept(fixture.store(), [number], at(seconds)).await;
    }
    let bounds =
        NotificationFilter { accepted_after: Some(at(2)), accepted_before: Some(at(3)), ..everything() };
    assert_eq!(ids(fixture.queries(), &bounds).await, ["2-0"]);
    let status = NotificationFilter { status: Some(RouteStatus::Pending), ..bounds };
    assert_eq!(ids(fixture.queries(), &status).await, ["2-0"]);
}

pub async fn dead_letters_are_listed_newest_first_and_selected_by_each_condition(
    fixture: impl QueriesFixture,
) {
    let store = fixture.store();
    for (place, route) in live(&accept(store, 1..=3, at(0)).await).iter().enumerate() {
        fail(store, route, None, at(10 + place as i64 / 2)).await;
    }
    let all = DeadLetterFilter::default();
    let filter = |change: fn(&mut DeadLetterFilter)| {
        let mut filter = all.clone();
        change(&mut filter);
        filter
    };
    let whole = [
        "3-0/push:user:u-1",
        "3-0/email:user:u-1",
        "2-0/push:user:u-1",
        "2-0/email:user:u-1",
        "1-0/push:user:u-1",
        "1-0/email:user:u-1",
    ];
    let cases: [(DeadLetterFilter, &[&str]); 8] = [
        (all.clone(), &whole),
        (filter(|f| f.channel = Some(Channel::Push)), &[whole[0], whole[2], whole[4]]),
        (
            filter(|f| f.classification = Some("mail_stream_publish_failed".into())),
            &[whole[1], whole[3], whole[5]],
        ),
        (filter(|f| f.notification_type = Some("game.turn.ready".into())), &whole),
        (filter(|f| f.notification_type = Some("game.finished".into())), &[]),
        (filter(|f| f.created_after = Some(at(12))), &whole[..2]),
        (filter(|f| f.created_before = Some(at(11))), &whole[4..]),
        (filter(|f| f.discarded = true), &[]),
    ];
    for (filter, expected) in cases {
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..10 {
            let page = fixture.queries().list_dead_letters(&filter, after.as_ref(), limit(2)).await;
            let page = page.expect("the store is there");
            found.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let ids: Vec<String> = found.iter().map(|letter| letter.key.to_string()).collect();
        assert_eq!(ids, expected, "{filter:?}");
        assert!(after.is_none(), "the list does not end");
    }
    let letters = fixture.queries().list_dead_letters(&all, None, limit(1)).await;
    let letter = letters.expect("the store is there").items.remove(0);
    assert_eq!((letter.final_attempt_count, letter.max_attempts), (3, 3));
    assert_eq!((&*letter.failure_message, &*letter.recipient_ref), ("WRONGTYPE", "user:u-1"));
    assert!(letter.recovery_hint.contains("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM"));
}

pub async fn malformed_intents_are_listed_newest_first_and_shown_with_their_fields(
    fixture: impl QueriesFixture,
) {
    for number in 1..=3_u64 {
        let outcomes = decide([broken(number)], &Known::default(), at(number as i64));
        let _ = commit(fixture.store(), &outcomes, None).await;
    }
    let all = MalformedFilter::default();
    let unknown_field = Some("unknown_field".to_owned());
    let cases = [
        (all.clone(), vec!["3-0", "2-0", "1-0"]),
        (MalformedFilter { code: unknown_field, ..all.clone() }, vec!["3-0", "2-0", "1-0"]),
        (MalformedFilter { code: Some("missing_field".to_owned()), ..all.clone() }, vec![]),
        (MalformedFilter { producer: Some("game_master".to_owned()), ..all.clone() }, vec![]),
        (MalformedFilter { idempotency_key: Some("another".to_owned()), ..all.clone() }, vec![]),
        (
            MalformedFilter { recorded_after: Some(at(2)), recorded_before: Some(at(3)), ..all.clone() },
            vec!["2-0"],
        ),
    ];
    for (filter, expected) in cases {
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..10 {
            let page = fixture.queries().list_malformed_intents(&filter, after.as_ref(), limit(1)).await;
            let page = page.expect("the store is there");
            found.extend(page.items.into_iter().map(|row| row.key.entry_id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{filter:?}");
    }
    let get = async |stream: &str, entry_id: &str| {
        fixture.queries().get_malformed_intents(stream, entry_id).await.expect("the store is there")
    };
    let rows = get(STREAM, "2-0").await;
    assert_eq!(rows.len(), 1);
    let fields: Vec<(String, String)> =
        serde_json::from_str(rows[0].raw_fields.as_deref().expect("it is small")).expect("JSON");
    assert_eq!(fields, [("unknown".to_owned(), "x".to_owned())]);
    assert_eq!(rows[0].summary.failure_code, "unknown_field");
    assert_eq!(get(STREAM, "9-0").await, []);
    assert_eq!(get("another", "2-0").await, []);
}

pub async fn causes_are_counted_by_channel_and_by_producer_the_most_frequent_first(
    fixture: impl QueriesFixture,
) {
    let (store, queries) = (fixture.store(), fixture.queries());
    let empty = queries.count_dead_letters().await.expect("the store is there");
    assert_eq!((empty.counts.len(), empty.counted), (0, 0));
    for route in &live(&accept(store, 1..=3, at(0)).await) {
        // The e-mail route of the first notification is published; all other routes fail.
        match (route.key.notification_id.as_str(), route.channel) {
            ("1-0", Channel::Email) => publish(store, route, at(1)).await,
            _ => fail(store, route, None, at(10)).await,
        }
    }
    let causes = queries.count_dead_letters().await.expect("the store is there");
    let found: Vec<_> =
        causes.counts.iter().map(|(cause, rows)| (cause.channel, &*cause.classification, *rows)).collect();
    let expected = [
        (Channel::Push, "gateway_stream_publish_failed", 3),
        (Channel::Email, "mail_stream_publish_failed", 2),
    ];
    assert_eq!((found.as_slice(), causes.counted), (expected.as_slice(), 5));
    for number in 1..=3_u64 {
        let _ = commit(store, &decide([broken(number)], &Known::default(), at(1)), None).await;
    }
    let causes = queries.count_malformed_intents().await.expect("the store is there");
    let found: Vec<_> =
        causes.counts.iter().map(|(cause, rows)| (&*cause.code, &*cause.producer, *rows)).collect();
    assert_eq!((found.as_slice(), causes.counted), ([("unknown_field", "", 3)].as_slice(), 3));
}

pub async fn the_status_counts_what_is_due_what_fails_and_why(fixture: impl QueriesFixture) {
    let store = fixture.store();
    // The causes cover the last day by the clock of the store.
    let empty = fixture.queries().status(STREAM, at(0)).await.expect("the store is there");
    let now = empty.at;
    let routes = live(&accept(store, 1..=3, now).await);
    for route in &routes {
        match (route.key.notification_id.as_str(), route.channel) {
            ("1-0", _) => fail(store, route, None, now).await,
            ("2-0", Channel::Push) => fail(store, route, Some(now), now).await,
            _ => {}
        }
    }
    let outcomes = decide([broken(9)], &Known::default(), now);
    let _ = commit(store, &outcomes, None).await;
    let status = fixture.queries().status(STREAM, now).await.expect("the store is there");
    let channels: Vec<_> = status
        .channels
        .iter()
        .map(|channel| (channel.channel, channel.due.count, channel.oldest_due, channel.failing.count))
        .collect();
    let oldest = Some(Age::between(now, status.at));
    assert_eq!(channels, [(Channel::Push, 1, oldest, 1), (Channel::Email, 0, None, 0)]);
    assert!(status.channels.iter().all(|channel| !channel.due.capped && !channel.failing.capped));
    let causes =
        [("gateway_stream_publish_failed".to_owned(), 1), ("mail_stream_publish_failed".to_owned(), 1)];
    assert_eq!((status.dead_letters.counts, status.dead_letters.capped), (causes.to_vec(), false));
    assert_eq!(status.malformed_intents.counts, [("unknown_field".to_owned(), 1)]);
    assert_eq!(status.checkpoint, None);
    assert!(empty.dead_letters.counts.is_empty() && empty.malformed_intents.counts.is_empty());
}
