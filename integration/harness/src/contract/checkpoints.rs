//! The cached checkpoint: no lower fence writes it, and under one fence it only advances.

use domain::checkpoint::{CachedCheckpoint, Checkpoint, Fence, MAX_FENCE_LEAD};
use domain::ports::{CheckpointCache, Swap};

use super::accepted::{STREAM, id};

/// A cache under test, and a test's actions on it.
pub trait CheckpointsFixture {
    /// The cache.
    fn cache(&self) -> &impl CheckpointCache;

    /// Replaces the checkpoint of `stream` with a value that is not a checkpoint.
    fn garble(&self, stream: &str) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::checkpoints`], each on a fixture of its own.
#[macro_export]
macro_rules! checkpoints_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            checkpoints, $fixture;
            what_is_saved_is_loaded_and_streams_are_apart,
            under_one_fence_a_checkpoint_only_advances,
            a_lower_fence_never_writes,
            a_higher_fence_writes_any_entry,
            a_reset_goes_back_under_its_own_fence_and_not_under_a_lower_one,
            the_same_checkpoint_again_is_applied,
            a_garbled_checkpoint_is_overwritten,
            a_fence_that_no_term_can_have_is_overwritten,
        );
    };
}

fn at(fence: Fence, number: u64) -> Checkpoint {
    Checkpoint { fence, last_entry_id: id(number) }
}

async fn save(fixture: &impl CheckpointsFixture, checkpoint: Checkpoint) -> Swap {
    fixture.cache().save(STREAM, checkpoint).await.expect("the cache is there")
}

async fn reset(fixture: &impl CheckpointsFixture, checkpoint: Checkpoint) -> Swap {
    fixture.cache().reset(STREAM, checkpoint).await.expect("the cache is there")
}

async fn load(fixture: &impl CheckpointsFixture) -> CachedCheckpoint {
    fixture.cache().load(STREAM).await.expect("the cache is there")
}

pub async fn what_is_saved_is_loaded_and_streams_are_apart(fixture: impl CheckpointsFixture) {
    assert_eq!(load(&fixture).await, CachedCheckpoint::Missing);
    assert_eq!(save(&fixture, at(3, 5)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(3, 5)));
    let other = fixture.cache().load("another stream").await.expect("the cache is there");
    assert_eq!(other, CachedCheckpoint::Missing);
}

pub async fn under_one_fence_a_checkpoint_only_advances(fixture: impl CheckpointsFixture) {
    assert_eq!(save(&fixture, at(3, 9)).await, Swap::Applied);
    for back in [8, 0] {
        assert_eq!(save(&fixture, at(3, back)).await, Swap::Conflict);
    }
    assert_eq!(save(&fixture, at(3, 10)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(3, 10)));
}

pub async fn a_lower_fence_never_writes(fixture: impl CheckpointsFixture) {
    assert_eq!(save(&fixture, at(3, 5)).await, Swap::Applied);
    assert_eq!(save(&fixture, at(2, 9)).await, Swap::Conflict);
    assert_eq!(reset(&fixture, at(2, 9)).await, Swap::Conflict);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(3, 5)));
}

pub async fn a_higher_fence_writes_any_entry(fixture: impl CheckpointsFixture) {
    assert_eq!(save(&fixture, at(3, 5)).await, Swap::Applied);
    assert_eq!(save(&fixture, at(4, 1)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(4, 1)));
}

pub async fn a_reset_goes_back_under_its_own_fence_and_not_under_a_lower_one(
    fixture: impl CheckpointsFixture,
) {
    assert_eq!(save(&fixture, at(3, 5)).await, Swap::Applied);
    assert_eq!(reset(&fixture, at(3, 1)).await, Swap::Applied);
    assert_eq!(reset(&fixture, at(2, 9)).await, Swap::Conflict);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(3, 1)));
    assert_eq!(reset(&fixture, at(4, 0)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(4, 0)));
}

pub async fn the_same_checkpoint_again_is_applied(fixture: impl CheckpointsFixture) {
    for checkpoint in [at(0, 5), at(3, 5), at(3, u64::MAX)] {
        for _ in 0..2 {
            assert_eq!(save(&fixture, checkpoint).await, Swap::Applied, "{checkpoint:?}");
            assert_eq!(reset(&fixture, checkpoint).await, Swap::Applied, "{checkpoint:?}");
        }
    }
}

pub async fn a_garbled_checkpoint_is_overwritten(fixture: impl CheckpointsFixture) {
    fixture.garble(STREAM).await;
    assert!(matches!(load(&fixture).await, CachedCheckpoint::Garbled(_)));
    assert_eq!(save(&fixture, at(3, 5)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(3, 5)));
}

pub async fn a_fence_that_no_term_can_have_is_overwritten(fixture: impl CheckpointsFixture) {
    assert_eq!(save(&fixture, at(3 + MAX_FENCE_LEAD, 5)).await, Swap::Applied);
    assert_eq!(save(&fixture, at(3, 9)).await, Swap::Conflict);
    assert_eq!(save(&fixture, at(2, 9)).await, Swap::Applied);
    assert_eq!(load(&fixture).await, CachedCheckpoint::At(at(2, 9)));
}
