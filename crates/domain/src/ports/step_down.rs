//! Operators' requests that a replica step down from the leadership of intake.

use std::future::Future;

use super::StoreError;
use crate::step_down::{StepDown, StepDownState};

/// Reads and writes the column `replicas.step_down_at`.
pub trait StepDownStore: Send + Sync {
    /// Writes the request to the row of the replica, with the time of the store's clock, and to
    /// `operator_actions`, in one transaction. Returns false if the replica does not exist; then nothing is
    /// written.
    fn request_step_down(&self, request: &StepDown) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns the last request to this replica, by the store's clock.
    fn get_step_down(&self, replica: &str) -> impl Future<Output = Result<StepDownState, StoreError>> + Send;
}
