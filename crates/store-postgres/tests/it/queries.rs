//! Cases that the contract suite of the port does not cover: rows that the service does not write, and
//! limits.

use domain::ports::{BlockedReport, Queries, ReplicaReport, ReplicaStore, WorkerReport};
use domain::query::{NotificationFilter, PageLimit, ReplicaStatus};
use domain::record::RecordCursor;
use domain::replica::{AttemptsReport, DeferredReport};
use domain::route::{RouteKey, RouteStatus};

use super::*;

/// Records 1 to `count`, a second apart, with one published route each, to one of `users` users.
async fn records(world: &World, count: u32, users: u32) {
    let sql = format!(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', jsonb_build_array('u-' || n % {users}), '{{}}', n::text, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 s' AS t FROM generate_series(1, {count}) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
         SELECT notification_id, 'push:user:u', 'push', 'user:u', 'published', 3, accepted_at, accepted_at FROM records"
    );
    world.database.client().await.batch_execute(&sql).await.expect("rows");
}

/// The number of pages, and all ids.
async fn all(world: &World, filter: &NotificationFilter) -> (usize, Vec<String>) {
    let (mut pages, mut found, mut after): (_, _, Option<RecordCursor>) = (0, Vec::new(), None);
    loop {
        let page = world.queries.list_notifications(filter, after.as_ref(), PageLimit::default()).await;
        let page = page.expect("PostgreSQL is there");
        pages += 1;
        found.extend(page.items.iter().map(|item| item.notification_id.to_string()));
        assert!(page.next.is_none() || page.next != after, "the list does not advance");
        after = page.next;
        if after.is_none() {
            return (pages, found);
        }
    }
}

#[tokio::test]
async fn a_search_without_an_index_examines_ten_thousand_rows_a_page_and_misses_nothing() {
    let world = World::new().await;
    records(&world, 25_000, 3).await;
    world.execute("UPDATE records SET notification_type = 'rare' WHERE notification_id IN ('1-0', '15000-0', '15001-0')").await;
    let filter = NotificationFilter { notification_type: Some("rare".into()), ..Default::default() };
    let page = world.queries.list_notifications(&filter, None, PageLimit::default()).await;
    let page = page.expect("PostgreSQL is there");
    assert!(page.items.is_empty() || page.items[0].notification_id.as_str() == "15001-0");
    let next = page.next.expect("there is more to examine");
    assert_eq!(next.notification_id.as_str(), "15001-0", "10,000 rows were examined");
    assert_eq!(all(&world, &filter).await, (3, ["15001-0", "15000-0", "1-0"].map(str::to_owned).to_vec()));
}

#[tokio::test]
async fn a_search_for_a_recipient_finds_all_whether_they_are_few_or_too_many_for_the_index() {
    let world = World::new().await;
    // Two of three records are to the same user: more than the maximum number of candidates.
    records(&world, 9_000, 3).await;
    world
        .execute("UPDATE records SET recipient_user_ids = '[\"u-0\"]' WHERE recipient_user_ids = '[\"u-1\"]'")
        .await;
    world.execute("UPDATE records SET recipient_user_ids = '[\"rare\", \"u-0\"]' WHERE notification_id IN ('2-0', '6-0')").await;
    for (recipient, expected) in [("rare", 2), ("u-0", 6_001), ("u-2", 2_999), ("nobody", 0)] {
        let filter = NotificationFilter { recipient: Some(recipient.into()), ..Default::default() };
        let (_, found) = all(&world, &filter).await;
        assert_eq!(found.len(), expected, "{recipient}");
        let numbers: Vec<u32> =
            found.iter().map(|id| id[..id.len() - 2].parse().expect("a number")).collect();
        assert!(numbers.is_sorted_by(|one, other| one > other), "{recipient}");
    }
}

#[tokio::test]
async fn a_search_by_status_goes_on_after_more_routes_than_there_may_be_candidates() {
    let world = World::new().await;
    records(&world, 6_000, 1).await;
    world.execute("UPDATE routes SET status = 'skipped'").await;
    let filter = NotificationFilter { status: Some(RouteStatus::Skipped), ..Default::default() };
    assert_eq!(all(&world, &filter).await.1.len(), 6_000);
    world.execute("UPDATE routes SET status = 'pending', next_attempt_at = 'infinity'").await;
    let filter = NotificationFilter { status: Some(RouteStatus::Pending), ..Default::default() };
    assert_eq!(all(&world, &filter).await.1.len(), 6_000);
}

#[tokio::test]
async fn a_route_that_an_operator_parked_has_the_last_time_there_is() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.execute("UPDATE routes SET next_attempt_at = 'infinity'").await;
    let found = world.queries.get_notification(&"1-0".to_owned().into()).await;
    let routes = found.expect("PostgreSQL is there").expect("it was accepted").routes;
    assert_eq!(routes.len(), 2);
    assert!(routes.iter().all(|route| route.next_attempt_at == Some(Timestamp::MAX)));
}

#[tokio::test]
async fn the_status_has_the_checkpoint_and_the_replicas_as_they_reported_themselves() {
    let world = World::new().await;
    world.accept([7], at(0)).await;
    let blocked =
        BlockedReport { entry_id: Some(EntryId::new(8, 0)), cause: "directory".into(), since: at(3) };
    let worker = |worker: &str, blocked, position| WorkerReport {
        worker: worker.to_owned(),
        last_pass_at: at(4),
        blocked,
        position,
        deferred: Some(DeferredReport {
            completions: 3,
            since: at(2),
            first: RouteKey {
                notification_id: "7-0".to_owned().into(),
                route_id: "push:user:u-1".to_owned(),
            },
            is_published: true,
            cause: "locked".to_owned(),
            held_by: None,
        }),
        attempts: Some(AttemptsReport {
            succeeded: 1,
            failed: 2,
            failing_since: Some(at(1)),
            cause: "WRONGTYPE".to_owned(),
        }),
    };
    let report = ReplicaReport {
        replica: "a".to_owned(),
        version: "0.1.0".to_owned(),
        started_at: at(1),
        leader_of: vec!["intake".to_owned()],
        workers: vec![worker("intake", Some(blocked), Some(EntryId::new(7, 0))), worker("push", None, None)],
        stopped: false,
    };
    world.store.save_replica(&report).await.expect("PostgreSQL is there");
    let status = world.queries.status(STREAM, at(99)).await.expect("PostgreSQL is there");
    assert_eq!(status.checkpoint.map(|checkpoint| checkpoint.last_entry_id), Some(EntryId::new(7, 0)));
    assert_eq!(status.replicas.len(), 1);
    let seen_at = status.replicas[0].seen_at;
    assert_eq!(status.replicas[0], ReplicaStatus::new(report, seen_at));
    assert!(status.at.saturating_since(seen_at) < Duration::from_secs(60));
    assert_eq!(status.channels[0].due.count, 1);
}

#[tokio::test]
async fn queries_cannot_write() {
    let world = World::new().await;
    let dsn = Dsn::parse(&world.database.dsn()).expect("a connection string");
    let settings = PoolSettings {
        max_connections: 1,
        operation_timeout: Duration::from_secs(5),
        session: QUERY_SESSION,
    };
    let session = PgPool::new(&dsn, settings).expect("a pool").session("write").await.expect("connects");
    session.execute_batch("DELETE FROM routes").await.expect_err("the session is read-only");
}
