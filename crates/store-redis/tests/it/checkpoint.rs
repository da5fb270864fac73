//! The cached checkpoint of the intents stream.

use domain::checkpoint::{CachedCheckpoint, Checkpoint, MAX_FENCE_LEAD};
use domain::ports::{CheckpointCache, StoreError, Swap};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use store_redis::{RedisCheckpoints, checkpoint_key};

use crate::*;

const STREAM: &str = "notification:intents";

fn at(fence: u64, millis: u64, sequence: u64) -> Checkpoint {
    Checkpoint { fence, last_entry_id: EntryId::new(millis, sequence) }
}

/// The checkpoints of one world, and access to the value of the key.
struct Cache {
    world: World,
    checkpoints: RedisCheckpoints,
}

impl Cache {
    async fn new() -> Self {
        let world = World::new().await;
        let checkpoints = RedisCheckpoints::new(&world.client);
        Self { world, checkpoints }
    }

    async fn save(&self, checkpoint: Checkpoint) -> Swap {
        self.checkpoints.save(STREAM, checkpoint).await.expect("Redis is there")
    }

    async fn reset(&self, checkpoint: Checkpoint) -> Swap {
        self.checkpoints.reset(STREAM, checkpoint).await.expect("Redis is there")
    }

    async fn load(&self) -> CachedCheckpoint {
        self.checkpoints.load(STREAM).await.expect("Redis is there")
    }

    async fn put(&self, text: impl AsRef<[u8]>) {
        self.world
            .ask_bytes(&[b"SET".as_slice(), checkpoint_key(STREAM).key.as_bytes(), text.as_ref()])
            .await;
    }

    async fn text(&self) -> Option<String> {
        self.world.ask(&["GET", &checkpoint_key(STREAM).key]).await
    }
}

#[tokio::test]
async fn a_cached_checkpoint_is_missing_until_it_is_saved_and_then_advances() {
    let cache = Cache::new().await;
    assert_eq!(cache.load().await, CachedCheckpoint::Missing);
    for checkpoint in [at(0, 5, 1), at(0, 5, 2), at(0, 5, 10), at(0, 10, 0), at(3, 10, 1)] {
        assert_eq!(cache.save(checkpoint).await, Swap::Applied, "{checkpoint:?}");
        assert_eq!(cache.load().await, CachedCheckpoint::At(checkpoint));
    }
}

#[tokio::test]
async fn a_cached_checkpoint_has_no_end_and_streams_do_not_share_it() {
    let cache = Cache::new().await;
    assert_eq!(cache.save(at(0, 5, 1)).await, Swap::Applied);
    assert_eq!(cache.world.ask::<i64>(&["PTTL", &checkpoint_key(STREAM).key]).await, -1);
    assert_eq!(cache.checkpoints.load("another").await.expect("Redis is there"), CachedCheckpoint::Missing);
}

#[tokio::test]
async fn ids_and_fences_are_compared_as_numbers_up_to_their_bounds() {
    let cache = Cache::new().await;
    // Each pair is equal as floating-point numbers, or in the opposite order as text.
    let rising = [
        at(9, u64::MAX - 1, u64::MAX - 1),
        at(9, u64::MAX - 1, u64::MAX),
        at(9, u64::MAX, u64::MAX - 1),
        at(9, u64::MAX, u64::MAX),
        at(10, 9, 9),
        at(10, 9, 10),
        at(10, 10, 9),
        at(999_998, 1, 1),
        at(999_999, 1, 1),
    ];
    for (n, checkpoint) in rising.iter().enumerate() {
        assert_eq!(cache.save(*checkpoint).await, Swap::Applied, "{checkpoint:?}");
        assert_eq!(cache.load().await, CachedCheckpoint::At(*checkpoint));
        for lower in &rising[..n] {
            assert_eq!(cache.save(*lower).await, Swap::Conflict, "{lower:?} after {checkpoint:?}");
        }
    }
}

#[tokio::test]
async fn the_value_is_the_id_and_with_a_fence_its_fifteen_digits() {
    let cache = Cache::new().await;
    for (checkpoint, text) in [
        (at(0, 1_775_121_700_000, 0), "1775121700000-0"),
        (at(42, 1_775_121_700_000, 0), "1775121700000-0@000000000000042"),
        (at(999_999_999_999_999, 5, 1), "5-1@999999999999999"),
    ] {
        assert_eq!(cache.save(checkpoint).await, Swap::Applied);
        assert_eq!(cache.text().await.as_deref(), Some(text));
    }
}

#[tokio::test]
async fn what_is_no_checkpoint_is_called_garbled_and_overwritten() {
    let cache = Cache::new().await;
    let garbage: [&[u8]; 16] = [
        b"",
        b"5",
        b"5-",
        b"-1",
        b"5-1@",
        b"5-1@x",
        b"5-1@1@2",
        b"@1",
        b" 5-1",
        b"5-1\n",
        b"-5-1",
        b"\xff",
        b"5-1\0",
        b"18446744073709551616-0",
        b"0-18446744073709551616",
        b"0-0@99999999999999999999",
    ];
    for text in garbage {
        for must_advance in [true, false] {
            cache.put(text).await;
            let loaded = cache.load().await;
            assert!(
                matches!(loaded, CachedCheckpoint::Garbled(_)),
                "{loaded:?} from {}",
                text.escape_ascii()
            );
            let swap =
                if must_advance { cache.save(at(0, 1, 0)).await } else { cache.reset(at(0, 1, 0)).await };
            assert_eq!(swap, Swap::Applied, "{}", text.escape_ascii());
            assert_eq!(cache.load().await, CachedCheckpoint::At(at(0, 1, 0)));
        }
    }
}

#[tokio::test]
async fn a_fence_more_than_a_million_above_the_writers_is_overwritten_and_one_below_that_is_not() {
    let cache = Cache::new().await;
    for (stored, expected) in [
        ("5-1@000000001000007", Swap::Conflict),
        ("5-1@000000001000008", Swap::Applied),
        ("5-1@0000000001000008", Swap::Applied),
        ("5-1@999999999999999", Swap::Applied),
        ("5-1@18446744073709551615", Swap::Applied),
    ] {
        for must_advance in [true, false] {
            cache.put(stored).await;
            let written = at(7, 1, 0);
            let swap = if must_advance { cache.save(written).await } else { cache.reset(written).await };
            assert_eq!(swap, expected, "{stored}");
        }
    }
}

#[tokio::test]
async fn a_cached_checkpoint_of_the_wrong_type_is_garbled_and_overwritten() {
    let cache = Cache::new().await;
    cache.world.ask::<i64>(&["RPUSH", &checkpoint_key(STREAM).key, "5-1"]).await;
    assert!(matches!(cache.load().await, CachedCheckpoint::Garbled(text) if text.contains("WRONGTYPE")));
    assert_eq!(cache.save(at(0, 1, 0)).await, Swap::Applied);
    assert_eq!(cache.load().await, CachedCheckpoint::At(at(0, 1, 0)));
}

#[tokio::test]
async fn a_cached_checkpoint_that_cannot_be_written_for_want_of_memory_is_an_outage() {
    let cache = Cache::new().await;
    cache.world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = cache.checkpoints.save(STREAM, at(0, 1, 0)).await.expect_err("no memory");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    cache.world.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(cache.save(at(0, 1, 0)).await, Swap::Applied);
}

/// The result of a write, given what `load` returned for the key.
fn decide(found: &CachedCheckpoint, written: Checkpoint, must_advance: bool) -> Swap {
    let CachedCheckpoint::At(found) = found.clone().judged_by(written.fence) else { return Swap::Applied };
    let same_fence_goes_on = !must_advance || written.last_entry_id > found.last_entry_id;
    match written.fence.cmp(&found.fence) {
        _ if written == found => Swap::Applied,
        std::cmp::Ordering::Less => Swap::Conflict,
        std::cmp::Ordering::Equal if same_fence_goes_on => Swap::Applied,
        std::cmp::Ordering::Equal => Swap::Conflict,
        std::cmp::Ordering::Greater => Swap::Applied,
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..12_u64,
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
        1 => (1_u64 << 53) - 1..(1 << 53) + 3,
        1 => any::<u64>(),
    ]
}

fn fence() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..12_u64, 1 => MAX_FENCE_LEAD - 2..MAX_FENCE_LEAD + 15, 1 => 0..999_999_999_999_999_u64]
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    (fence(), number(), number()).prop_map(|(fence, millis, sequence)| at(fence, millis, sequence))
}

/// The checkpoint as this service writes it.
fn spelled(checkpoint: Checkpoint) -> String {
    match checkpoint.fence {
        0 => checkpoint.last_entry_id.to_string(),
        fence => format!("{}@{fence:015}", checkpoint.last_entry_id),
    }
}

/// Values that the key may have: mostly those that this service writes.
fn stored() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => checkpoint().prop_map(spelled),
        1 => (any::<u64>(), number()).prop_map(|(fence, millis)| spelled(at(fence, millis, 0))),
        1 => "[0-9]{1,21}-[0-9]{1,21}(@[0-9]{1,21})?",
        1 => "[0-9@-]{0,12}",
        1 => any::<String>(),
    ]
}

// INV-07
#[test]
fn any_write_over_any_value_does_what_the_model_does() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cache = runtime.block_on(Cache::new());
    let strategy = (stored(), proptest::collection::vec((checkpoint(), any::<bool>()), 1..6));
    // Failures are not kept in a file: the shrunk case is printed, and becomes a test of its own.
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |(stored, writes)| {
        runtime.block_on(async {
            cache.put(&stored).await;
            for (written, must_advance) in writes {
                let found = cache.load().await;
                // Only this service's own format of a number is recognised as the same value.
                let padded = matches!(&found, CachedCheckpoint::At(p) if *p == written)
                    && cache.text().await != Some(spelled(written));
                let swap = if must_advance { cache.save(written).await } else { cache.reset(written).await };
                if !padded {
                    prop_assert_eq!(
                        swap,
                        decide(&found, written, must_advance),
                        "{:?} over {:?}",
                        written,
                        &found
                    );
                }
                let expected = if swap == Swap::Applied { CachedCheckpoint::At(written) } else { found };
                prop_assert_eq!(cache.load().await, expected);
            }
            Ok(())
        })
    });
    outcome.expect("Redis and the model agree");
}
