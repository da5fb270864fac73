//! The engine that accepts a batch, whether it comes from the stream or from callers: look up → decide →
//! commit, then decide again, divide or isolate.
//!
//! Most keys are new, and a transaction with a taken key writes nothing ([`Fate::WriteConflict`]). So known
//! keys are looked up beforehand only if the batch expects some, or if an element is not accepted because of
//! the directory: the outcome of a replay never depends on the directory.
//!
//! A batch that is refused, locked or too slow is divided, until one element remains. If PostgreSQL refuses
//! that one, a valid row of the service is tried: if it is refused as well, the element is not the cause and
//! waits; otherwise the element is tried again, and if it is refused again it is not storable (ADR 0023). The
//! parts are tried by the worker that feeds the engine: those of the stream from left to right, those of
//! callers concurrently.
//!
//! Crash recovery: the transactions are independent. An entry that is not committed is read again, and a
//! caller repeats its request.

use domain::accept::{Fate, Probe};
use domain::ports::{AcceptanceBatch, AcceptanceStore, StoreError, error_chain};

/// The bounds of one transaction, besides the number of elements: cost in bytes, and routes. A larger element
/// is accepted alone.
pub(crate) const MAX_BATCH_COST: usize = 4 * 1024 * 1024;
pub(crate) const MAX_BATCH_ROUTES: usize = 4_096;
/// The number of times that a batch may meet a key that was taken since it was decided.
const MAX_CONFLICT_RETRIES: usize = 5;
/// The cause that is reported after that.
const KEPT_TAKING: &str = "other transactions kept taking its key or its id meanwhile";

/// Elements that are committed together, with their lookups and decisions.
pub(crate) trait CommitGroup: Send {
    /// The number of elements that are decided.
    fn len(&self) -> usize;

    /// Looks up which keys are taken.
    fn find_known(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Looks up the recipients that have no lookup yet.
    fn look_up(&mut self) -> impl Future<Output = ()> + Send;

    /// Decides at the current time, as far as possible. Returns true if the decision is right only if the
    /// taken keys are known.
    fn decide(&mut self) -> bool;

    /// Returns the decisions to commit. They may be empty.
    fn transaction(&mut self) -> AcceptanceBatch<'_>;

    /// True if a response is stored on the condition that a key is still free. The stream stores none.
    fn has_free_keys(&self) -> bool {
        false
    }

    /// Claims the free keys. An element whose key is taken leaves the batch.
    fn claim_free_keys(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Returns valid rows that differ from the only element.
    fn probe(&self) -> Probe;

    /// Decides that the only element is not storable, for this reason. Returns false if PostgreSQL refused
    /// that already, in the shortest form.
    fn reject(&mut self, message: &str) -> bool;
}

/// Commits a batch. Known keys are looked up first if it `expects_known`. Returns `Err` if PostgreSQL is
/// unavailable: then the batch may or may not be committed.
pub(crate) async fn accept(
    store: &impl AcceptanceStore,
    batch: &mut impl CommitGroup,
    expects_known: bool,
) -> Result<Fate, StoreError> {
    decide(batch, expects_known).await?;
    let (mut conflicts, mut is_suspected) = (0, false);
    loop {
        let error = match commit(store, batch).await {
            Ok(Fate::WriteConflict) if conflicts < MAX_CONFLICT_RETRIES => {
                conflicts += 1;
                decide(batch, true).await?;
                continue;
            }
            // The caller of an element whose key is taken receives the reason.
            Ok(Fate::KeyTaken) | Err(StoreError::Locked { .. }) if batch.has_free_keys() => {
                batch.claim_free_keys().await;
                decide(batch, false).await?;
                continue;
            }
            Ok(Fate::WriteConflict | Fate::KeyTaken) if batch.len() > 1 => return Ok(Fate::Divided),
            Ok(Fate::WriteConflict) => return Ok(Fate::Waiting(KEPT_TAKING.to_owned())),
            Ok(fate) => return Ok(fate),
            Err(error) if is_caused_by_an_element(&error) => error,
            Err(error) => return Err(error),
        };
        if batch.len() > 1 {
            return Ok(Fate::Divided);
        }
        let message = error_chain(&error);
        if !matches!(error, StoreError::Refused { .. }) {
            return Ok(Fate::Waiting(message));
        }
        match store.probe(&batch.probe()).await {
            // Whatever refused the element may have ended before the other row was tried.
            Ok(()) if !is_suspected => is_suspected = true,
            Ok(()) if batch.reject(&message) => {}
            Ok(()) => return Ok(Fate::Waiting(format!("it cannot be stored in any form: {message}"))),
            Err(probe @ StoreError::Refused { .. }) => {
                return Ok(Fate::Waiting(format!(
                    "PostgreSQL refuses a valid row of the service, too, so no intent is the cause: {}",
                    error_chain(&probe)
                )));
            }
            Err(error) => return Err(error),
        }
    }
}

async fn decide(batch: &mut impl CommitGroup, expects_known: bool) -> Result<(), StoreError> {
    if expects_known {
        batch.find_known().await?;
    }
    batch.look_up().await;
    if batch.decide() && !expects_known {
        batch.find_known().await?;
        batch.decide();
    }
    Ok(())
}

async fn commit(store: &impl AcceptanceStore, batch: &mut impl CommitGroup) -> Result<Fate, StoreError> {
    let transaction = batch.transaction();
    if transaction.outcomes.is_empty() {
        return Ok(Fate::Committed);
    }
    store.accept(transaction).await
}

/// True if a smaller batch may be committed although this one failed.
fn is_caused_by_an_element(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. } | StoreError::Locked { .. } | StoreError::TimedOut { .. })
}
