//! Consumers' reports of routes.

use std::future::Future;

use super::StoreError;
use crate::receipt::{ReportOutcome, RouteReport};
use crate::route::Channel;

/// The delivery receipts of routes. They are removed with the record of their route.
pub trait ReceiptStore: Send + Sync {
    /// Records reports in the given order, by [`Receipt::after`](crate::receipt::Receipt::after), and returns
    /// the effect of each. If `channel` is given, routes of other channels are unknown. Concurrent calls may
    /// report the same route: its status is the highest of all reports.
    ///
    /// After an error, some of the reports may have been recorded. Repeating all of them is safe: those
    /// already recorded are stale.
    fn record_reports(
        &self,
        reports: &[RouteReport],
        channel: Option<Channel>,
    ) -> impl Future<Output = Result<Vec<ReportOutcome>, StoreError>> + Send;
}
