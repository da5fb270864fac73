//! Resubmission of malformed intents by operators.

use std::future::Future;

use super::StoreError;
use crate::malformed_intent::MalformedKey;
use crate::resubmit::{ResubmitActor, ResubmitReport, ResubmitSelection, ResubmitTargets};

/// Selects malformed intents and records their resubmission.
pub trait ResubmitStore: Send + Sync {
    /// Returns the malformed intents that `selection` selects, the newest first. Entry ids in it are of
    /// `stream`.
    fn select_malformed_intents(
        &self,
        stream: &str,
        selection: &ResubmitSelection,
    ) -> impl Future<Output = Result<ResubmitTargets, StoreError>> + Send;

    /// Returns the raw fields of a malformed intent that was not resubmitted; `None` if it was, or if it was
    /// deleted.
    fn get_fields_to_resubmit(
        &self,
        key: &MalformedKey,
    ) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;

    /// Records the ids of the new entries in the rows of a chunk, and a row of `operator_actions`, in one
    /// transaction. A row that was resubmitted or deleted meanwhile stays as it is. Returns the number of the
    /// others.
    fn mark_resubmitted(
        &self,
        chunk: &[(MalformedKey, String)],
        selection: &ResubmitSelection,
        actor: ResubmitActor<'_>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Resubmits malformed intents.
pub trait Resubmitter: Send + Sync {
    /// Returns the malformed intents that `selection` selects.
    fn select(
        &self,
        selection: &ResubmitSelection,
    ) -> impl Future<Output = Result<ResubmitTargets, StoreError>> + Send;

    /// Resubmits `targets` in chunks until `go_on`, which receives the report after each chunk, returns
    /// false. After an error the chunks before it are committed; repeating the request continues with the
    /// rest.
    fn resubmit(
        &self,
        targets: &ResubmitTargets,
        selection: &ResubmitSelection,
        actor: ResubmitActor<'_>,
        go_on: impl FnMut(&ResubmitReport) -> bool + Send,
    ) -> impl Future<Output = Result<ResubmitReport, StoreError>> + Send;
}
