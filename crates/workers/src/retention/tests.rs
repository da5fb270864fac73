//! The cut of chunks, the handling of a chunk that fails, and the end of a pass at a stop.

mod stores;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};

use ambient::{ManualClock, Timestamp};
use domain::ports::Removal;
use memory_stores::MemoryElection;
use opentelemetry::global::meter;

use self::stores::{KeptBack, Keys, Store};
use super::*;

/// The retention of rows. All rows of these tests are older.
const AGE: Duration = Duration::from_secs(3_600);
const MIB: u64 = 1024 * 1024;

fn at(number: i64) -> Timestamp {
    Timestamp::from_millis(number).expect("in range")
}

fn record(number: i64, rows: u64) -> Expired<NotificationId> {
    let key = NotificationId::from(format!("{number}-0"));
    Expired { key, at: at(number), rows, bytes: 0, live: false }
}

fn malformed(number: i64, bytes: u64) -> Expired<MalformedKey> {
    let key =
        MalformedKey { stream: "s".into(), entry_id: format!("{number}-0"), fields_fingerprint: "f".into() };
    Expired { key, at: at(number), rows: 1, bytes, live: false }
}

fn retention<S>(store: S) -> RetentionWorker<MemoryElection, S, ManualClock> {
    RetentionWorker {
        election: MemoryElection::default(),
        store,
        clock: ManualClock::new(at(0) + 2 * AGE),
        settings: RetentionSettings {
            records: AGE,
            malformed_intents: AGE,
            operator_actions: AGE,
            interval: Duration::from_secs(3_600),
        },
        metrics: Metrics::new(&meter("test")),
        health: Health::new("retention"),
    }
}

impl RetentionWorker<MemoryElection, Store, ManualClock> {
    async fn pass(&self, limits: &mut Limits) -> Result<(), StoreError> {
        self.run_once(limits, &CancellationToken::new()).await
    }
}

// INV-14
#[test]
fn a_chunk_is_cut_by_cost_and_never_empty() {
    let rows = [record(1, 4), record(2, 4), record(3, 2_000), record(4, 4)];
    let rows: Vec<&Expired<NotificationId>> = rows.iter().collect();
    assert_eq!(chunk_length(&rows, 8 * ROW_COST), 2);
    assert_eq!(chunk_length(&rows, 8 * ROW_COST - 1), 1);
    assert_eq!(chunk_length(&rows[2..], 8 * ROW_COST), 1);
    assert_eq!(chunk_length(&rows, usize::MAX), 4);
    let large = [malformed(1, u64::MAX), malformed(2, 1)];
    assert_eq!(chunk_length(&large.iter().collect::<Vec<_>>(), usize::MAX - 1), 1);
}

// INV-14
#[tokio::test(start_paused = true)]
async fn malformed_intents_of_megabytes_go_in_chunks_that_end_in_time_and_the_next_pass_starts_there() {
    let store = Store::default();
    store.malformed().time_of_deletion = CHUNK_TARGET_TIME * 10;
    store.malformed().times_out_above = 5 * MIB as usize;
    let retention = retention(store);
    let mut limits = Limits::default();
    // Deletions of small rows are fast, and large ones follow.
    limits.malformed_intents.chunk.succeeded(usize::MAX, Duration::ZERO);
    for _ in 0..10 {
        let size = limits.malformed_intents.chunk.get();
        limits.malformed_intents.chunk.succeeded(size, Duration::ZERO);
    }
    assert_eq!(limits.malformed_intents.chunk.get(), MAX_CHUNK_COST);
    for first in [0, 1_000] {
        retention.store.malformed().deletions.clear();
        retention.store.malformed().rows = (first..first + 1_000).map(|n| malformed(n, 2 * MIB)).collect();
        retention.pass(&mut limits).await.expect("nothing is down");
        let table = retention.store.malformed();
        assert_eq!(table.rows, []);
        assert_eq!(table.timeouts(), if first == 0 { 2 } else { 0 }, "{:?}", table.deletions);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_lasts_long_rests_less() {
    let store = Store::default();
    store.records().time_of_deletion = Duration::from_millis(200);
    let retention = retention(store);
    for (rows, rest) in [(50, REST_FACTOR), (10_000, 1)] {
        retention.store.records().deletions.clear();
        retention.store.records().rows = (0..rows).map(|n| record(n, 1_000)).collect();
        let begun = Instant::now();
        retention.pass(&mut Limits::default()).await.expect("nothing is down");
        let chunks = u32::try_from(retention.store.records().deletions.len()).expect("few");
        let each = begun.elapsed().saturating_sub(LONG_PASS) / chunks;
        let expected = Duration::from_millis(200) * (1 + rest);
        assert!(rest > 1 || each < expected + expected / 10, "{each:?} for each of {chunks} chunks");
        assert!(rest == 1 || begun.elapsed() >= expected * chunks, "{:?} for {chunks}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn records_that_time_out_together_are_bisected_down_to_one() {
    let store = Store::default();
    store.records().rows = (0..50).map(|n| record(n, 1)).collect();
    store.records().times_out_above = 0;
    let retention = retention(store);
    let mut limits = Limits::default();
    retention.pass(&mut limits).await.expect("nothing is down");
    assert_eq!(retention.store.records().rows, []);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_grows_again_when_the_database_is_quick_again() {
    let store = Store::default();
    let retention = retention(store);
    let mut limits = Limits::default();
    let chunk = &mut limits.records.chunk;
    while chunk.failed(chunk.get()) {}
    assert_eq!(limits.records.chunk.get(), 1);
    retention.store.records().rows = (0..400).map(|n| record(n, 3)).collect();
    retention.pass(&mut limits).await.expect("nothing is down");
    assert_eq!(retention.store.records().rows, []);
    assert!(limits.records.chunk.get() > MIN_CHUNK_COST, "{}", limits.records.chunk.get());
}

#[tokio::test(start_paused = true)]
async fn one_row_that_cannot_be_deleted_does_not_leave_a_database_with_slow_commits_at_single_rows() {
    let store = Store::default();
    store.records().rows = (0..400).map(|n| record(n, 3)).collect();
    store.records().refused = vec![record(17, 3).key];
    store.records().time_of_deletion = CHUNK_TARGET_TIME * 2;
    let retention = retention(store);
    retention.pass(&mut Limits::default()).await.expect("nothing is down");
    let deletions = &retention.store.records().deletions;
    assert!(deletions.len() < 40, "{} deletions for 400 rows", deletions.len());
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_deleted_stays_alone_and_the_pass_says_why() {
    let store = Store::default();
    store.records().rows = (0..100).map(|n| record(n, 3)).collect();
    store.records().refused = [17, 18, 63].map(|n| record(n, 3).key).to_vec();
    let refused = store.records().refused.clone();
    let retention = retention(store);
    let mut pass = TablePass::begin();
    let cutoff = Cutoff::new(retention.clock.now(), AGE);
    retention
        .delete_expired::<NotificationId>(
            "records",
            cutoff,
            &mut TableLimits::default(),
            &mut pass,
            &CancellationToken::new(),
        )
        .await
        .expect("nothing is down");
    let left: Vec<NotificationId> =
        retention.store.records().rows.iter().map(|row| row.key.clone()).collect();
    assert_eq!(left, refused);
    assert_eq!((pass.deleted, pass.failed), (97, 3));
    assert_eq!(pass.failure.as_deref(), Some("delete was refused: a foreign key"));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_times_out_is_made_smaller() {
    let store = Store::default();
    store.records().rows = (0..100).map(|n| record(n, 3)).collect();
    store.records().longest_page = 30;
    let retention = retention(store);
    let mut limits = Limits::default();
    retention.pass(&mut limits).await.expect("nothing is down");
    let table = retention.store.records();
    assert_eq!(table.rows, []);
    assert_eq!(table.listings[..4], [200, 100, 50, 25]);
}

#[tokio::test(start_paused = true)]
async fn a_table_that_cannot_be_read_does_not_keep_the_other_one_from_its_pass() {
    let store = Store::default();
    store.records().unavailable = true;
    store.malformed().rows = (0..10).map(|n| malformed(n, 10)).collect();
    let retention = retention(store);
    let error = retention.pass(&mut Limits::default()).await.expect_err("it is down");
    assert_eq!(error.to_string(), "could not list");
    assert_eq!(retention.store.malformed().rows, []);
}

#[tokio::test(start_paused = true)]
async fn ended_sessions_are_deleted_in_bounded_chunks_even_if_the_tables_before_them_fail() {
    let store = Store::default();
    store.records().unavailable = true;
    store.sessions.lock().expect("not poisoned").0 = 600;
    let retention = retention(store);
    retention.pass(&mut Limits::default()).await.expect_err("a table fails");
    assert_eq!(*retention.store.sessions.lock().expect("not poisoned"), (0, vec![256; 3]));
}

#[tokio::test(start_paused = true)]
async fn expired_keys_are_deleted_in_bounded_chunks_even_if_the_tables_before_them_fail() {
    let store = Store::default();
    store.records().unavailable = true;
    store.keys.lock().expect("not poisoned").expired = 5_000;
    let retention = retention(store);
    retention.pass(&mut Limits::default()).await.expect_err("a table fails");
    let keys = retention.store.keys.lock().expect("not poisoned");
    assert_eq!(keys.expired, 0);
    assert!(keys.chunks.len() > 5 && keys.chunks.iter().all(|keys| *keys <= 1_024), "{:?}", keys.chunks);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_of_keys_that_times_out_is_made_smaller() {
    let store = Store::default();
    *store.keys.lock().expect("not poisoned") = Keys { expired: 20, times_out_above: 10, chunks: Vec::new() };
    let retention = retention(store);
    retention.pass(&mut Limits::default()).await.expect("nothing is down");
    let keys = retention.store.keys.lock().expect("not poisoned");
    assert_eq!((keys.expired, &keys.chunks[..3]), (0, &[32, 16, 8][..]));
}

#[tokio::test(start_paused = true)]
async fn old_actions_of_operators_are_deleted_even_if_the_tables_before_them_fail() {
    let store = Store::default();
    store.malformed().rows.push(malformed(1, 0));
    store.malformed().unavailable = true;
    let key = OperatorActionId(7);
    let action = Expired { key, at: at(1), rows: 1, bytes: 100, live: false };
    store.actions.lock().expect("not poisoned").rows.push(action);
    let retention = retention(store);
    retention.pass(&mut Limits::default()).await.expect_err("a table fails");
    assert_eq!(retention.store.actions.lock().expect("not poisoned").rows, []);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_look_at_records_that_all_stay() {
    let stop = CancellationToken::new();
    let retention = retention(KeptBack { pages: Mutex::new(0), stop: stop.clone() });
    retention.run_once(&mut Limits::default(), &stop).await.expect("nothing is down");
    assert_eq!(*retention.store.pages.lock().expect("not poisoned"), 3);
}
