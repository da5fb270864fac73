//! Due routes and the writing of completions, where the contract suite of the port does not cover them.

use domain::ports::{Completion, DueOrder, Failed, Published, Queries, RouteStore, RowLocks, StoreError};
use domain::record::NotificationId;
use domain::route::{Channel, LiveRoute, Version};
use harness::contract::acknowledged;

use super::*;

async fn due(world: &World, channel: Channel, now: Timestamp) -> Vec<LiveRoute> {
    let page =
        world.store.list_due_routes(channel, DueOrder::OldestFirst, now, None, 100).await.expect("is there");
    assert!(page.corrupt.is_empty(), "{:?}", page.corrupt);
    page.routes
}

fn published(route: &LiveRoute, entry_id: &str) -> Published {
    Published { key: route.key.clone(), version: route.version, entry: acknowledged(entry_id) }
}

fn failed(route: &LiveRoute, attempt_count: u32, retry_at: Option<Timestamp>) -> Failed {
    Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count,
        retry_at,
        classification: "mail_stream_publish_failed",
        message: "WRONGTYPE".into(),
    }
}

#[tokio::test]
async fn routes_of_one_notification_share_its_content_and_no_other() {
    let world = World::new().await;
    world.accept(1..=2, at(0)).await;
    world
        .execute("INSERT INTO routes SELECT (jsonb_populate_record(routes, '{\"route_id\": \"push:user:u-2\"}')).* FROM routes WHERE channel = 'push'")
        .await;
    world.execute("UPDATE records SET payload_json = notification_id").await;
    let routes = due(&world, Channel::Push, at(5)).await;
    let payloads: Vec<&str> = routes.iter().map(|route| route.content.payload_json.as_str()).collect();
    assert_eq!(payloads, ["1-0", "1-0", "2-0", "2-0"]);
    assert!(Arc::ptr_eq(&routes[0].content, &routes[1].content));
    assert!(Arc::ptr_eq(&routes[2].content, &routes[3].content));
}

// INV-06
#[tokio::test]
async fn of_two_completions_of_one_version_one_is_a_conflict() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let route = due(&world, Channel::Push, at(5)).await.remove(0);
    let first = world
        .store
        .complete_routes_published(&[published(&route, "7-0")], at(5), RowLocks::Wait)
        .await
        .expect("is there");
    let second = world
        .store
        .complete_routes_published(&[published(&route, "8-0")], at(5), RowLocks::Wait)
        .await
        .expect("is there");
    assert_eq!((first, second), (vec![Completion::Applied], vec![Completion::Conflict]));
    let row = world
        .column("SELECT concat_ws('|', status, published_entry_id, published_at, next_attempt_at IS NULL) FROM routes WHERE channel = 'push'")
        .await;
    assert_eq!(row, ["published|7-0|2026-04-02 09:21:45+00|t"]);
}

// INV-05
#[tokio::test]
async fn a_spent_budget_makes_a_dead_letter_and_its_row_in_one_transaction() {
    let world = World::new().await;
    world.accept(1..=2, at(0)).await;
    let routes = due(&world, Channel::Email, at(5)).await;
    let stale = Failed { version: Version::read(at(-1)), ..failed(&routes[1], 7, None) };
    let swaps = world
        .store
        .complete_routes_failed(&[failed(&routes[0], 7, None), stale], at(5), RowLocks::Wait)
        .await
        .expect("is there");
    assert_eq!(swaps, [Completion::Applied, Completion::Conflict]);
    let route = world
        .column(
            "SELECT concat_ws('|', notification_id, status, attempt_count, next_attempt_at IS NULL, last_error_classification, last_error_message,
                last_error_at, dead_lettered_at) FROM routes WHERE status = 'dead_letter'",
        )
        .await;
    assert_eq!(
        route,
        [
            "1-0|dead_letter|7|t|mail_stream_publish_failed|WRONGTYPE|2026-04-02 09:21:45+00|2026-04-02 09:21:45+00"
        ]
    );
    let letter = world
        .column(
            "SELECT concat_ws('|', notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
                failure_classification, failure_message, created_at) FROM dead_letters WHERE recovery_hint LIKE '%NOTIFICATION_MAIL%'",
        )
        .await;
    assert_eq!(
        letter,
        ["1-0|email:user:u-1|email|user:u-1|7|7|mail_stream_publish_failed|WRONGTYPE|2026-04-02 09:21:45+00"]
    );
}

// INV-03
#[tokio::test]
async fn a_dead_letter_that_an_operator_revived_may_die_again() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let route = due(&world, Channel::Email, at(5)).await.remove(0);
    assert_eq!(
        world
            .store
            .complete_routes_failed(&[failed(&route, 7, None)], at(5), RowLocks::Wait)
            .await
            .expect("is there"),
        [Completion::Applied]
    );
    world.execute("UPDATE routes SET status = 'pending', next_attempt_at = now(), updated_at = clock_timestamp() WHERE channel = 'email'").await;
    let route = world
        .store
        .list_due_routes(Channel::Email, DueOrder::OldestFirst, Timestamp::MAX, None, 9)
        .await
        .expect("is there")
        .routes
        .remove(0);
    let swaps = world
        .store
        .complete_routes_failed(&[failed(&route, 7, None)], at(6), RowLocks::Wait)
        .await
        .expect("is there");
    assert_eq!(swaps, [Completion::Applied]);
    assert_eq!(world.column("SELECT count(*)::text FROM dead_letters").await, ["1"]);
}

#[tokio::test]
async fn a_route_keeps_its_newest_failed_attempts_up_to_its_budget() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    for attempt in 1..=9 {
        let route = due(&world, Channel::Email, at(100)).await.remove(0);
        let message = format!("{attempt}{}", "é".repeat(2_000));
        let failed = [Failed { message, ..failed(&route, attempt, Some(at(0))) }];
        let locks = if attempt % 2 == 0 { RowLocks::Wait } else { RowLocks::Skip };
        for _ in ["its response is lost", "it is repeated"] {
            let swaps = world.store.complete_routes_failed(&failed, at(attempt.into()), locks).await;
            assert_eq!(swaps.expect("is there"), [Completion::Applied]);
        }
    }
    let id = NotificationId::of(EntryId::new(1, 0), 0);
    let found = world.queries.get_notification(&id).await.expect("is there").expect("it was accepted");
    let route = found.routes.iter().find(|route| route.channel == Channel::Email).expect("it is there");
    let kept: Vec<_> = route.failed_attempts.iter().map(|kept| (kept.attempt, kept.at)).collect();
    assert_eq!(kept, (3..=9).map(|attempt| (attempt, at(attempt.into()))).collect::<Vec<_>>());
    assert_eq!(route.failed_attempts[6].message, format!("9{}", "é".repeat(999)));
}

// INV-03
#[tokio::test]
async fn a_terminal_route_is_not_touched_even_at_its_own_version() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let route = due(&world, Channel::Push, at(5)).await.remove(0);
    // Edited by hand, without raising the version.
    world
        .execute("UPDATE routes SET status = 'skipped', next_attempt_at = NULL WHERE channel = 'push'")
        .await;
    let swaps = world
        .store
        .complete_routes_published(&[published(&route, "7-0")], at(5), RowLocks::Wait)
        .await
        .expect("is there");
    assert_eq!(swaps, [Completion::Conflict]);
    let swaps = world
        .store
        .complete_routes_failed(&[failed(&route, 1, Some(at(9)))], at(5), RowLocks::Wait)
        .await
        .expect("is there");
    assert_eq!(swaps, [Completion::Conflict]);
}

// INV-09
#[tokio::test]
async fn a_corrupt_row_affects_only_itself_and_names_the_column() {
    let world = World::new().await;
    world.accept(1..=3, at(0)).await;
    world
        .execute("UPDATE routes SET attempt_count = -1 WHERE notification_id = '2-0' AND channel = 'push'")
        .await;
    world.execute("UPDATE records SET occurred_at = 'infinity' WHERE notification_id = '3-0'").await;
    let page = world
        .store
        .list_due_routes(Channel::Push, DueOrder::OldestFirst, at(5), None, 100)
        .await
        .expect("is there");
    assert_eq!(
        page.routes.iter().map(|route| route.key.to_string()).collect::<Vec<_>>(),
        ["1-0/push:user:u-1"]
    );
    let places: Vec<String> = page
        .corrupt
        .iter()
        .map(|error| match error {
            StoreError::Corrupt { place, key, .. } => format!("{place} of {key}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        places,
        ["routes.attempt_count of 2-0/push:user:u-1", "records.occurred_at of 3-0/push:user:u-1"]
    );
}

/// All routes that are due at the end of time, page by page: the notifications, and the rows that cannot be
/// read.
async fn all_due(
    world: &World,
    channel: Channel,
    order: DueOrder,
    limit: usize,
) -> (Vec<String>, Vec<String>) {
    let (mut seen, mut corrupt, mut cursor) = (Vec::new(), Vec::new(), None);
    loop {
        let page = world.store.list_due_routes(channel, order, Timestamp::MAX, cursor.as_ref(), limit);
        let page = page.await.expect("is there");
        seen.extend(page.routes.iter().map(|route| route.key.notification_id.to_string()));
        corrupt.extend(page.corrupt.iter().map(ToString::to_string));
        cursor = page.next;
        if cursor.is_none() {
            return (seen, corrupt);
        }
    }
}

/// Found by a review: of 1,100 rows due at `-infinity`, 588 were never listed.
#[tokio::test]
async fn every_row_that_cannot_be_read_is_listed_once_however_many_pages_they_fill() {
    let world = World::new().await;
    world.accept(1..=25, at(0)).await;
    world.execute("UPDATE routes SET next_attempt_at = '-infinity' WHERE notification_id <> '7-0'").await;
    for order in [DueOrder::OldestFirst, DueOrder::NewestFirst] {
        let (seen, corrupt) = all_due(&world, Channel::Push, order, 10).await;
        assert_eq!(seen, ["7-0"]);
        assert_eq!(corrupt.iter().collect::<std::collections::BTreeSet<_>>().len(), 24);
        assert_eq!(corrupt.len(), 24);
    }
}

#[tokio::test]
async fn completions_of_rows_that_are_not_locked_do_not_wait_for_one_that_is() {
    let world = World::new().await;
    world.accept(1..=3, at(0)).await;
    let push = due(&world, Channel::Push, at(5)).await;
    let email = due(&world, Channel::Email, at(5)).await;
    let operator = world.database.client().await;
    operator
        .batch_execute("BEGIN; SELECT 1 FROM routes WHERE notification_id = '2-0' FOR UPDATE")
        .await
        .expect("the rows are free");

    let done: Vec<Published> = push.iter().map(|route| published(route, "7-0")).collect();
    let completions = world.store.complete_routes_published(&done, at(5), RowLocks::Wait).await;
    let expected = [Completion::Applied, Completion::Locked, Completion::Applied];
    assert_eq!(completions.expect("is there"), expected);
    let again = world.store.complete_routes_published(&done, at(5), RowLocks::Skip).await;
    assert_eq!(again.expect("is there"), expected, "a row that has its new values is no conflict");

    // The last attempt of the budget, so that a dead letter is written, too.
    let given_up: Vec<Failed> = email.iter().map(|route| failed(route, 7, None)).collect();
    let completions = world.store.complete_routes_failed(&given_up, at(5), RowLocks::Wait).await;
    assert_eq!(completions.expect("is there"), expected);

    operator.batch_execute("ROLLBACK").await.expect("is there");
    let freed = world.store.complete_routes_published(&done[1..2], at(6), RowLocks::Skip).await;
    assert_eq!(freed.expect("is there"), [Completion::Applied]);
    let freed = world.store.complete_routes_failed(&given_up[1..2], at(6), RowLocks::Skip).await;
    assert_eq!(freed.expect("is there"), [Completion::Applied]);
    assert_eq!(world.column("SELECT count(*)::text FROM dead_letters").await, ["3"]);
}

/// Values that an operator may write and the service never does.
// INV-09
#[tokio::test]
async fn a_due_time_that_cannot_be_read_hides_no_other_route_of_either_channel() {
    let world = World::new().await;
    for (number, time) in [(1, "-infinity"), (2, "0044-03-15 BC"), (3, "infinity"), (4, "20000-01-01")] {
        world.accept([number], at(0)).await;
        let sql =
            format!("UPDATE routes SET next_attempt_at = '{time}' WHERE notification_id = '{number}-0'");
        world.execute(&sql).await;
    }
    let next_due = async || world.store.next_due().await.expect("is there");
    let now = HashMap::from([(Channel::Push, Timestamp::MIN), (Channel::Email, Timestamp::MIN)]);
    assert_eq!(next_due().await, now, "what lies below the range is to be looked at");

    world.accept(5..=6, at(0)).await;
    for channel in Channel::ALL {
        for (order, expected) in
            [(DueOrder::OldestFirst, ["5-0", "6-0"]), (DueOrder::NewestFirst, ["6-0", "5-0"])]
        {
            let (seen, corrupt) = all_due(&world, channel, order, 1).await;
            assert_eq!(seen, expected);
            assert!(
                matches!(&corrupt[..], [one, two] if one != two && [one, two].iter().all(|row| row.contains("routes.next_attempt_at"))),
                "{corrupt:?}"
            );
        }
    }

    world.execute("DELETE FROM routes WHERE notification_id IN ('1-0', '2-0')").await;
    let due = HashMap::from([(Channel::Push, at(5)), (Channel::Email, at(5))]);
    assert_eq!(next_due().await, due, "what lies above it is never due");
    world.execute("DELETE FROM routes WHERE notification_id IN ('5-0', '6-0')").await;
    assert_eq!(next_due().await, HashMap::new());
}
