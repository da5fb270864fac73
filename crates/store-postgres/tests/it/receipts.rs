//! Receipts under concurrent transactions, and documents that another program wrote.

use domain::ports::{Cutoff, Queries, ReceiptStore, Removal, RetentionStore};
use domain::receipt::{
    MAX_DETAIL_CHARS, MAX_HISTORY, Receipt, ReceiptStatus, Recorded, Report, ReportOutcome, RouteReport,
};
use domain::record::NotificationId;
use harness::contract::acknowledged;
use harness::wait_for;
use tokio_postgres::Client;

use super::*;

const MAIL: &str = "1-0/email:user:u-1";
const PUSH: &str = "1-0/push:user:u-1";
const RECORDED: ReportOutcome = ReportOutcome::Known(Recorded::Recorded);
const STALE: ReportOutcome = ReportOutcome::Known(Recorded::Stale);
/// The longest wait in a test.
const BOUND: Duration = Duration::from_secs(60);

fn report(status: ReceiptStatus) -> Report {
    Report { status, at: at(9), detail: "as it is".to_owned() }
}

fn about(id: &str, status: ReceiptStatus) -> RouteReport {
    RouteReport { key: id.parse().expect("the id of a route"), report: report(status) }
}

/// The document of a receipt with one report.
fn document(status: ReceiptStatus) -> String {
    Receipt::after(None, report(status)).0.to_json()
}

impl World {
    async fn record(&self, reports: &[RouteReport]) -> Vec<ReportOutcome> {
        self.store.record_reports(reports, None).await.expect("PostgreSQL is there")
    }

    /// An open transaction of another client that has run `sql`.
    async fn open(&self, sql: &str) -> Client {
        let client = self.database.client().await;
        client.batch_execute(&format!("BEGIN; {sql}")).await.expect("the statement is right");
        client
    }

    /// Waits until a statement of the store waits for a lock.
    async fn is_waiting(&self) {
        let client = self.database.client().await;
        wait_for("a statement waits for a lock", BOUND, async || {
            let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            let waiting: i64 = client.query_one(sql, &[]).await.ok()?.get(0);
            (waiting > 0).then_some(())
        })
        .await;
    }

    async fn statuses(&self) -> Vec<String> {
        self.column("SELECT key || ' ' || (value ->> 'status') FROM receipts ORDER BY 1").await
    }

    async fn delete_first(&self) -> Removal {
        let cutoff = Cutoff { at: at(1), age: Duration::from_secs(30 * 24 * 60 * 60) };
        let id = NotificationId::from("1-0".to_owned());
        self.store.delete_expired(&[&id], cutoff).await.expect("PostgreSQL is there")
    }
}

#[tokio::test]
async fn a_receipt_that_another_transaction_inserts_meanwhile_is_not_lowered() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let bounced = document(ReceiptStatus::Bounced);
    let other =
        world.open(&format!("INSERT INTO receipts (key, value) VALUES ('{MAIL}', '{bounced}')")).await;
    let reports = [about(PUSH, ReceiptStatus::Opened), about(MAIL, ReceiptStatus::Delivered)];
    let commit = async {
        world.is_waiting().await;
        other.batch_execute("COMMIT").await.expect("it commits");
    };
    let (outcomes, ()) = tokio::join!(world.record(&reports), commit);
    assert_eq!(outcomes, [RECORDED, STALE]);
    assert_eq!(world.statuses().await, [format!("{MAIL} bounced"), format!("{PUSH} opened")]);
    let history = "SELECT jsonb_array_length(value -> 'history')::text FROM receipts ORDER BY key";
    assert_eq!(world.column(history).await, ["2", "1"]);
}

#[tokio::test]
async fn a_receipt_that_another_transaction_raises_meanwhile_is_not_lowered() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    assert_eq!(world.record(&[about(MAIL, ReceiptStatus::Delivered)]).await, [RECORDED]);
    let bounced = document(ReceiptStatus::Bounced);
    let other = world.open(&format!("UPDATE receipts SET value = '{bounced}'")).await;
    let reports = [about(MAIL, ReceiptStatus::Opened)];
    let commit = async {
        world.is_waiting().await;
        other.batch_execute("COMMIT").await.expect("it commits");
    };
    let (outcomes, ()) = tokio::join!(world.record(&reports), commit);
    assert_eq!(outcomes, [STALE]);
    assert_eq!(world.statuses().await, [format!("{MAIL} bounced")]);
}

// INV-14
#[tokio::test]
async fn retention_leaves_a_record_alone_whose_receipt_is_being_written() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.execute("UPDATE routes SET status = 'published', next_attempt_at = NULL").await;
    // The locks that the store holds while it writes a receipt.
    let writer = world.open("SELECT FROM routes WHERE route_id LIKE 'email%' FOR KEY SHARE").await;
    assert_eq!(world.delete_first().await, Removal { locked: 1, ..Removal::default() });
    writer.batch_execute("ROLLBACK").await.expect("it ends");
    assert_eq!(world.delete_first().await, Removal { removed: 1, ..Removal::default() });
}

// INV-14
#[tokio::test]
async fn a_report_that_meets_the_deletion_of_its_record_leaves_no_receipt() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    for (end, expected, left) in
        [("ROLLBACK", RECORDED, vec![MAIL]), ("COMMIT", ReportOutcome::UnknownRoute, vec![])]
    {
        let deletion = world.open("DELETE FROM receipts; DELETE FROM records").await;
        let reports = [about(MAIL, ReceiptStatus::Delivered)];
        let commit = async {
            world.is_waiting().await;
            deletion.batch_execute(end).await.expect("it ends");
        };
        let (outcomes, ()) = tokio::join!(world.record(&reports), commit);
        assert_eq!(outcomes, [expected]);
        assert_eq!(world.column("SELECT key FROM receipts").await, left);
    }
}

#[tokio::test]
async fn a_publisher_does_not_wait_for_a_receipt_that_is_being_written() {
    let world = World::new().await;
    let live = world.accept([1], at(0)).await[0].live_routes().next().expect("a route");
    let writer = world.open("SELECT FROM routes FOR KEY SHARE").await;
    let published =
        domain::ports::Published { key: live.key.clone(), version: live.version, entry: acknowledged("7-0") };
    let completed = domain::ports::RouteStore::complete_routes_published(
        &world.store,
        &[published],
        at(1),
        domain::ports::RowLocks::Skip,
    )
    .await;
    assert_eq!(completed.expect("PostgreSQL is there"), [domain::ports::Completion::Applied]);
    writer.batch_execute("ROLLBACK").await.expect("it ends");
}

// INV-09
#[tokio::test]
async fn reports_of_a_route_that_is_locked_delay_no_other_of_their_request() {
    let world = World::new().await;
    world.accept(1..=60, at(0)).await;
    let routes = world.column("SELECT notification_id || '/' || route_id FROM routes ORDER BY 1").await;
    let operator = world
        .open(&format!("SELECT FROM routes WHERE notification_id || '/' || route_id = '{MAIL}' FOR UPDATE"))
        .await;
    let reports: Vec<RouteReport> =
        routes.iter().map(|route| about(route, ReceiptStatus::Delivered)).collect();
    let error = world.store.record_reports(&reports, None).await.expect_err("a row is locked");
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let others: Vec<&String> = routes.iter().filter(|route| *route != MAIL).collect();
    assert_eq!(world.column("SELECT key FROM receipts ORDER BY 1").await.iter().collect::<Vec<_>>(), others);
    operator.batch_execute("ROLLBACK").await.expect("it ends");
    let outcomes = world.record(&reports).await;
    let recorded: Vec<&String> =
        routes.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == RECORDED).map(|(id, _)| id).collect();
    assert_eq!(recorded, [MAIL]);
}

#[tokio::test]
async fn a_document_of_another_program_is_named_when_it_is_read_and_replaced_by_the_next_report() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.execute(&format!("INSERT INTO receipts (key, value) VALUES ('{MAIL}', '[1]')")).await;
    let id = NotificationId::from("1-0".to_owned());
    let error = world.queries.get_notification(&id).await.expect_err("it cannot be read");
    assert!(error.to_string().contains(&format!("receipts.value of {MAIL} is corrupt")), "{error}");
    assert_eq!(world.record(&[about(MAIL, ReceiptStatus::Failed)]).await, [RECORDED]);
    assert!(world.queries.get_notification(&id).await.is_ok());
}

#[tokio::test]
async fn requests_with_the_same_routes_in_any_order_never_deadlock() {
    let world = World::new().await;
    world.accept(1..=100, at(0)).await;
    let routes = world.column("SELECT notification_id || '/' || route_id FROM routes ORDER BY 1").await;
    for round in 0..4_usize {
        // Some exist before, the others are inserted by all callers at once.
        let callers = (0..8_usize).map(|caller| {
            let mut reports: Vec<RouteReport> = routes
                .iter()
                .enumerate()
                .filter(|(place, _)| place % 4 <= round)
                .map(|(place, route)| about(route, ReceiptStatus::ALL[(caller + place) % 5]))
                .collect();
            let middle = reports.len() * caller / 8;
            reports.rotate_left(middle);
            if caller % 2 == 1 {
                reports.reverse();
            }
            let world = &world;
            async move { world.record(&reports).await }
        });
        let outcomes = futures_util::future::join_all(callers).await;
        assert!(outcomes.iter().flatten().all(|outcome| *outcome != ReportOutcome::UnknownRoute));
    }
    assert_eq!(world.column("SELECT DISTINCT value ->> 'status' FROM receipts").await, ["bounced"]);
    let reports = "SELECT DISTINCT jsonb_array_length(value -> 'history')::text FROM receipts ORDER BY 1";
    assert_eq!(world.column(reports).await, ["16", "24", "32", "8"]);
}

#[tokio::test]
async fn receipts_with_the_longest_histories_are_all_shown() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    let more = "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
        SELECT notification_id, route_id || n, channel, recipient_ref || n, 'published', 3, now(), now()
        FROM routes, generate_series(1, 60) n";
    assert_eq!(world.execute(more).await, 120);
    // The longest text that a detail can become.
    let longest = Report { detail: "\u{1}".repeat(MAX_DETAIL_CHARS), ..report(ReceiptStatus::Bounced) };
    let receipt = (0..MAX_HISTORY)
        .fold(None, |known, _| Some(Receipt::after(known, longest.clone()).0))
        .expect("reports");
    let document = receipt.to_json();
    assert!(document.len() > 300_000, "{}", document.len());
    let write = "INSERT INTO receipts (key, value) SELECT notification_id || '/' || route_id, $1::text::jsonb FROM routes";
    assert_eq!(
        world.database.client().await.execute(write, &[&document]).await.expect("they are stored"),
        122
    );
    let id = NotificationId::from("1-0".to_owned());
    let shown =
        world.queries.get_notification(&id).await.expect("PostgreSQL is there").expect("it is accepted");
    let with_receipt = shown.routes.iter().filter(|route| route.receipt.as_ref() == Some(&receipt));
    assert_eq!(with_receipt.count(), 122);
}
