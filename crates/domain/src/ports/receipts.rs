//! What consumers report of routes.

use std::future::Future;

use super::StoreError;
use crate::receipt::{ReportOutcome, RouteReport};
use crate::route::Channel;

/// The receipts of routes. They are removed with the record of their route.
pub trait ReceiptStore: Send + Sync {
    /// Takes reports in their order, by [`Receipt::after`](crate::receipt::Receipt::after), and says what
    /// each came to. Routes of another channel than `channel`, if one is given, are unknown. Several calls
    /// may report of one route at the same time: its status is the highest of all reports.
    ///
    /// After an error some of the reports may have been taken. To repeat all of them is safe: those are stale
    /// then.
    fn record_reports(
        &self,
        reports: &[RouteReport],
        channel: Option<Channel>,
    ) -> impl Future<Output = Result<Vec<ReportOutcome>, StoreError>> + Send;
}
