//! Operators' changes concurrent with other transactions, and after a crash.

use domain::operations::{Budgets, OperatorAction, OperatorActionId, RouteChange, Selection, Targets};
use domain::ports::{
    ChangeOutcome, Cutoff, Expired, Operations, Queries, Removal, RetentionStore, apply_change,
};
use domain::query::DeadLetterFilter;
use domain::record::NotificationId;

use super::*;

const REPLAY: RouteChange = RouteChange::Replay(Budgets { push: 3, email: 7 });

fn everything() -> Selection {
    Selection::DeadLetters(DeadLetterFilter::default())
}

fn action() -> OperatorAction {
    OperatorAction {
        actor: "ops".into(),
        request_id: "r".into(),
        idempotency_key: None,
        selection: everything(),
    }
}

/// Records 1 to `count` with two dead letters each, accepted long ago.
async fn dead_letters(world: &World, count: u32) {
    let sql = format!(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
            request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', '{{}}', n::text, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 ms' AS t FROM generate_series(1, {count}) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, created_at,
            updated_at, dead_lettered_at)
         SELECT notification_id, c || ':user:u', c, 'user:u', 'dead_letter', 3, 3, accepted_at, accepted_at, accepted_at
         FROM records, unnest(ARRAY['push', 'email']) c;
         INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', created_at FROM routes"
    );
    world.database.client().await.batch_execute(&sql).await.expect("rows");
}

async fn select(world: &World, selection: &Selection) -> Targets {
    world.store.select_routes(&REPLAY, selection).await.expect("PostgreSQL is there")
}

async fn change(world: &World, targets: &Targets) -> Vec<ChangeOutcome> {
    let changed = world.store.change_routes(&REPLAY, &targets.targets, &action(), at(0)).await;
    changed.expect("PostgreSQL is there")
}

const COUNTS: &str = "SELECT concat_ws('|', (SELECT count(*) FROM routes WHERE status = 'dead_letter'),
    (SELECT count(*) FROM routes WHERE status = 'pending'), (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM operator_actions))";

#[tokio::test]
async fn a_request_changes_ten_thousand_routes_in_chunks_and_says_how_many_remain() {
    let world = World::new().await;
    dead_letters(&world, 5_100).await;
    let targets = select(&world, &everything()).await;
    assert_eq!(
        (targets.targets.len(), targets.remaining.count, targets.remaining.capped),
        (10_000, 200, false)
    );
    assert_eq!(targets.plan().count.count, 10_200);
    let report = apply_change(&world.store, &REPLAY, &targets, &action(), at(0)).await;
    let report = report.expect("PostgreSQL is there");
    assert_eq!((report.changed, report.remaining.count), (10_000, 200));
    assert_eq!(world.column(COUNTS).await, ["200|10000|200|20"]);
    let ids: Vec<String> = targets.targets.iter().map(|target| target.key.to_string()).collect();
    let again = select(&world, &Selection::Ids(ids)).await;
    assert_eq!((again.targets.len(), again.unchanged, again.unknown.len()), (0, 10_000, 0));
}

// INV-05
#[tokio::test]
async fn a_crash_before_the_commit_leaves_the_chunk_as_it_was_and_the_request_can_be_repeated() {
    let world = World::new().await;
    dead_letters(&world, 2).await;
    // The transaction fails at its last statement, after routes and dead letters were changed.
    world.execute("ALTER TABLE operator_actions ADD CONSTRAINT refused CHECK (actor <> 'ops')").await;
    let targets = select(&world, &everything()).await;
    let failed = world.store.change_routes(&REPLAY, &targets.targets, &action(), at(0)).await;
    assert!(matches!(failed, Err(StoreError::Refused { .. })), "{failed:?}");
    assert_eq!(world.column(COUNTS).await, ["4|0|4|0"]);
    world.execute("ALTER TABLE operator_actions DROP CONSTRAINT refused").await;
    assert_eq!(change(&world, &targets).await, [ChangeOutcome::Changed; 4]);
    assert_eq!(world.column(COUNTS).await, ["0|4|0|1"]);
}

#[tokio::test]
async fn a_session_that_was_left_open_on_a_dead_letter_delays_nothing_else() {
    let world = World::new().await;
    dead_letters(&world, 2).await;
    let operator = world.database.client().await;
    let edit = "BEGIN; UPDATE dead_letters SET recovery_hint = 'x' WHERE notification_id = '1-0' AND channel = 'push'";
    operator.batch_execute(edit).await.expect("it is right");
    let targets = select(&world, &everything()).await;
    let begun = std::time::Instant::now();
    let outcomes = change(&world, &targets).await;
    // The call waits for no lock: the longest that it could wait is half a second.
    assert!(begun.elapsed() < Duration::from_millis(450), "{:?}", begun.elapsed());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ChangeOutcome::Locked).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ChangeOutcome::Changed).count(), 3);
}

// INV-14
#[tokio::test]
async fn retention_and_a_replay_of_the_same_record_leave_it_whole_or_gone() {
    let world = World::new().await;
    dead_letters(&world, 50).await;
    let targets = select(&world, &everything()).await;
    let ids: Vec<NotificationId> = (1..=50).map(|n| NotificationId::from(format!("{n}-0"))).collect();
    let keys: Vec<&NotificationId> = ids.iter().collect();
    let cutoff = Cutoff { at: Timestamp::MAX, age: Duration::ZERO };
    let (outcomes, removal) =
        tokio::join!(change(&world, &targets), world.store.delete_expired(&keys, cutoff));
    let removal: Removal = removal.expect("PostgreSQL is there");
    let applied = outcomes.iter().filter(|outcome| **outcome == ChangeOutcome::Changed).count();
    let left: Vec<String> = world.column(COUNTS).await;
    let numbers: Vec<usize> = left[0].split('|').map(|number| number.parse().expect("a number")).collect();
    assert_eq!(numbers[1], applied, "a replayed route was deleted: {left:?} {removal:?}");
    assert_eq!(numbers[0], numbers[2], "a dead letter without a row or the reverse: {left:?}");
    let whole = "SELECT count(*)::text FROM records WHERE 2 <> (SELECT count(*) FROM routes WHERE routes.notification_id = records.notification_id)";
    assert_eq!(world.column(whole).await, ["0"]);
    assert_eq!(removal.removed as usize * 2 + numbers[0] + numbers[1], 100);
}

#[tokio::test]
async fn a_route_that_was_deleted_or_edited_since_it_was_selected_is_a_conflict() {
    let world = World::new().await;
    dead_letters(&world, 3).await;
    let targets = select(&world, &everything()).await;
    world.execute("DELETE FROM records WHERE notification_id = '1-0'").await;
    world.execute("UPDATE routes SET updated_at = now() WHERE notification_id = '2-0'").await;
    for (target, outcome) in targets.targets.iter().zip(change(&world, &targets).await) {
        let expected = match target.key.notification_id.as_str() {
            "3-0" => ChangeOutcome::Changed,
            _ => ChangeOutcome::Conflict,
        };
        assert_eq!(outcome, expected, "{}", target.key);
    }
    assert_eq!(world.column("SELECT affected::text FROM operator_actions").await, ["2"]);
}

#[tokio::test]
async fn only_actions_older_than_the_cutoff_are_deleted_oldest_first() {
    let world = World::new().await;
    let insert = "INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
         SELECT now() - n * interval '1 day', 'ops', 'a', '{}', n, 'r' FROM generate_series(1, 4) n";
    world.execute(insert).await;
    let now = ambient::Clock::now(&ambient::SystemClock);
    let cutoff = Cutoff::new(now, Duration::from_secs(60 * 60 * 60));
    let list = async |after: Option<&Expired<OperatorActionId>>| {
        RetentionStore::list_expired(&world.store, cutoff, after, 10).await.expect("PostgreSQL is there")
    };
    let listed = list(None).await;
    assert_eq!(listed.len(), 2);
    assert!(listed[0].at < listed[1].at);
    assert_eq!(list(Some(&listed[0])).await, listed[1..]);
    // One of them is too young to be deleted, although the caller names it.
    let keys = [listed[0].key, listed[1].key, OperatorActionId(1)];
    let removed = world.store.delete_expired(&keys.each_ref(), cutoff).await.expect("PostgreSQL is there");
    assert_eq!(removed, Removal { removed: 2, ..Removal::default() });
    assert_eq!(world.column("SELECT affected::text FROM operator_actions ORDER BY id").await, ["1", "2"]);
}

#[tokio::test]
async fn a_plan_and_what_is_read_by_its_key_wait_for_no_connection_of_the_traffic_or_of_searches() {
    let world = World::new().await;
    dead_letters(&world, 1).await;
    let dsn = Dsn::parse(&world.database.dsn()).expect("the harness gives a connection string");
    let pool = |session| {
        let operation_timeout = Duration::from_millis(500);
        PgPool::new(&dsn, PoolSettings { max_connections: 1, operation_timeout, session }).expect("a pool")
    };
    let (traffic, searches) = (pool(SESSION), pool(QUERY_SESSION));
    let store = PgStore::new(traffic.clone()).with_plans(pool(QUERY_SESSION));
    let queries = PgQueries::new(searches.clone()).with_lookups(pool(QUERY_SESSION));
    let all_taken = (traffic.session("work").await, searches.session("search").await);
    let planned = store.select_routes(&REPLAY, &everything()).await.expect("it has a connection");
    assert_eq!(planned.targets.len(), 2);
    let id = NotificationId::from("1-0".to_owned());
    assert!(queries.get_notification(&id).await.expect("it has a connection").is_some());
    assert_eq!(queries.list_records(&[id]).await.expect("it has a connection").len(), 1);
    drop(all_taken);
}
