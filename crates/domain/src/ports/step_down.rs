//! Operators' requests that a replica hand over the leadership of intake.

use std::future::Future;

use super::StoreError;
use crate::step_down::{StepDown, StepDownState};

/// The column `replicas.step_down_at`.
pub trait StepDownStore: Send + Sync {
    /// One transaction: notes the request in the row of the replica, at the store's own time, and what was
    /// asked in `operator_actions`. False if there is no such replica; then nothing is written.
    fn request_step_down(&self, request: &StepDown) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The last request to this replica, by the store's own clock.
    fn get_step_down(&self, replica: &str) -> impl Future<Output = Result<StepDownState, StoreError>> + Send;
}
