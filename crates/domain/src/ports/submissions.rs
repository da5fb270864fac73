//! Submission of intents by the HTTP API, which waits for their outcomes.

use std::future::Future;
use std::time::Duration;

use crate::malformed_intent::FailureCode;
use crate::record::IdempotencyKey;
use crate::submission::{Submission, SubmissionOutcome};

/// Accepts intents whose callers wait.
pub trait Submissions: Send + Sync {
    /// Submits an intent and returns its outcome. Submissions that wait at the same moment are accepted
    /// together; none waits for the lookups of another. If the caller stops waiting, work that has begun
    /// continues.
    fn submit(&self, submission: Submission) -> impl Future<Output = SubmissionOutcome> + Send;

    /// Returns the longest time for which a request with this key may still be in progress on any replica;
    /// `None` if none is known to be. Requires no store.
    fn time_in_progress(&self, key: &IdempotencyKey) -> impl Future<Output = Option<Duration>> + Send;

    /// Counts intents of a known producer that are malformed, with these codes, and therefore not submitted.
    fn count_malformed(&self, producer: &str, codes: &[FailureCode], is_batch: bool);
}
