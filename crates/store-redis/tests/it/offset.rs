//! The bookmark in the intents stream.

use domain::ports::{Bookmark, FENCE_MAX, OffsetStore, Progress, StoreError, Swap};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use store_redis::{RedisOffsets, stream_offset};

use crate::*;

const STREAM: &str = "notification:intents";

fn at(fence: u64, millis: u64, sequence: u64) -> Progress {
    Progress { fence, last_entry_id: EntryId::new(millis, sequence) }
}

/// Bookmarks of one world, and what is in the key.
struct Offsets {
    world: World,
    offsets: RedisOffsets,
}

impl Offsets {
    async fn new() -> Self {
        let world = World::new().await;
        let offsets = RedisOffsets::new(&world.client);
        Self { world, offsets }
    }

    async fn save(&self, progress: Progress) -> Swap {
        self.offsets.save(STREAM, progress).await.expect("Redis is there")
    }

    async fn reset(&self, progress: Progress) -> Swap {
        self.offsets.reset(STREAM, progress).await.expect("Redis is there")
    }

    async fn load(&self) -> Bookmark {
        self.offsets.load(STREAM).await.expect("Redis is there")
    }

    async fn put(&self, text: impl AsRef<[u8]>) {
        self.world.ask_bytes(&[b"SET".as_slice(), stream_offset(STREAM).as_bytes(), text.as_ref()]).await;
    }

    async fn text(&self) -> Option<String> {
        self.world.ask(&["GET", &stream_offset(STREAM)]).await
    }
}

#[tokio::test]
async fn a_bookmark_is_missing_until_it_is_saved_and_then_advances() {
    let offsets = Offsets::new().await;
    assert_eq!(offsets.load().await, Bookmark::Missing);
    for progress in [at(0, 5, 1), at(0, 5, 2), at(0, 5, 10), at(0, 10, 0), at(3, 10, 1)] {
        assert_eq!(offsets.save(progress).await, Swap::Applied, "{progress:?}");
        assert_eq!(offsets.load().await, Bookmark::At(progress));
    }
}

#[tokio::test]
async fn a_bookmark_has_no_end_and_streams_do_not_share_it() {
    let offsets = Offsets::new().await;
    assert_eq!(offsets.save(at(0, 5, 1)).await, Swap::Applied);
    assert_eq!(offsets.world.ask::<i64>(&["PTTL", &stream_offset(STREAM)]).await, -1);
    assert_eq!(offsets.offsets.load("another").await.expect("Redis is there"), Bookmark::Missing);
}

#[tokio::test]
async fn under_one_fence_a_bookmark_does_not_go_back() {
    let offsets = Offsets::new().await;
    for fence in [0, 7] {
        assert_eq!(offsets.save(at(fence, 10, 5)).await, Swap::Applied);
        for back in [at(fence, 10, 4), at(fence, 9, 99), at(fence, 0, 0)] {
            assert_eq!(offsets.save(back).await, Swap::Conflict, "{back:?}");
        }
        assert_eq!(offsets.load().await, Bookmark::At(at(fence, 10, 5)));
    }
}

#[tokio::test]
async fn the_same_value_again_is_applied() {
    let offsets = Offsets::new().await;
    for progress in [at(0, 5, 1), at(7, 5, 1), at(7, u64::MAX, u64::MAX)] {
        for _ in 0..2 {
            assert_eq!(offsets.save(progress).await, Swap::Applied, "{progress:?}");
            assert_eq!(offsets.reset(progress).await, Swap::Applied, "{progress:?}");
        }
    }
}

#[tokio::test]
async fn a_lower_fence_writes_nothing_and_a_higher_one_wins_with_any_id() {
    let offsets = Offsets::new().await;
    assert_eq!(offsets.save(at(7, 10, 5)).await, Swap::Applied);
    for deposed in [at(6, 11, 0), at(0, 11, 0), at(6, 10, 5)] {
        assert_eq!(offsets.save(deposed).await, Swap::Conflict, "{deposed:?}");
        assert_eq!(offsets.reset(deposed).await, Swap::Conflict, "{deposed:?}");
    }
    assert_eq!(offsets.load().await, Bookmark::At(at(7, 10, 5)));
    assert_eq!(offsets.save(at(10, 3, 0)).await, Swap::Applied);
    assert_eq!(offsets.load().await, Bookmark::At(at(10, 3, 0)));
}

#[tokio::test]
async fn ids_and_fences_are_compared_as_numbers_up_to_their_bounds() {
    let offsets = Offsets::new().await;
    // Each pair is equal as floating point, or ordered the other way round as text.
    let rising = [
        at(9, u64::MAX - 1, u64::MAX - 1),
        at(9, u64::MAX - 1, u64::MAX),
        at(9, u64::MAX, u64::MAX - 1),
        at(9, u64::MAX, u64::MAX),
        at(10, 9, 9),
        at(10, 9, 10),
        at(10, 10, 9),
        at(899_999_999_999_999, 1, 1),
        at(900_000_000_000_000, 1, 1),
    ];
    for (n, progress) in rising.iter().enumerate() {
        assert_eq!(offsets.save(*progress).await, Swap::Applied, "{progress:?}");
        assert_eq!(offsets.load().await, Bookmark::At(*progress));
        for lower in &rising[..n] {
            assert_eq!(offsets.save(*lower).await, Swap::Conflict, "{lower:?} after {progress:?}");
        }
    }
}

#[tokio::test]
async fn a_reset_goes_back_but_not_below_a_higher_fence() {
    let offsets = Offsets::new().await;
    assert_eq!(offsets.save(at(7, 10, 5)).await, Swap::Applied);
    assert_eq!(offsets.reset(at(7, 0, 0)).await, Swap::Applied);
    assert_eq!(offsets.load().await, Bookmark::At(at(7, 0, 0)));
    assert_eq!(offsets.reset(at(6, 20, 0)).await, Swap::Conflict);
    assert_eq!(offsets.reset(at(8, 0, 0)).await, Swap::Applied);
    assert_eq!(offsets.load().await, Bookmark::At(at(8, 0, 0)));
}

#[tokio::test]
async fn the_value_is_the_id_and_with_a_fence_its_fifteen_digits() {
    let offsets = Offsets::new().await;
    for (progress, text) in [
        (at(0, 1_775_121_700_000, 0), "1775121700000-0"),
        (at(42, 1_775_121_700_000, 0), "1775121700000-0@000000000000042"),
        (at(900_000_000_000_000, 5, 1), "5-1@900000000000000"),
    ] {
        assert_eq!(offsets.save(progress).await, Swap::Applied);
        assert_eq!(offsets.text().await.as_deref(), Some(text));
    }
}

#[tokio::test]
async fn what_is_no_bookmark_is_called_garbled_and_overwritten_by_anybody() {
    let offsets = Offsets::new().await;
    let garbage: [&[u8]; 20] = [
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
        // Above the highest fence, so that no leader could ever be above it.
        b"5-1@900000000000001",
        b"5-1@0900000000000001",
        b"1-0@999999999999999",
        b"1-0@18446744073709551615",
    ];
    for text in garbage {
        for must_advance in [true, false] {
            offsets.put(text).await;
            let loaded = offsets.load().await;
            assert!(matches!(loaded, Bookmark::Garbled(_)), "{loaded:?} from {}", text.escape_ascii());
            let swap =
                if must_advance { offsets.save(at(0, 1, 0)).await } else { offsets.reset(at(0, 1, 0)).await };
            assert_eq!(swap, Swap::Applied, "{}", text.escape_ascii());
            assert_eq!(offsets.load().await, Bookmark::At(at(0, 1, 0)));
        }
    }
}

#[tokio::test]
async fn a_bookmark_of_the_wrong_type_is_garbled_and_overwritten() {
    let offsets = Offsets::new().await;
    offsets.world.ask::<i64>(&["RPUSH", &stream_offset(STREAM), "5-1"]).await;
    assert!(matches!(offsets.load().await, Bookmark::Garbled(text) if text.contains("WRONGTYPE")));
    assert_eq!(offsets.save(at(0, 1, 0)).await, Swap::Applied);
    assert_eq!(offsets.load().await, Bookmark::At(at(0, 1, 0)));
}

#[tokio::test]
async fn a_bookmark_that_cannot_be_written_for_want_of_memory_is_an_outage() {
    let offsets = Offsets::new().await;
    offsets.world.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = offsets.offsets.save(STREAM, at(0, 1, 0)).await.expect_err("no memory");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    offsets.world.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(offsets.save(at(0, 1, 0)).await, Swap::Applied);
}

/// What a write does to what `load` made of the key.
fn decide(found: &Bookmark, written: Progress, must_advance: bool) -> Swap {
    let Bookmark::At(found) = found else { return Swap::Applied };
    let same_fence_goes_on = !must_advance || written.last_entry_id > found.last_entry_id;
    match written.fence.cmp(&found.fence) {
        _ if written == *found => Swap::Applied,
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
    prop_oneof![3 => 0..12_u64, 1 => FENCE_MAX - 2..=FENCE_MAX, 1 => 0..=FENCE_MAX]
}

fn progress() -> impl Strategy<Value = Progress> {
    (fence(), number(), number()).prop_map(|(fence, millis, sequence)| at(fence, millis, sequence))
}

/// As this service writes it.
fn spelled(progress: Progress) -> String {
    match progress.fence {
        0 => progress.last_entry_id.to_string(),
        fence => format!("{}@{fence:015}", progress.last_entry_id),
    }
}

/// What may be in the key: mostly what this service writes.
fn stored() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => progress().prop_map(spelled),
        1 => (FENCE_MAX - 1..FENCE_MAX + 3, number()).prop_map(|(fence, millis)| spelled(at(fence, millis, 0))),
        1 => "[0-9]{1,21}-[0-9]{1,21}(@[0-9]{1,21})?",
        1 => "[0-9@-]{0,12}",
        1 => any::<String>(),
    ]
}

#[test]
fn any_write_over_any_value_does_what_the_model_does() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let offsets = runtime.block_on(Offsets::new());
    let strategy = (stored(), proptest::collection::vec((progress(), any::<bool>()), 1..6));
    // Failures are not kept in a file: the shrunk case is printed, and is to become a test of its own.
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |(stored, writes)| {
        runtime.block_on(async {
            offsets.put(&stored).await;
            for (written, must_advance) in writes {
                let found = offsets.load().await;
                // Only this service's own spelling of a number is recognised as the same value.
                let padded = matches!(&found, Bookmark::At(p) if *p == written)
                    && offsets.text().await != Some(spelled(written));
                let swap =
                    if must_advance { offsets.save(written).await } else { offsets.reset(written).await };
                if !padded {
                    prop_assert_eq!(
                        swap,
                        decide(&found, written, must_advance),
                        "{:?} over {:?}",
                        written,
                        &found
                    );
                }
                let expected = if swap == Swap::Applied { Bookmark::At(written) } else { found };
                prop_assert_eq!(offsets.load().await, expected);
            }
            Ok(())
        })
    });
    outcome.expect("Redis and the model agree");
}
