//! Changes of dead letters by operators.

use std::future::Future;

use ambient::Timestamp;

use super::{Completion, StoreError};
use crate::operations::{ChangeReport, DeadLetterChange, OperatorAction, Selection, Target, Targets};
use crate::query::{DeadLetterFilter, DeadLetterPlace, Page};

/// Changes dead letters for operators and writes a row to `operator_actions` for each chunk.
pub trait Operations: Send + Sync {
    /// Returns the dead letters to which `change` may be applied, each with its present version.
    fn select_dead_letters(
        &self,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> impl Future<Output = Result<Targets, StoreError>> + Send;

    /// Returns a page of the dead letters that [`Selection::Filter`] selects, newest first, starting after
    /// `after`, at most `limit` of them. A page may be short or empty and still have a next one.
    fn list_targets(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Target, DeadLetterPlace>, StoreError>> + Send;

    /// Changes the routes and dead letters of a chunk that still have their version, and writes a row to
    /// `operator_actions` if any was changed, in one transaction. Returns an outcome for each target, in the
    /// given order. Waits for no lock.
    fn change_dead_letters(
        &self,
        change: &DeadLetterChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}

/// Applies `change` to all targets, chunk by chunk. If an error or a crash ends it early, the chunks before
/// are committed and their routes are no longer selected. Repeating the request continues with the others.
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

/// The result of changing a chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkReport {
    /// The number of routes changed.
    pub changed: u64,
    /// The number of routes that were changed or deleted since they were selected: they no longer are in the
    /// state that the operator saw.
    pub conflicts: u64,
    /// The targets locked by another transaction. They may be retried with the version with which they were
    /// selected.
    pub locked: Vec<Target>,
}

/// Applies `change` to one chunk, at most [`CHUNK_ROUTES`](crate::operations::CHUNK_ROUTES) targets, in one
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
