//! Where acceptance becomes a fact: outcomes, and the checkpoint that moves with them, in one transaction.

use std::future::Future;

use super::{AnswerToStore, StoreError};
use crate::accept::{Known, Probe};
use crate::checkpoint::Fence;
use crate::entry::EntryId;
use crate::outcome::Outcome;
use crate::record::IdempotencyScope;

/// What one transaction writes. It presupposes no stream: every record and every malformed row has its
/// identity already.
#[derive(Clone, Debug)]
pub struct AcceptanceBatch<'a> {
    /// The outcomes in the order in which they were decided, at least one.
    pub outcomes: Vec<&'a Outcome>,
    /// For intents that came from a stream, the checkpoint that moves past them.
    pub checkpoint: Option<CheckpointMove<'a>>,
    /// For intents whose callers wait, the answers that are stored.
    pub answers: Vec<AnswerToStore>,
}

/// A move of the durable checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointMove<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The fence of the term that moves it.
    pub fence: Fence,
    /// What the checkpoint must still be; `None` if the stream has none.
    pub expected: Option<EntryId>,
    /// What it becomes.
    pub last_entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`] of that entry.
    pub fingerprint: &'a str,
}

/// What became of a batch.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// Committed whole.
    Committed,
    /// Nothing was written: a key or an id was taken since [`AcceptanceStore::find_known`]. Ask again.
    WriteConflict,
    /// Nothing was written: the durable checkpoint is not the expected one, which only a batch with a
    /// [`CheckpointMove`] can find. Another replica has moved it, with a higher fence
    /// or not, or PostgreSQL was restored to an older state.
    CheckpointMoved,
    /// Nothing was written: the condition of an answer does not hold, which only a batch with answers can
    /// find. A claim has expired, or a key is not free any more.
    AnswerRefused,
}

/// Where acceptance becomes a fact.
pub trait AcceptanceStore: Send + Sync {
    /// Which of these intents' keys are taken, and for those whose key is not, whether their entry id is.
    fn find_known(
        &self,
        intents: &[(IdempotencyScope, EntryId)],
    ) -> impl Future<Output = Result<Known, StoreError>> + Send;

    /// One transaction: records, routes, malformed rows, the checkpoint if it moves, and answers if there are
    /// any. All of it or nothing.
    fn accept(&self, batch: AcceptanceBatch<'_>) -> impl Future<Output = Result<Commit, StoreError>> + Send;

    /// Inserts valid rows in a transaction that it rolls back. [`StoreError::Refused`] if PostgreSQL refuses
    /// even these: then a refusal says nothing about the element that was refused.
    fn probe(&self, probe: &Probe) -> impl Future<Output = Result<(), StoreError>> + Send;
}
