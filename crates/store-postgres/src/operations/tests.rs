//! The plans of operators' changes: routes and dead letters are accessed by their keys.

use std::time::Duration;

use domain::operations::{Budgets, Changeable, Group, LivePlace, OperatorActionId, RouteFilter};
use domain::ports::{Cutoff, Expired};
use domain::query::DeadLetterFilter;
use domain::route::{Channel, Version};
use harness::TestDatabase;
use serde_json::Value;

use super::statements::{delete, lock, replay_routes, routes_named, touch, unchanged};
use super::targets::SELECTED_AT_ONCE;
use super::targets::statements::{live, published};
use super::*;
use crate::operator_actions::{delete_actions, expired_actions};
use crate::queries::MAX_EXAMINED;
use crate::routes::tests::{most_rows, nodes, number, plan, rows, store};

const CHUNK: u64 = 500;
/// The blocks for each route of a chunk: lookups and an update in two tables.
const BLOCKS: u64 = 40;

fn chunk() -> Vec<Target> {
    let target = |n: u64| Target {
        key: RouteKey { notification_id: format!("{n}-0").into(), route_id: "push:user:u".into() },
        version: Version::read(Timestamp::from_millis(1_767_225_600_000).expect("in range")),
        channel: Channel::Push,
        attempt_count: 0,
        replaces: None,
        group: Group::Type("t".into()),
    };
    (1..=CHUNK).map(target).collect()
}

fn check(what: &str, plan: &Value) {
    assert!(most_rows(plan) <= CHUNK, "{what} reads {} rows:\n{plan:#}", most_rows(plan));
    let touched = number(plan, "Shared Hit Blocks") + number(plan, "Shared Read Blocks");
    assert!(touched <= BLOCKS * CHUNK, "{what} reads {touched} blocks:\n{plan:#}");
    assert!(nodes(plan).iter().all(|node| node["Node Type"] != "Seq Scan"), "{what}:\n{plan:#}");
}

#[tokio::test]
async fn a_chunk_reaches_its_routes_and_dead_letters_by_their_keys() {
    for statistics in ["", "ANALYZE records; ANALYZE routes; ANALYZE dead_letters"] {
        let database = TestDatabase::new().await;
        let client = database.client().await;
        for table in ["records", "routes", "dead_letters"] {
            let empty = format!("ALTER TABLE {table} SET (autovacuum_enabled = false); ANALYZE {table}");
            client.batch_execute(&empty).await.expect("it is ours");
        }
        client.batch_execute(&rows(1, 10_000, "dead_letter", "NULL")).await.expect("rows");
        let letters = "INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count,
                max_attempts, failure_classification, failure_message, recovery_hint, created_at)
             SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', created_at FROM routes";
        client.batch_execute(letters).await.expect("rows");
        client.batch_execute(statistics).await.expect("statistics");
        let store = store(&database);
        let session = store.session("explain").await.expect("is there");
        let (chunk, now) = (chunk(), Timestamp::MAX);
        let keys: Vec<&RouteKey> = chunk.iter().map(|target| &target.key).collect();
        let budgets = Budgets { push: 3, email: 7 };
        let routes: Vec<_> =
            chunk.iter().map(|target| (target, replay(target.channel, budgets, now))).collect();
        check("selecting by id", &plan(&session, routes_named(&keys)).await);
        check("what is unchanged", &plan(&session, unchanged(Changeable::DeadLetters, &chunk)).await);
        session.begin().await.expect("is there");
        check("locking", &plan(&session, lock(Changeable::DeadLetters, &chunk)).await);
        check("marking", &plan(&session, discard(&chunk, "ops", "why", now)).await);
        check("raising versions", &plan(&session, touch(&chunk, now)).await);
        check("deleting", &plan(&session, delete(&chunk)).await);
        check("replaying", &plan(&session, replay_routes(&routes, now)).await);
        session.rollback().await.expect("is there");
    }
}

#[tokio::test]
async fn a_page_of_live_routes_examines_a_bounded_number_of_a_backlog() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    client.batch_execute(&rows(1, 30_000, "pending", "'2026-01-01'")).await.expect("rows");
    client.batch_execute("ANALYZE records; ANALYZE routes").await.expect("statistics");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let filter = RouteFilter { producer: Some("another".to_owned()), ..RouteFilter::default() };
    let place = LivePlace::beginning(Channel::Push);
    let plan = plan(&session, live(&filter, &place, 1_000)).await;
    // The numbering of rows reads one ahead.
    assert!(most_rows(&plan) <= MAX_EXAMINED as u64 + 1, "it reads {} rows:\n{plan:#}", most_rows(&plan));
    assert!(nodes(&plan).iter().all(|node| node["Node Type"] != "Seq Scan"), "{plan:#}");
}

#[tokio::test]
async fn a_page_of_published_routes_examines_a_bounded_number_of_records() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    client.batch_execute(&rows(1, 30_000, "published", "NULL")).await.expect("rows");
    client.batch_execute("ANALYZE records; ANALYZE routes").await.expect("statistics");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let filter = RouteFilter { producer: Some("another".to_owned()), ..RouteFilter::default() };
    let plan = plan(&session, published(&filter, None, 1_000)).await;
    assert!(most_rows(&plan) <= 3 * MAX_EXAMINED as u64, "it reads {} rows:\n{plan:#}", most_rows(&plan));
    assert!(nodes(&plan).iter().all(|node| node["Node Type"] != "Seq Scan"), "{plan:#}");
}

#[tokio::test]
async fn old_actions_are_listed_by_their_index_and_deleted_by_their_key() {
    let database = TestDatabase::new().await;
    let insert = "ALTER TABLE operator_actions SET (autovacuum_enabled = false);
         INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
         SELECT timestamptz '2026-01-01' + n * interval '1 s', 'ops', 'a', '{}', n, 'r' FROM generate_series(1, 10000) n";
    database.client().await.batch_execute(insert).await.expect("rows");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let cutoff = Cutoff { at: Timestamp::MAX, age: Duration::ZERO };
    let after = Expired {
        key: OperatorActionId(100),
        at: Timestamp::from_millis(1_767_225_700_000).expect("in range"),
        rows: 1,
        bytes: 0,
        live: false,
    };
    for after in [None, Some(&after)] {
        let plan = plan(&session, expired_actions(cutoff, after, 200)).await;
        check("listing", &plan);
        assert!(plan.to_string().contains("operator_actions_at_idx"), "{plan:#}");
    }
    let keys: Vec<OperatorActionId> = (1..=200).map(OperatorActionId).collect();
    let keys: Vec<&OperatorActionId> = keys.iter().collect();
    check("deleting", &plan(&session, delete_actions(&keys, cutoff)).await);
}

#[tokio::test]
async fn a_plan_that_takes_too_long_ends_with_what_was_found_and_counts_what_remains_as_more() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    client.batch_execute(&rows(1, 2_500, "dead_letter", "NULL")).await.expect("rows");
    let letters = "INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count,
            max_attempts, failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', created_at FROM routes";
    client.batch_execute(letters).await.expect("rows");
    let store = store(&database);
    let session = store.session("select").await.expect("is there");
    let all = Selection::DeadLetters(DeadLetterFilter::default());
    let replay = RouteChange::Replay(Budgets { push: 3, email: 7 });
    let cut_short = select_listed(&session, &replay, &all, Duration::ZERO).await.expect("is there");
    let found =
        |targets: &Targets| (targets.targets.len(), targets.remaining.count, targets.remaining.capped);
    assert_eq!(found(&cut_short), (SELECTED_AT_ONCE, 0, true));
    let whole = select_listed(&session, &replay, &all, Duration::MAX).await.expect("is there");
    assert!(!whole.remaining.capped && whole.targets.len() > SELECTED_AT_ONCE, "{:?}", found(&whole));
}
