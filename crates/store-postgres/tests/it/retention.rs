//! Rows that are deleted, and rows that stay.

use ambient::{Clock, SystemClock};
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{Cutoff, Expired, Fate, KeySweep, MalformedKey, Removal, RetentionStore, StoreError};
use domain::record::NotificationId;
use tokio_postgres::Client;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A cutoff at `time`. Its age is longer than keys are kept, and it is met by the clock of the database, too.
fn before(time: Timestamp) -> Cutoff {
    Cutoff { at: time, age: DAY * 30 }
}

fn removed(removed: u64) -> Removal {
    Removal { removed, ..Removal::default() }
}

fn ids(records: &[Expired<NotificationId>]) -> Vec<&str> {
    records.iter().map(|record| record.key.as_str()).collect()
}

impl World {
    async fn expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<NotificationId>>,
    ) -> Vec<Expired<NotificationId>> {
        self.store.list_expired(cutoff, after, 100).await.expect("is there")
    }

    async fn expired_malformed(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<MalformedKey>>,
        limit: usize,
    ) -> Vec<Expired<MalformedKey>> {
        self.store.list_expired(cutoff, after, limit).await.expect("is there")
    }

    async fn try_delete(&self, ids: &[&str], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let ids: Vec<NotificationId> = ids.iter().map(|id| NotificationId::from((*id).to_owned())).collect();
        self.store.delete_expired(&ids.iter().collect::<Vec<_>>(), cutoff).await
    }

    async fn delete(&self, ids: &[&str], cutoff: Cutoff) -> Removal {
        self.try_delete(ids, cutoff).await.expect("is there")
    }

    async fn delete_malformed(&self, rows: &[Expired<MalformedKey>], cutoff: Cutoff) -> Removal {
        let keys: Vec<&MalformedKey> = rows.iter().map(|row| &row.key).collect();
        self.store.delete_expired(&keys, cutoff).await.expect("is there")
    }

    async fn malformed(&self, number: u64, now: Timestamp) {
        let entry =
            RawEntry { id: EntryId::new(number, 0), fields: RawFields::from_iter([("unknown", "x")]) };
        let batch = decide([entry], now);
        assert_eq!(self.commit(&batch).await, Fate::Committed);
    }

    async fn all_published(&self, except: &str) {
        self.execute(&format!(
            "UPDATE routes SET status = 'published', next_attempt_at = NULL WHERE notification_id <> '{except}'"
        ))
        .await;
    }

    async fn records(&self) -> Vec<String> {
        self.column("SELECT notification_id FROM records ORDER BY 1").await
    }

    async fn malformed_left(&self) -> Vec<String> {
        self.column("SELECT stream_entry_id FROM malformed_intents ORDER BY recorded_at").await
    }

    /// An open transaction of another client that has run `sql`.
    async fn open_transaction(&self, sql: &str) -> Client {
        let client = self.database.client().await;
        client.batch_execute(&format!("BEGIN; {sql}")).await.expect("the statement is right");
        client
    }
}

// INV-14
#[tokio::test]
async fn expired_records_are_listed_oldest_first_with_their_routes() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.accept([3], at(2)).await;
    world.accept([4], at(3)).await;
    world.all_published("3-0").await;
    let page = world.expired(before(at(3)), None).await;
    assert_eq!(ids(&page), ["1-0", "3-0"]);
    assert_eq!(
        page.iter().map(|record| (record.rows, record.live)).collect::<Vec<_>>(),
        [(3, false), (3, true)]
    );
    let later = world.expired(before(at(3)), page.first()).await;
    assert_eq!(ids(&later), ["3-0"]);
}

#[tokio::test]
async fn the_size_of_an_expired_row_is_that_of_its_large_values_as_they_are_stored() {
    let world = World::new().await;
    world.accept([1, 2], at(0)).await;
    world.malformed(3, at(0)).await;
    world.malformed(4, at(1)).await;
    let noise = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) n)";
    world.execute(&format!("UPDATE records SET payload_json = {noise} WHERE notification_id = '2-0'")).await;
    world
        .execute(&format!(
            "UPDATE malformed_intents SET raw_fields = to_jsonb({noise}) WHERE stream_entry_id = '4-0'"
        ))
        .await;
    let records: Vec<bool> =
        world.expired(before(at(9)), None).await.iter().map(|row| row.bytes > 30_000).collect();
    assert_eq!(records, [false, true]);
    let malformed = world.expired_malformed(before(at(9)), None, 10).await;
    assert_eq!(malformed.iter().map(|row| row.bytes > 30_000).collect::<Vec<_>>(), [false, true]);
}

// INV-14
#[tokio::test]
async fn a_record_is_deleted_with_its_routes_and_kept_while_one_of_them_is_live() {
    let world = World::new().await;
    world.accept(1..=3, at(0)).await;
    world.all_published("2-0").await;
    let removal = world.delete(&["1-0", "2-0", "gone"], before(at(1))).await;
    assert_eq!(removal, Removal { removed: 1, live: 1, locked: 0 });
    assert_eq!(world.records().await, ["2-0", "3-0"]);
    assert_eq!(world.column("SELECT DISTINCT notification_id FROM routes ORDER BY 1").await, ["2-0", "3-0"]);
}

#[tokio::test]
async fn a_record_without_any_route_is_deleted() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.execute("DELETE FROM routes").await;
    assert_eq!(world.delete(&["1-0"], before(at(1))).await, removed(1));
}

// INV-14
#[tokio::test]
async fn two_sweepers_that_meet_in_the_same_records_delete_each_of_them_once() {
    let world = World::new().await;
    world.accept(1..=20, at(0)).await;
    world.all_published("20-0").await;
    let page = world.expired(before(at(1)), None).await;
    let all = ids(&page);
    assert_eq!(all.len(), 20);
    let (first, second) = tokio::join!(world.delete(&all, before(at(1))), world.delete(&all, before(at(1))));
    let third = world.delete(&all, before(at(1))).await;
    assert_eq!(first.removed + second.removed + third.removed, 19, "{first:?} {second:?} {third:?}");
    assert_eq!(world.records().await, ["20-0"]);
}

// INV-14
#[tokio::test]
async fn a_record_accepted_at_the_cutoff_stays() {
    let world = World::new().await;
    world.accept([1], at(0)).await;
    world.all_published("").await;
    assert_eq!(world.delete(&["1-0"], before(at(0))).await, removed(0));
    assert_eq!(world.delete(&["1-0"], before(at(0) + Duration::from_micros(1))).await, removed(1));
}

// INV-14
#[tokio::test]
async fn a_clock_that_is_60_days_fast_removes_nothing_that_is_young_by_the_clock_of_the_database() {
    let world = World::new().await;
    let now = SystemClock.now();
    world.accept([1], now - DAY * 31).await;
    world.accept([2], now - DAY * 29).await;
    world.malformed(3, now - DAY * 31).await;
    world.malformed(4, now - DAY * 29).await;
    world.all_published("").await;
    for (clock, replica_now) in [("fast", now + DAY * 60), ("slow", now - DAY * 60), ("right", now)] {
        let cutoff = Cutoff::new(replica_now, DAY * 30);
        let records = world.expired(cutoff, None).await;
        let malformed = world.expired_malformed(cutoff, None, 10).await;
        let old = if clock == "slow" { vec![] } else { vec!["1-0"] };
        assert_eq!(ids(&records), old, "{clock}");
        assert_eq!(malformed.len(), old.len(), "{clock}");
    }
    let fast = Cutoff::new(now + DAY * 60, DAY * 30);
    assert_eq!(world.delete(&["1-0", "2-0"], fast).await, removed(1));
    let all = world.expired_malformed(Cutoff { at: now, age: Duration::ZERO }, None, 10).await;
    assert_eq!(world.delete_malformed(&all, fast).await, removed(1));
    assert_eq!(world.records().await, ["2-0"]);
    assert_eq!(world.malformed_left().await, ["4-0"]);
}

/// A world with a dead letter for the e-mail route of `1-0`, as the publisher writes it.
async fn with_dead_letter() -> World {
    let world = World::new().await;
    world.accept(1..=2, at(0)).await;
    world
        .database
        .client()
        .await
        .batch_execute(
            "UPDATE routes SET status = 'published', next_attempt_at = NULL;
             UPDATE routes SET status = 'dead_letter' WHERE notification_id = '1-0' AND channel = 'email';
             INSERT INTO dead_letters
             SELECT notification_id, route_id, channel, recipient_ref, 7, 7, 'c', 'm', 'h', now() FROM routes
             WHERE status = 'dead_letter'",
        )
        .await
        .expect("the statements are right");
    world
}

const RETRY: &str = "WITH revived AS (
        UPDATE routes SET status = 'pending', attempt_count = 0, next_attempt_at = now()
        WHERE status = 'dead_letter' RETURNING notification_id, route_id
    )
    DELETE FROM dead_letters USING revived
    WHERE dead_letters.notification_id = revived.notification_id AND dead_letters.route_id = revived.route_id";

// INV-14
#[tokio::test]
async fn a_dead_letter_that_is_being_retried_while_retention_passes_stays() {
    let world = with_dead_letter().await;
    let operator = world.open_transaction(RETRY).await;
    let removal = world.delete(&["1-0", "2-0"], before(at(1))).await;
    assert_eq!(removal, Removal { removed: 1, live: 0, locked: 1 }, "it neither waits nor deletes it");
    operator.batch_execute("COMMIT").await.expect("is there");
    assert_eq!(world.delete(&["1-0"], before(at(1))).await, Removal { removed: 0, live: 1, locked: 0 });
    assert_eq!(world.records().await, ["1-0"]);
    let routes = world.column("SELECT status FROM routes ORDER BY channel").await;
    assert_eq!(routes, ["pending", "published"]);
}

#[tokio::test]
async fn a_retry_that_is_taken_back_leaves_the_record_to_the_next_pass() {
    let world = with_dead_letter().await;
    let operator = world.open_transaction(RETRY).await;
    assert_eq!(world.delete(&["1-0"], before(at(1))).await.locked, 1);
    operator.batch_execute("ROLLBACK").await.expect("is there");
    assert_eq!(world.delete(&["1-0"], before(at(1))).await, removed(1));
}

// INV-14
#[tokio::test]
async fn rows_that_another_transaction_holds_are_passed_over_and_counted() {
    let world = World::new().await;
    world.accept(1..=4, at(0)).await;
    world.all_published("").await;
    for number in 5..=6 {
        world.malformed(number, at(0)).await;
    }
    let _record =
        world.open_transaction("SELECT 1 FROM records WHERE notification_id = '1-0' FOR UPDATE").await;
    let _route = world
        .open_transaction(
            "SELECT 1 FROM routes WHERE notification_id = '2-0' AND channel = 'push' FOR NO KEY UPDATE",
        )
        .await;
    let _new_route = world
        .open_transaction(
            "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
             VALUES ('3-0', 'push:user:new', 'push', 'user:new', 'skipped', 3, now(), now())",
        )
        .await;
    let _malformed = world
        .open_transaction("SELECT 1 FROM malformed_intents WHERE stream_entry_id = '5-0' FOR UPDATE")
        .await;
    let removal = world.delete(&["1-0", "2-0", "3-0", "4-0"], before(at(1))).await;
    assert_eq!(removal, Removal { removed: 1, live: 0, locked: 3 });
    let malformed = world.expired_malformed(before(at(1)), None, 10).await;
    assert_eq!(
        world.delete_malformed(&malformed, before(at(1))).await,
        Removal { removed: 1, live: 0, locked: 1 }
    );
    assert_eq!(world.records().await, ["1-0", "2-0", "3-0"]);
    assert_eq!(world.malformed_left().await, ["5-0"]);
}

#[tokio::test]
async fn a_dead_letter_that_is_held_makes_the_deletion_say_locked_and_costs_no_connection() {
    let world = with_dead_letter().await;
    let _holder = world.open_transaction("SELECT 1 FROM dead_letters FOR UPDATE").await;
    let sessions = "SELECT pid::text FROM pg_stat_activity WHERE application_name = 'notification' AND datname = current_database()";
    world.expired(before(at(1)), None).await;
    let connected = world.column(sessions).await;
    let result = world.try_delete(&["1-0", "2-0"], before(at(1))).await;
    assert!(matches!(result, Err(StoreError::Locked { .. })), "{result:?}");
    assert_eq!(world.records().await, ["1-0", "2-0"]);
    assert_eq!(world.delete(&["2-0"], before(at(1))).await, removed(1));
    assert_eq!(world.column(sessions).await, connected);
}

#[tokio::test]
async fn malformed_intents_are_listed_oldest_first_in_pages_and_deleted_by_their_keys() {
    let world = World::new().await;
    for (number, seconds) in [(1, 2), (2, 0), (3, 0), (4, 4)] {
        world.malformed(number, at(seconds)).await;
    }
    let first = world.expired_malformed(before(at(4)), None, 2).await;
    let second = world.expired_malformed(before(at(4)), first.last(), 2).await;
    let names = |page: &[Expired<MalformedKey>]| -> Vec<String> {
        page.iter().map(|row| row.key.entry_id.clone()).collect()
    };
    assert_eq!(names(&first), ["2-0", "3-0"]);
    assert_eq!(names(&second), ["1-0"]);
    assert_eq!(world.delete_malformed(&first[1..], before(at(4))).await, removed(1));
    assert_eq!(world.malformed_left().await, ["2-0", "1-0", "4-0"]);
    assert_eq!(world.delete_malformed(&first, before(at(4))).await, removed(1));
    assert_eq!(world.delete_malformed(&second, before(at(2))).await, removed(0), "it is not older");
}

/// Keys that expired 1 to `expired` hours ago, and two that have not.
async fn idempotency_keys(world: &World, expired: u32) {
    let sql = format!(
        "INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, response_status, response_headers, response_body,
            expires_at, created_at)
         SELECT 's', 'k' || n, 'completed', 't', 'f', 202, '', '', now() - n * interval '1 hour', now()
         FROM generate_series(1, {expired}) n"
    );
    world.execute(&sql).await;
    let live = "INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, expires_at, created_at)
         SELECT 's', 'live' || n, 'pending', 't', 'f', now() + interval '1 hour', now() FROM generate_series(1, 2) n";
    world.execute(live).await;
}

// INV-14
#[tokio::test]
async fn expired_idempotency_keys_are_deleted_oldest_first_and_live_ones_stay() {
    let world = World::new().await;
    idempotency_keys(&world, 5).await;
    let sweep = async |limit| world.store.sweep_idempotency_keys(limit).await.expect("is there");
    let left = async || world.column("SELECT key FROM idempotency_keys ORDER BY key").await;
    assert_eq!(sweep(2).await, 2);
    assert_eq!(left().await, ["k1", "k2", "k3", "live1", "live2"]);
    assert_eq!((sweep(10).await, sweep(10).await), (3, 0));
    assert_eq!(left().await, ["live1", "live2"]);
}

// INV-14
#[tokio::test]
async fn an_idempotency_key_that_another_transaction_holds_delays_no_other() {
    let world = World::new().await;
    idempotency_keys(&world, 3).await;
    let mut other = world.database.client().await;
    let held = other.transaction().await.expect("begins");
    held.execute("SELECT FROM idempotency_keys WHERE key = 'k3' FOR UPDATE", &[]).await.expect("is locked");
    assert_eq!(world.store.sweep_idempotency_keys(10).await.expect("is there"), 2);
    held.rollback().await.expect("ends");
    assert_eq!(world.store.sweep_idempotency_keys(10).await.expect("is there"), 1);
}
