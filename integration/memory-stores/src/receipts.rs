//! Delivery receipts: reports of consumers on routes.

use domain::ports::{ReceiptStore, StoreError};
use domain::receipt::{Receipt, ReportOutcome, RouteReport};
use domain::route::{Channel, RouteKey};

use super::database::MemoryDatabase;
use super::lock;

impl MemoryDatabase {
    /// The keys of all receipts, sorted.
    pub fn receipts(&self) -> Vec<RouteKey> {
        lock(&self.0).receipts.keys().cloned().collect()
    }
}

impl ReceiptStore for MemoryDatabase {
    async fn record_reports(
        &self,
        reports: &[RouteReport],
        channel: Option<Channel>,
    ) -> Result<Vec<ReportOutcome>, StoreError> {
        let mut tables = lock(&self.0);
        let mut record = |RouteReport { key, report }: &RouteReport| {
            let is_own = |of_route| channel.is_none_or(|channel| channel == of_route);
            let is_known = tables.routes.get(key).is_some_and(|row| is_own(row.route.channel));
            if !is_known {
                return ReportOutcome::UnknownRoute;
            }
            let (receipt, recorded) = Receipt::after(tables.receipts.remove(key), report.clone());
            tables.receipts.insert(key.clone(), receipt);
            ReportOutcome::Known(recorded)
        };
        Ok(reports.iter().map(&mut record).collect())
    }
}
