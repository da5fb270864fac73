//! What operators change.

use std::future::Future;

use ambient::Timestamp;

use super::{Completion, StoreError};
use crate::operations::{ChangeReport, DeadLetterChange, OperatorAction, Selection, Target, Targets};

/// Changes of dead letters by operators, each chunk with a row in `operator_actions`.
pub trait Operations: Send + Sync {
    /// The dead letters that `change` may be made to, each with its present version.
    fn select_dead_letters(
        &self,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> impl Future<Output = Result<Targets, StoreError>> + Send;

    /// One transaction: changes the routes and dead letters of a chunk that still have their version, and writes what was done to
    /// `operator_actions`, if anything was. An outcome for each target in the order given. Waits for no lock.
    fn change_dead_letters(
        &self,
        change: &DeadLetterChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}

/// Makes `change` to all targets, chunk by chunk. What is left when it ends early, by an error or a crash: the chunks before are
/// committed, and their routes are no longer selected, so the same request, made again, continues with the others.
pub async fn apply_change(
    store: &impl Operations,
    change: &DeadLetterChange,
    targets: &Targets,
    action: &OperatorAction,
    now: Timestamp,
) -> Result<ChangeReport, StoreError> {
    let mut report =
        ChangeReport { changed: 0, remaining: targets.remaining, unknown: targets.unknown.clone() };
    for chunk in targets.chunks() {
        for outcome in store.change_dead_letters(change, chunk, action, now).await? {
            match outcome {
                Completion::Applied => report.changed += 1,
                Completion::Locked => report.remaining.count += 1,
                // Changed or deleted since it was selected: it is no longer what the operator saw.
                Completion::Conflict => {}
            }
        }
    }
    Ok(report)
}
