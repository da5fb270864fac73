//! Where the HTTP API hands intents over and waits for what becomes of them.

use std::future::Future;
use std::time::Duration;

use crate::record::IdempotencyScope;
use crate::submission::{Submission, SubmissionOutcome};

/// Accepts intents whose callers wait.
pub trait Submissions: Send + Sync {
    /// What became of `submission`. Submissions that wait at the same moment are accepted together; none
    /// waits for the look-ups of another. A caller that stops waiting stops nothing that has begun.
    fn submit(&self, submission: Submission) -> impl Future<Output = SubmissionOutcome> + Send;

    /// For how long at most a request with this key, on whatever replica, may still be in progress; `None` if
    /// none is known to be. It needs no store to answer.
    fn time_in_progress(&self, scope: &IdempotencyScope) -> impl Future<Output = Option<Duration>> + Send;

    /// Counts intents of a known producer that are malformed and are therefore not submitted.
    fn count_malformed(&self, producer: &str, count: u64, is_batch: bool);
}
