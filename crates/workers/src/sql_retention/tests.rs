//! How chunks are cut.

use super::*;

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
