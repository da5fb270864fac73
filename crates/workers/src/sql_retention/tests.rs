//! How chunks are cut, and that a pass ends when it is told to.

use std::sync::Mutex;

use ambient::SystemClock;
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::fakes::World;

fn record(routes: u64) -> Expired {
    Expired {
        notification_id: NotificationId::from("1-0".to_owned()),
        accepted_at: Timestamp::UNIX_EPOCH,
        routes,
        live_routes: 0,
    }
}

#[test]
fn a_chunk_is_cut_by_rows_and_never_empty() {
    let records = [record(4), record(4), record(2_000), record(4)];
    assert_eq!(chunk_length(&records, 10), 2);
    assert_eq!(chunk_length(&records, 9), 1);
    assert_eq!(chunk_length(&records[2..], 9), 1);
    assert_eq!(chunk_length(&records, 5_000), 4);
}

#[test]
fn the_chunk_grows_while_it_is_quick_and_shrinks_when_it_is_slow() {
    let mut size = ChunkSize(FIRST_CHUNK);
    size.took(CHUNK_TIME / 4);
    assert_eq!(size.0, 2_000);
    size.took(CHUNK_TIME);
    assert_eq!(size.0, 2_000);
    for _ in 0..20 {
        size.took(Duration::from_secs(1));
    }
    assert_eq!(size.0, SMALLEST_CHUNK);
    for _ in 0..20 {
        size.took(Duration::ZERO);
    }
    assert_eq!(size.0, LARGEST_CHUNK);
}

/// Page after page of expired records that each have a live route; the service is stopped while the third is read.
struct KeptBack {
    pages: Mutex<usize>,
    stop: CancellationToken,
}

impl RetentionStore for KeptBack {
    async fn list_expired_records(
        &self,
        _: Timestamp,
        _: Option<&Expired>,
        limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        let mut pages = self.pages.lock().expect("not poisoned");
        *pages += 1;
        if *pages == 3 {
            self.stop.cancel();
        }
        assert!(*pages <= 3, "nobody looked at the stop");
        Ok(vec![Expired { live_routes: 1, ..record(2) }; limit])
    }

    async fn delete_records(&self, _: &[NotificationId], _: Timestamp) -> Result<u64, StoreError> {
        panic!("records with live routes stay")
    }

    async fn delete_malformed_intents(&self, _: Timestamp, _: usize) -> Result<u64, StoreError> {
        Ok(0)
    }
}

#[tokio::test]
async fn a_stop_ends_the_look_at_records_that_are_all_kept_back() {
    let stop = CancellationToken::new();
    let retention = SqlRetention {
        election: World::default(),
        store: KeptBack { pages: Mutex::new(0), stop: stop.clone() },
        clock: SystemClock,
        settings: RetentionSettings {
            records: Duration::ZERO,
            malformed_intents: Duration::ZERO,
            interval: Duration::from_secs(3_600),
        },
        metrics: Metrics::new(&meter("test")),
        status: Status::default(),
    };
    let swept = timeout(Duration::from_secs(20), retention.run_once(&stop)).await.expect("it ends");
    assert_eq!(swept.expect("the store is there").kept_back, 3 * PAGE as u64);
}
