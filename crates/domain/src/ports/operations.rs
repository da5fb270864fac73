//! Changes of routes by operators.

use std::future::Future;

use ambient::Timestamp;

use super::StoreError;
use crate::operations::{ChangeReport, OperatorAction, RouteChange, Selection, Target, TargetPlace, Targets};
use crate::query::Page;

/// The outcome of a change for one target.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeOutcome {
    /// The route was changed.
    Changed,
    /// The route changed or was deleted since it was selected; nothing was written.
    Conflict,
    /// Another transaction has locked the row, or a publisher holds the lease; nothing was written.
    Locked,
    /// The entry of the route is in the outbound stream, so it is not cancelled.
    Published,
}

/// Changes routes for operators and writes a row to `operator_actions` for each chunk.
pub trait Operations: Send + Sync {
    /// Returns the routes to which `change` may be applied, each with its present version.
    fn select_routes(
        &self,
        change: &RouteChange,
        selection: &Selection,
    ) -> impl Future<Output = Result<Targets, StoreError>> + Send;

    /// Returns a page of the routes that the filter of `selection` selects for `change`, starting after
    /// `after`, at most `limit` of them: dead letters the newest first, live routes in the order in which
    /// they are due, published ones by their acceptance, the newest first. A page may be short or empty and
    /// still have a next one. Ids are not listed.
    fn list_targets(
        &self,
        change: &RouteChange,
        selection: &Selection,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Target, TargetPlace>, StoreError>> + Send;

    /// Changes the routes of a chunk that still have their version, and writes a row to `operator_actions` if
    /// any was changed, in one transaction. Returns an outcome for each target, in the given order. Waits for
    /// no lock of a row.
    fn change_routes(
        &self,
        change: &RouteChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<ChangeOutcome>, StoreError>> + Send;
}

/// Applies `change` to all targets, chunk by chunk. If an error or a crash ends it early, the chunks before
/// are committed and their routes are no longer selected. Repeating the request continues with the others.
pub async fn apply_change(
    store: &impl Operations,
    change: &RouteChange,
    targets: &Targets,
    action: &OperatorAction,
    now: Timestamp,
) -> Result<ChangeReport, StoreError> {
    let mut report = ChangeReport {
        remaining: targets.remaining,
        unchanged: targets.unchanged,
        unknown: targets.unknown.clone(),
        ..ChangeReport::default()
    };
    for chunk in targets.chunks() {
        let ChunkReport { changed, conflicts, published, locked } =
            apply_to_chunk(store, change, chunk, action, now).await?;
        report.changed += changed;
        report.published += published;
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
    /// The number of routes that were to be cancelled and are published.
    pub published: u64,
    /// The targets that another transaction has locked or a publisher has leased. They may be retried with
    /// the version with which they were selected.
    pub locked: Vec<Target>,
}

/// Applies `change` to one chunk, at most [`CHUNK_ROUTES`](crate::operations::CHUNK_ROUTES) targets, in one
/// transaction.
pub async fn apply_to_chunk(
    store: &impl Operations,
    change: &RouteChange,
    chunk: &[Target],
    action: &OperatorAction,
    now: Timestamp,
) -> Result<ChunkReport, StoreError> {
    let mut report = ChunkReport::default();
    let outcomes = store.change_routes(change, chunk, action, now).await?;
    for (target, outcome) in chunk.iter().zip(outcomes) {
        match outcome {
            ChangeOutcome::Changed => report.changed += 1,
            ChangeOutcome::Published => report.published += 1,
            ChangeOutcome::Locked => report.locked.push(target.clone()),
            ChangeOutcome::Conflict => report.conflicts += 1,
        }
    }
    Ok(report)
}
