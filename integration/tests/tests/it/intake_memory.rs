//! The memory that intake takes for large entries.

use crate::world::*;

/// The maximum memory that it takes to process `entries` malformed entries with these fields, among small
/// intents.
async fn peak_with(entries: u32, fields: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    let world = World::new().await;
    // A busy machine may need more than a second for 16 MiB, and this test is not about time.
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

/// Below 128 MB, including the machine's other threads and the state of its allocator.
const MAX_MEMORY: u64 = 128_000_000;
/// The size that, with the overhead of an entry, is just below 16 MiB.
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

// INV-01
#[tokio::test]
async fn an_entry_above_64_mib_gets_its_outcome_once_and_redis_serves_others_meanwhile() {
    let world = World::new().await;
    let service = unhurried(world.service()).start().await;
    world.send([0]).await;
    world.add(&[(b"notification_type", b"game.turn.ready"), (b"payload_json", &vec![b'x'; 100 << 20])]).await;
    world.send([1]).await;
    world.settled(2).await;
    let row = "SELECT concat_ws('|', failure_code, notification_type, raw_fields->1->1->'truncated'->>'bytes') FROM malformed_intents";
    assert_eq!(world.column(row).await, ["entry_too_large|game.turn.ready|104857600"]);
    // The last entry of the stream is not copied for every inspection of the stream.
    world.add(&[(b"x", &vec![b'x'; 100 << 20])]).await;
    harness::wait_for("it has its outcome", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 2).then_some(())
    })
    .await;
    // A read ends after 64 MiB.
    let peak = service.peak_memory().expect("it runs");
    assert!(peak < MAX_MEMORY + (64 << 20), "{peak} bytes");
    let busy = async || -> f64 {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut world.redis().await)
            .await
            .expect("Redis is there");
        let evals =
            info.lines().filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_xread"));
        let usec =
            evals.filter_map(|line| line.split("usec=").nth(1)?.split(',').next()?.parse::<f64>().ok());
        usec.sum::<f64>() / 1e6
    };
    let before = (busy().await, std::time::Instant::now());
    world.send(2..10).await;
    world.settled(10).await;
    harness::wait_for("ten seconds pass", BOUND, async || (before.1.elapsed().as_secs() >= 10).then_some(()))
        .await;
    let (spent, elapsed) = (busy().await - before.0, before.1.elapsed().as_secs_f64());
    assert!(spent < elapsed / 5.0, "Redis was busy for {spent} of {elapsed} s");
    world.check(0..10).await;
}
