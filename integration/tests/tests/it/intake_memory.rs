//! The memory that intake takes for large entries.

use crate::world::*;

/// The most memory that it takes to process `entries` malformed entries of these fields, among small intents.
async fn peak_with(entries: u32, fields: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    let world = World::new().await;
    // A busy machine may need more than a second for 16 MiB, and this is not about time.
    let service = unhurried(world.service()).start().await;
    let pairs: Vec<(&[u8], &[u8])> =
        fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
    for n in 0..entries {
        world.send([n]).await;
        world.add(&pairs).await;
    }
    world.send([entries]).await;
    world.settled(i64::from(entries) + 1).await;
    world.check(0..=entries).await;
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, i64::from(entries));
    service.peak_memory().expect("it runs")
}

/// Less than 128 MB, whatever the machine's other threads and the state of its allocator add.
const MAX_MEMORY: u64 = 128_000_000;
/// With what an entry costs beside its bytes, just below 16 MiB.
const LARGE: usize = 16 * 1024 * 1024 - 1024;

#[tokio::test]
async fn entries_of_one_field_of_16_mib_take_bounded_memory() {
    for (what, value) in [("text", b'x'), ("bytes that are no text", 0xff), ("control characters", 1)] {
        let peak = peak_with(4, &[(b"f".to_vec(), vec![value; LARGE])]).await;
        assert!(peak < MAX_MEMORY, "{what}: {peak} bytes");
    }
}

#[tokio::test]
async fn entries_of_many_fields_take_bounded_memory() {
    for (what, fields) in [
        ("kept whole", vec![(b"name".to_vec(), vec![b'x'; 1020]); 14_000]),
        ("cut", vec![(b"name".to_vec(), vec![b'x'; 1020]); 16_384]),
        ("empty", vec![(Vec::new(), Vec::new()); 100_000]),
    ] {
        let peak = peak_with(4, &fields).await;
        assert!(peak < MAX_MEMORY, "{what}: {peak} bytes");
    }
}
