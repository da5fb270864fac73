//! Reading records, routes, dead letters and malformed intents to compare them with the streams (ADR 0038).
//!
//! The reads use the pool of the queries, whose sessions cannot write. Pages are limited by rows and by bytes
//! before they are read. One statement reads the routes of a record and their dead letters, so that they are
//! from the same moment.

pub(crate) mod entries;
pub(crate) mod orphans;
pub(crate) mod records;

use ambient::Timestamp;
use domain::audit::{EntryTrace, FoundOutcome, RouteState};
use domain::checkpoint::Checkpoint;
use domain::ports::{AuditStore, AuditedPage, ChildTable, OrphanPage, StoreError};
use domain::record::{NotificationId, RecordCursor};
use domain::route::{Channel, RouteKey};

use crate::{PgQueries, checkpoint, republish};

impl AuditStore for PgQueries {
    async fn audited_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        checkpoint::load(&self.session("load the checkpoint").await?, stream).await
    }

    async fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> Result<AuditedPage, StoreError> {
        records::list(&self.session("list records with their routes").await?, after, until).await
    }

    async fn get_audited_records(&self, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        records::get(&self.session("read records with their routes").await?, ids).await
    }

    async fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> Result<Vec<FoundOutcome>, StoreError> {
        entries::outcomes(&self.session("find the outcomes of entries").await?, stream, entries).await
    }

    async fn find_routes(&self, keys: &[&RouteKey]) -> Result<Vec<Option<RouteState>>, StoreError> {
        entries::routes(&self.session("find the routes of entries").await?, keys).await
    }

    async fn list_audited_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        republish::list_names(&self.session("list the names of the outbound streams").await?, since).await
    }

    async fn list_orphans(
        &self,
        table: ChildTable,
        after: Option<&RouteKey>,
    ) -> Result<OrphanPage, StoreError> {
        orphans::list(&self.session("list rows without a parent").await?, table, after).await
    }
}

#[cfg(test)]
mod tests;
