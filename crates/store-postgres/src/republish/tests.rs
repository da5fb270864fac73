//! The plans of the statements that compare publications.

use harness::TestDatabase;
use harness::contract::acknowledged;

use super::*;
use crate::routes::tests::{most_rows, nodes, plan, rows, sorts_a_table, store};

const RECORDS: usize = 200;
const ROUTES_OF_EACH: u64 = 2;

#[tokio::test]
async fn a_page_of_published_entries_reads_one_page_of_the_listing_index_and_routes_by_their_key() {
    let database = TestDatabase::new().await;
    let client = database.client().await;
    // The planner's statistics are of empty tables.
    client.batch_execute("ALTER TABLE records SET (autovacuum_enabled = false)").await.expect("it is ours");
    client.batch_execute("ALTER TABLE routes SET (autovacuum_enabled = false)").await.expect("it is ours");
    client.batch_execute(&rows(1, 10_000, "published", "NULL")).await.expect("rows");
    let store = store(&database);
    let session = store.session("explain").await.expect("is there");
    let newest = RecordCursor::before(Timestamp::MAX);
    let page = plan(&session, published(&newest, Timestamp::MIN, RECORDS)).await;
    assert!(most_rows(&page) <= RECORDS as u64 * ROUTES_OF_EACH, "{page:#}");
    assert!(!sorts_a_table(&page), "{page:#}");
    let nodes_of_page = nodes(&page);
    let listing = nodes_of_page.iter().find(|node| node["Index Name"] == "records_listing_idx");
    // The index has the newest record first, and the page ends where the read of the index stopped.
    assert_eq!(listing.expect("it reads the index")["Scan Direction"], "Forward", "{page:#}");
    assert!(page.to_string().contains("routes_pkey"), "{page:#}");

    let key =
        RouteKey { notification_id: NotificationId::from("1-0".to_owned()), route_id: "push:user:u".into() };
    let version = domain::route::Version::read(Timestamp::MIN);
    let done = [Published { key: key.clone(), version, entry: acknowledged("1-0") }];
    for plan in [
        plan(&session, published_routes(&[&key])).await,
        plan(&session, replace_entries(&done, Timestamp::MAX)).await,
    ] {
        assert!(nodes(&plan).iter().all(|node| node["Node Type"] != "Seq Scan"), "{plan:#}");
        assert!(plan.to_string().contains("routes_pkey"), "{plan:#}");
    }
}
