//! Which replicas run and what they did.

use domain::ports::{Activity, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn report(replica: &str, leader_of: &[&str]) -> ReplicaReport {
    ReplicaReport {
        replica: replica.to_owned(),
        version: "0.1.0".to_owned(),
        started_at: Timestamp::UNIX_EPOCH,
        leader_of: leader_of.iter().map(|&worker| worker.to_owned()).collect(),
        workers: vec![WorkerReport {
            worker: "intake".to_owned(),
            last_pass_at: Timestamp::UNIX_EPOCH,
            blocked: Some(BlockedReport {
                entry_id: Some(EntryId::new(7, 0)),
                cause: "slow \0 directory".to_owned(),
                since: Timestamp::UNIX_EPOCH,
            }),
            position: None,
            deferred: 0,
        }],
    }
}

#[tokio::test]
async fn a_replica_has_one_row_with_its_last_report_and_the_operators_column_stays() {
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
async fn activity_of_a_minute_is_added_up_for_each_replica() {
    let world = World::new().await;
    let activity = Activity { accepted: 3, published: 6, dead_lettered: 1, ..Activity::default() };
    for replica in ["a", "b", "a"] {
        world.store.add_activity(replica, &activity).await.expect("PostgreSQL is there");
    }
    let sums = "SELECT concat_ws('|', replica, sum(accepted), sum(duplicates), sum(published), sum(dead_lettered)) \
                FROM activity GROUP BY replica ORDER BY replica";
    assert_eq!(world.column(sums).await, ["a|6|0|12|2", "b|3|0|6|1"]);
    let minutes =
        "SELECT count(*)::text FROM activity WHERE minute <> date_trunc('minute', minute) OR minute > now()";
    assert_eq!(world.column(minutes).await, ["0"]);
}

#[tokio::test]
async fn only_replicas_unseen_for_the_age_and_activity_older_than_it_are_deleted_and_no_more_than_the_limit()
{
    let world = World::new().await;
    for (replica, age) in [("old-1", "61 minutes"), ("old-2", "70 minutes"), ("young", "59 minutes")] {
        world.store.save_replica(&report(replica, &[])).await.expect("PostgreSQL is there");
        world.store.add_activity(replica, &Activity::default()).await.expect("PostgreSQL is there");
        let set = format!("now() - interval '{age}' WHERE replica = '{replica}'");
        world.execute(&format!("UPDATE replicas SET seen_at = {set}")).await;
        world.execute(&format!("UPDATE activity SET minute = {set}")).await;
    }
    for (deleted, left) in [(1, &["old-1", "young"][..]), (1, &["young"]), (0, &["young"])] {
        assert_eq!(world.store.delete_replicas(HOUR, 1).await.expect("PostgreSQL is there"), deleted);
        assert_eq!(world.store.delete_activity(HOUR, 1).await.expect("PostgreSQL is there"), deleted);
        for table in ["replicas", "activity"] {
            let rows = format!("SELECT replica FROM {table} ORDER BY replica");
            assert_eq!(world.column(&rows).await, left, "{table}");
        }
    }
}
