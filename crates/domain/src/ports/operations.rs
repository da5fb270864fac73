//! What operators change.

use std::future::Future;

use ambient::Timestamp;

use super::{Completion, StoreError};
use crate::operations::{ChangeReport, DeadLetterChange, OperatorAction, Selection, Target, Targets};
use crate::query::{DeadLetterFilter, DeadLetterPlace, Page};

/// Changes of dead letters by operators, each chunk with a row in `operator_actions`.
pub trait Operations: Send + Sync {
    /// The dead letters that `change` may be made to, each with its present version.
    fn select_dead_letters(
        &self,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> impl Future<Output = Result<Targets, StoreError>> + Send;

    /// A page of what [`Selection::Filter`] selects, newest first, from after the place `after` on, at most
    /// `limit` of them. A page may be short or empty and still have a next one.
    fn list_targets(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Target, DeadLetterPlace>, StoreError>> + Send;

    /// One transaction: changes the routes and dead letters of a chunk that still have their version, and
    /// writes what was done to `operator_actions`, if anything was. An outcome for each target in the order
    /// given. Waits for no lock.
    fn change_dead_letters(
        &self,
        change: &DeadLetterChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}

/// Makes `change` to all targets, chunk by chunk. What is left when it ends early, by an error or a crash:
/// the chunks before are committed, and their routes are no longer selected, so the same request, made again,
/// continues with the others.
pub async fn apply_change(
    store: &impl Operations,
    change: &DeadLetterChange,
    targets: &Targets,
    action: &OperatorAction,
    now: Timestamp,
) -> Result<ChangeReport, StoreError> {
    let mut report = ChangeReport {
        changed: 0,
        remaining: targets.remaining,
        unchanged: targets.unchanged,
        unknown: targets.unknown.clone(),
    };
    for chunk in targets.chunks() {
        let ChunkReport { changed, conflicts, locked } =
            apply_to_chunk(store, change, chunk, action, now).await?;
        report.changed += changed;
        report.unchanged += conflicts;
        report.remaining.count += locked.len() as u64;
    }
    Ok(report)
}

/// What became of a chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkReport {
    /// Routes that were changed.
    pub changed: u64,
    /// Those that were changed or deleted by someone else since they were selected: they are no longer what
    /// the operator saw.
    pub conflicts: u64,
    /// Those that another transaction has locked: they may be tried again with the version that they were
    /// selected with.
    pub locked: Vec<Target>,
}

/// Makes `change` to one chunk, at most [`CHUNK_ROUTES`](crate::operations::CHUNK_ROUTES) targets, in one
/// transaction.
pub async fn apply_to_chunk(
    store: &impl Operations,
    change: &DeadLetterChange,
    chunk: &[Target],
    action: &OperatorAction,
    now: Timestamp,
) -> Result<ChunkReport, StoreError> {
    let mut report = ChunkReport::default();
    let outcomes = store.change_dead_letters(change, chunk, action, now).await?;
    for (target, outcome) in chunk.iter().zip(outcomes) {
        match outcome {
            Completion::Applied => report.changed += 1,
            Completion::Locked => report.locked.push(target.clone()),
            Completion::Conflict => report.conflicts += 1,
        }
    }
    Ok(report)
}
