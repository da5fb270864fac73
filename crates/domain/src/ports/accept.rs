//! Commits outcomes, and the checkpoint that moves with them, in one transaction.

use std::future::Future;

use super::{ResponseToStore, StoreError};
use crate::accept::{Fate, Known, Probe};
use crate::checkpoint::Fence;
use crate::entry::EntryId;
use crate::outcome::Outcome;
use crate::record::IdempotencyKey;

/// The content of one transaction. It does not depend on a stream: every record and malformed row already has
/// its identity.
#[derive(Clone, Debug)]
pub struct AcceptanceBatch<'a> {
    /// The outcomes in the order of their decisions, at least one.
    pub outcomes: Vec<&'a Outcome>,
    /// The checkpoint that moves past intents that came from a stream.
    pub checkpoint: Option<CheckpointMove<'a>>,
    /// The responses that are stored for intents whose callers wait.
    pub responses: Vec<ResponseToStore<'a>>,
}

/// A move of the durable checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointMove<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The fence of the term that moves it.
    pub fence: Fence,
    /// The present value; `None` if the stream has no checkpoint.
    pub expected: Option<EntryId>,
    /// The new value.
    pub last_entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`] of that entry.
    pub fingerprint: &'a str,
}

/// Commits acceptance.
pub trait AcceptanceStore: Send + Sync {
    /// Returns the keys of these intents that are taken, and the entry ids that are taken of intents whose
    /// keys are free.
    fn find_known(
        &self,
        intents: &[(IdempotencyKey, EntryId)],
    ) -> impl Future<Output = Result<Known, StoreError>> + Send;

    /// Writes records, routes, malformed rows, the checkpoint if it moves, and stored responses if there are
    /// any, in one transaction.
    fn accept(&self, batch: AcceptanceBatch<'_>) -> impl Future<Output = Result<Fate, StoreError>> + Send;

    /// Inserts valid rows in a transaction that is rolled back. [`StoreError::Refused`] if PostgreSQL rejects
    /// even these; then the rejected element may not be at fault.
    fn probe(&self, probe: &Probe) -> impl Future<Output = Result<(), StoreError>> + Send;
}
