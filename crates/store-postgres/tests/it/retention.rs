//! Which rows go, and which stay.

use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{Commit, Expired, RetentionStore};
use domain::record::NotificationId;

use super::*;

fn ids(records: &[Expired]) -> Vec<&str> {
    records.iter().map(|record| record.notification_id.as_str()).collect()
}

async fn settle_all(world: &World, except: &str) {
    world
        .execute(&format!(
            "UPDATE routes SET status = 'published', next_attempt_at = NULL WHERE notification_id <> '{except}'"
        ))
        .await;
}

#[tokio::test]
async fn expired_records_are_listed_oldest_first_with_their_routes() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.accept([3], at(2)).await;
    world.accept([4], at(3)).await;
    settle_all(&world, "3-0").await;
    let page = world.store.list_expired_records(at(3), None, 10).await.expect("is there");
    assert_eq!(ids(&page), ["1-0", "3-0"]);
    assert_eq!(
        page.iter().map(|record| (record.routes, record.live_routes)).collect::<Vec<_>>(),
        [(2, 0), (2, 2)]
    );
    let behind = world.store.list_expired_records(at(3), page.first(), 10).await.expect("is there");
    assert_eq!(ids(&behind), ["3-0"]);
}

#[tokio::test]
async fn a_record_goes_with_its_routes_and_stays_while_one_of_them_is_live() {
    let world = World::new().await;
    world.accept(1..=3, at(0)).await;
    settle_all(&world, "2-0").await;
    let all: Vec<NotificationId> =
        ["1-0", "2-0", "3-0"].map(|id| NotificationId::from(id.to_owned())).to_vec();
    assert_eq!(world.store.delete_records(&all[..2], at(1)).await.expect("is there"), 1);
    assert_eq!(world.column("SELECT notification_id FROM records ORDER BY 1").await, ["2-0", "3-0"]);
    assert_eq!(world.column("SELECT DISTINCT notification_id FROM routes ORDER BY 1").await, ["2-0", "3-0"]);
}

#[tokio::test]
async fn two_sweepers_that_meet_in_the_same_records_delete_each_of_them_once() {
    let world = World::new().await;
    world.accept(1..=20, at(0)).await;
    settle_all(&world, "20-0").await;
    let page = world.store.list_expired_records(at(1), None, 100).await.expect("is there");
    let all: Vec<NotificationId> = page.iter().map(|record| record.notification_id.clone()).collect();
    assert_eq!(all.len(), 20);

    // Somebody holds a record in the middle: both sweepers get stuck there, one behind the other.
    let holder = world.database.client().await;
    holder
        .batch_execute("BEGIN; SELECT 1 FROM records WHERE notification_id = '9-0' FOR UPDATE")
        .await
        .expect("it is there");
    let sweep = async || world.store.delete_records(&all, at(1)).await.expect("is there");
    let release = async {
        let waiting = "SELECT pid::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        harness::wait_for("both sweepers wait", Duration::from_secs(4), async || {
            (world.column(waiting).await.len() == 2).then_some(())
        })
        .await;
        holder.batch_execute("COMMIT").await.expect("is there");
    };
    let (first, second, ()) = tokio::join!(sweep(), sweep(), release);
    assert_eq!(first + second, 19, "{first} and {second}");
    assert_eq!(world.column("SELECT notification_id FROM records").await, ["20-0"]);
    assert_eq!(world.column("SELECT DISTINCT notification_id FROM routes").await, ["20-0"]);
}

#[tokio::test]
async fn a_record_accepted_at_the_cutoff_stays() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    settle_all(&world, "").await;
    let id = [NotificationId::from("1-0".to_owned())];
    assert_eq!(world.store.delete_records(&id, at(0)).await.expect("is there"), 0);
    assert_eq!(world.store.delete_records(&id, at(0) + Duration::from_micros(1)).await.expect("is there"), 1);
}

#[tokio::test]
async fn malformed_intents_go_oldest_first_up_to_the_limit() {
    let world = World::new().await;
    for n in 1..=4 {
        let broken = RawEntry { id: EntryId::new(n, 0), fields: RawFields::from_iter([("unknown", "x")]) };
        let settled = decide([broken], at(n as i64));
        assert_eq!(world.commit(&settled, EntryId::new(n, 0)).await, Commit::Done);
    }
    let left =
        async || world.column("SELECT stream_entry_id FROM malformed_intents ORDER BY recorded_at").await;
    assert_eq!(world.store.delete_malformed_intents(at(4), 2).await.expect("is there"), 2);
    assert_eq!(left().await, ["3-0", "4-0"]);
    assert_eq!(world.store.delete_malformed_intents(at(4), 2).await.expect("is there"), 1);
    assert_eq!(world.store.delete_malformed_intents(at(4), 2).await.expect("is there"), 0);
    assert_eq!(left().await, ["4-0"]);
}
