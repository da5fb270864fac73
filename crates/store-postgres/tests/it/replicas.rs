//! Running replicas and their activity, where the contract suite of the port does not cover them.

use domain::ports::{Activity, ReplicaStore};
use harness::contract::replicas::report;

use super::*;

#[tokio::test]
async fn a_report_is_readable_in_its_row_and_the_operators_column_stays() {
    let world = World::new().await;
    world.store.save_replica(&report("a", &[])).await.expect("PostgreSQL is there");
    world.execute("UPDATE replicas SET step_down_at = now(), seen_at = now() - interval '1 day'").await;
    world.store.save_replica(&report("a", &["intake", "retention"])).await.expect("PostgreSQL is there");
    let row = "SELECT concat_ws('|', replica, version, leader_of, workers #>> '{0,blocked,entry_id}', \
               workers #>> '{0,blocked,cause}', step_down_at IS NOT NULL, seen_at > now() - interval '1 minute') \
               FROM replicas";
    assert_eq!(world.column(row).await, ["a|0.1.0|{intake,retention}|7-0|slow \u{fffd} directory|t|t"]);
}

#[tokio::test]
async fn activity_is_counted_by_whole_minutes_of_the_server() {
    let world = World::new().await;
    world.store.add_activity("a", &Activity::default()).await.expect("PostgreSQL is there");
    let minutes =
        "SELECT count(*)::text FROM activity WHERE minute <> date_trunc('minute', minute) OR minute > now()";
    assert_eq!(world.column(minutes).await, ["0"]);
}
