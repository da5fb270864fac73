//! Delivery receipts: reports of consumers on routes.

use std::time::Duration;

use ReceiptStatus::{Bounced, Complained, Delivered, Failed, Opened};
use domain::outcome::Outcome;
use domain::personal::Sight;
use domain::ports::{
    AcceptanceStore, Completion, Cutoff, Published, Queries, ReceiptStore, RetentionStore, RouteStore,
    RowLocks,
};
use domain::query::{NotificationFilter, PageLimit, SearchFilter, SearchOutcome};
use domain::receipt::{Receipt, ReceiptStatus, Recorded, Report, ReportOutcome, RouteReport};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey};
use futures_util::future::join_all;

use super::accepted::{accept, at};
use super::acknowledged;

const RECORDED: ReportOutcome = ReportOutcome::Known(Recorded::Recorded);
const STALE: ReportOutcome = ReportOutcome::Known(Recorded::Stale);
const UNKNOWN: ReportOutcome = ReportOutcome::UnknownRoute;

/// A store under test, and a test's observations of it.
pub trait ReceiptsFixture {
    /// The store; acceptance creates its rows.
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + ReceiptStore + RetentionStore<NotificationId>);

    /// The queries on the rows.
    fn queries(&self) -> &impl Queries;

    /// The ids of the routes that have a receipt, sorted.
    fn receipts(&self) -> impl Future<Output = Vec<String>>;
}

/// Runs every case of [`crate::contract::receipts`], each on a fixture of its own.
#[macro_export]
macro_rules! receipts_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            receipts, $fixture;
            each_report_is_told_what_it_came_to,
            a_repeated_request_is_stale_and_leaves_the_status,
            of_all_orders_of_all_statuses_each_ends_at_the_highest,
            reports_at_once_end_at_the_highest_and_each_is_in_the_history,
            routes_of_another_channel_are_unknown_and_get_no_receipt,
            what_is_no_route_is_unknown_and_gets_no_receipt,
            the_notification_shows_the_receipt_of_each_route,
            notifications_are_found_by_their_receipts_and_bad_ones_are_counted,
            receipts_go_with_their_record_and_no_other_does,
        );
    };
}

pub async fn notifications_are_found_by_their_receipts_and_bad_ones_are_counted(
    fixture: impl ReceiptsFixture,
) {
    accept(fixture.store(), 1..=4, at(0)).await;
    let queries = fixture.queries();
    // The database counts by its own clock, so the times of these reports are its own.
    let now = queries.status("s", at(0)).await.expect("the store is there").at;
    let day = Duration::from_secs(24 * 3_600);
    let report = |number, channel, status, at| {
        let report = Report { status, at, detail: String::new() };
        RouteReport { key: id(number, channel).parse().expect("the id of a route"), report }
    };
    let reports = [
        report(1, Channel::Email, Bounced, now),
        report(2, Channel::Email, Bounced, now - day - day),
        report(3, Channel::Email, Complained, now),
        report(3, Channel::Push, Delivered, now),
    ];
    let recorded = fixture.store().record_reports(&reports, None).await.expect("the store is there");
    assert_eq!(recorded, [RECORDED; 4]);
    let status = queries.status("s", at(0)).await.expect("the store is there");
    let counts = [("bounced".to_owned(), 1), ("complained".to_owned(), 1)];
    assert_eq!((status.receipts.counts.as_slice(), status.receipts.capped), (counts.as_slice(), false));
    for (receipt, expected) in
        [(Bounced, ["2-0", "1-0"].as_slice()), (Complained, &["3-0"]), (Delivered, &["3-0"]), (Opened, &[])]
    {
        let filter = NotificationFilter { receipt: Some(receipt), ..NotificationFilter::default() };
        let page = queries.list_notifications(&filter, None, PageLimit::default()).await;
        let page = page.expect("the store is there");
        let found = page.items.iter().map(|item| item.notification_id.as_str());
        assert_eq!((found.collect::<Vec<_>>(), page.next), (expected.to_vec(), None), "{receipt:?}");
    }
    for (filter, expected) in [
        (r#"{"receipt.status": "bounced"}"#.to_owned(), ["2-0", "1-0"].as_slice()),
        (
            format!(r#"{{"receipt.status": "bounced", "receipt.at": {{"$after": "{}"}}}}"#, now - day),
            &["1-0"],
        ),
        (r#"{"receipt.status": "delivered", "route.channel": "push"}"#.to_owned(), &["3-0"]),
        (r#"{"receipt.status": "delivered", "route.channel": "email"}"#.to_owned(), &[]),
        (r#"{"$not": {"receipt.status": {"$exists": true}}}"#.to_owned(), &["4-0"]),
    ] {
        let found = queries
            .search_notifications(&SearchFilter::new(&*filter, Sight::Whole), None, PageLimit::default())
            .await;
        let SearchOutcome::Found(page) = found.expect("the store is there") else { panic!("{filter}") };
        let found = page.items.iter().map(|item| item.notification_id.as_str());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{filter}");
    }
}

fn id(number: u64, channel: Channel) -> String {
    format!("{number}-0/{channel}:user:u-1")
}

fn about(id: &str, status: ReceiptStatus) -> RouteReport {
    let report = Report { status, at: at(100), detail: format!("{} {id}", status.as_str()) };
    RouteReport { key: id.parse().expect("the id of a route"), report }
}

async fn record(store: &impl ReceiptStore, reports: &[RouteReport]) -> Vec<ReportOutcome> {
    store.record_reports(reports, None).await.expect("the store is there")
}

async fn receipt(queries: &impl Queries, id: &str) -> Option<Receipt> {
    let key: RouteKey = id.parse().expect("the id of a route");
    let found = queries.get_notification(&key.notification_id).await.expect("the store is there");
    let found = found.expect("it is accepted");
    found.route(&key).expect("it has this route").receipt.clone()
}

/// Every order of all statuses.
fn orders() -> Vec<Vec<ReceiptStatus>> {
    let mut orders = vec![Vec::new()];
    for _ in ReceiptStatus::ALL {
        let longer = |order: &Vec<ReceiptStatus>| {
            let others = ReceiptStatus::ALL.into_iter().filter(|status| !order.contains(status));
            others.map(|status| [&order[..], &[status]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

pub async fn each_report_is_told_what_it_came_to(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), [1, 2], at(0)).await;
    let (mail, push) = (id(1, Channel::Email), id(2, Channel::Push));
    let outcomes = record(
        fixture.store(),
        &[
            about(&mail, Delivered),
            about(&push, Failed),
            about("9-0/push:user:u-1", Delivered),
            about(&mail, Failed),
            about(&mail, Opened),
            about(&mail, Opened),
            about(&push, Delivered),
        ],
    )
    .await;
    assert_eq!(outcomes, [RECORDED, RECORDED, UNKNOWN, STALE, RECORDED, STALE, RECORDED]);
    assert_eq!(fixture.receipts().await, [mail.clone(), push]);
    let receipt = receipt(fixture.queries(), &mail).await.expect("it is known");
    assert_eq!(receipt.highest, about(&mail, Opened).report);
    let history: Vec<_> = receipt.history.iter().map(|past| (past.report.status, past.outcome)).collect();
    let expected = [
        (Opened, Recorded::Stale),
        (Opened, Recorded::Recorded),
        (Failed, Recorded::Stale),
        (Delivered, Recorded::Recorded),
    ];
    assert_eq!(history, expected);
    assert_eq!(record(fixture.store(), &[]).await, []);
}

pub async fn a_repeated_request_is_stale_and_leaves_the_status(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let mail = id(1, Channel::Email);
    let reports = [about(&mail, Delivered), about(&mail, Complained)];
    assert_eq!(record(fixture.store(), &reports).await, [RECORDED, RECORDED]);
    for repeats in 1..=30 {
        assert_eq!(record(fixture.store(), &reports).await, [STALE, STALE]);
        let receipt = receipt(fixture.queries(), &mail).await.expect("it is known");
        assert_eq!(receipt.highest, reports[1].report);
        assert_eq!(receipt.history.len(), 50.min(2 + 2 * repeats));
    }
}

pub async fn of_all_orders_of_all_statuses_each_ends_at_the_highest(fixture: impl ReceiptsFixture) {
    let orders = orders();
    assert_eq!(orders.len(), 120);
    accept(fixture.store(), 1..=60, at(0)).await;
    let routes: Vec<String> =
        (1..=60).flat_map(|number| Channel::ALL.map(|channel| id(number, channel))).collect();
    // Half of the orders as one request each, the others with one report per request.
    for step in 0..=5 {
        let reports: Vec<RouteReport> = routes
            .iter()
            .zip(&orders)
            .enumerate()
            .flat_map(|(place, (route, order))| {
                let part = match (place % 2 == 0, step) {
                    (true, 0) => &order[..],
                    (true, _) | (false, 0) => &[],
                    (false, step) => &order[step - 1..step],
                };
                part.iter().map(|status| about(route, *status))
            })
            .collect();
        drop(record(fixture.store(), &reports).await);
    }
    for (route, order) in routes.iter().zip(&orders) {
        let receipt = receipt(fixture.queries(), route).await.expect("it is known");
        assert_eq!(receipt.highest.status, Bounced, "{order:?}");
        let seen: Vec<ReceiptStatus> = receipt.history.iter().rev().map(|past| past.report.status).collect();
        assert_eq!(&seen, order);
    }
}

pub async fn reports_at_once_end_at_the_highest_and_each_is_in_the_history(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), 1..=20, at(0)).await;
    let routes: Vec<String> =
        (1..=20).flat_map(|number| Channel::ALL.map(|channel| id(number, channel))).collect();
    // Each caller reports one status of all routes, every other caller in the opposite order.
    let callers = (0..10).map(|caller| {
        let mut reports: Vec<RouteReport> =
            routes.iter().map(|route| about(route, ReceiptStatus::ALL[caller % 5])).collect();
        if caller % 2 == 1 {
            reports.reverse();
        }
        let store = fixture.store();
        async move { record(store, &reports).await }
    });
    let outcomes = join_all(callers).await;
    assert!(outcomes.iter().flatten().all(|outcome| *outcome != UNKNOWN), "{outcomes:?}");
    for route in &routes {
        let receipt = receipt(fixture.queries(), route).await.expect("it is known");
        assert_eq!((receipt.highest.status, receipt.history.len()), (Bounced, 10));
        let recorded = receipt.history.iter().rev().filter(|past| past.outcome == Recorded::Recorded);
        let rising: Vec<ReceiptStatus> = recorded.map(|past| past.report.status).collect();
        assert!(rising.is_sorted_by(|one, next| one < next), "{rising:?}");
    }
}

pub async fn routes_of_another_channel_are_unknown_and_get_no_receipt(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let (mail, push) = (id(1, Channel::Email), id(1, Channel::Push));
    let reports = [about(&mail, Delivered), about(&push, Delivered)];
    let of_mail = fixture.store().record_reports(&reports, Some(Channel::Email)).await;
    assert_eq!(of_mail.expect("the store is there"), [RECORDED, UNKNOWN]);
    assert_eq!(fixture.receipts().await, std::slice::from_ref(&mail));
    let of_gateway = fixture.store().record_reports(&reports, Some(Channel::Push)).await;
    assert_eq!(of_gateway.expect("the store is there"), [UNKNOWN, RECORDED]);
    assert_eq!(fixture.receipts().await, [mail, push]);
}

pub async fn what_is_no_route_is_unknown_and_gets_no_receipt(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let ids = [
        "2-0/push:user:u-1",
        "1-0/push:user:u-2",
        "1-0/push:user:u-1 ",
        "1-0/PUSH:user:u-1",
        "1-0/nul\0",
        "nul\0/push:user:u-1",
        &format!("1-0/push:user:{}", "u".repeat(2_000)),
        &format!("1-0/{}", "ä".repeat(512)),
    ];
    let reports: Vec<RouteReport> = ids.iter().map(|id| about(id, Delivered)).collect();
    assert_eq!(record(fixture.store(), &reports).await, [UNKNOWN; 8]);
    assert_eq!(fixture.receipts().await, [""; 0]);
}

pub async fn the_notification_shows_the_receipt_of_each_route(fixture: impl ReceiptsFixture) {
    accept(fixture.store(), [1], at(0)).await;
    let (mail, push) = (id(1, Channel::Email), id(1, Channel::Push));
    assert_eq!(receipt(fixture.queries(), &mail).await, None);
    let mut report = about(&mail, Bounced);
    report.report.detail = "\"\\ 550 <u-1@example.com> \u{1}\u{7f}ä🦀".repeat(20);
    assert_eq!(record(fixture.store(), std::slice::from_ref(&report)).await, [RECORDED]);
    let (known, _) = Receipt::after(None, report.report);
    assert_eq!(receipt(fixture.queries(), &mail).await, Some(known));
    assert_eq!(receipt(fixture.queries(), &push).await, None);
}

/// Publishes all routes of an intent, so that its record may be deleted.
async fn publish(store: &impl RouteStore, outcome: &Outcome) {
    for route in outcome.acceptance().expect("accepted").live_routes() {
        let published = Published { key: route.key, version: route.version, entry: acknowledged("7-0") };
        let completed = store.complete_routes_published(&[published], at(10), RowLocks::Wait).await;
        assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
    }
}

pub async fn receipts_go_with_their_record_and_no_other_does(fixture: impl ReceiptsFixture) {
    let store = fixture.store();
    for outcome in accept(store, [1, 10, 11], at(0)).await {
        publish(store, &outcome).await;
    }
    let (first, push) = (id(1, Channel::Email), id(1, Channel::Push));
    let (second, third) = (id(10, Channel::Email), id(11, Channel::Push));
    let reports = [&first, &push, &second, &third].map(|id| about(id, Delivered));
    assert_eq!(record(store, &reports).await, [RECORDED; 4]);
    const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
    let cutoff = Cutoff::new(at(60) + MONTH, MONTH);
    let expired = store.list_expired(cutoff, None, 10).await.expect("the store is there");
    assert_eq!(expired.iter().map(|expired| expired.rows).collect::<Vec<_>>(), [5, 4, 4]);
    let removal = store.delete_expired(&[&NotificationId::from("1-0".to_owned())], cutoff).await;
    assert_eq!(removal.expect("the store is there").removed, 1);
    assert_eq!(fixture.receipts().await, [second, third]);
    // A report after the record was deleted.
    assert_eq!(record(store, &[about(&first, Opened)]).await, [UNKNOWN]);
    assert_eq!(fixture.receipts().await.len(), 2);
}
