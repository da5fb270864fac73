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
        self.read("load the checkpoint", async |session| checkpoint::load(session, stream).await).await
    }

    async fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> Result<AuditedPage, StoreError> {
        self.read("list records with their routes", async |session| records::list(session, after, until).await).await
    }

    async fn get_audited_records(&self, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        self.read("read records with their routes", async |session| records::get(session, ids).await).await
    }

    async fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> Result<Vec<FoundOutcome>, StoreError> {
        self.read("find the outcomes of entries", async |session| entries::outcomes(session, stream, entries).await).await
    }

    async fn find_routes(&self, keys: &[&RouteKey]) -> Result<Vec<Option<RouteState>>, StoreError> {
        self.read("find the routes of entries", async |session| entries::routes(session, keys).await).await
    }

    async fn list_audited_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        self.read("list the names of the outbound streams", async |session| republish::list_names(session, since).await).await
    }

    async fn list_orphans(
        &self,
        table: ChildTable,
        after: Option<&RouteKey>,
    ) -> Result<OrphanPage, StoreError> {
        self.read("list rows without a parent", async |session| orphans::list(session, table, after).await).await
    }
}

#[cfg(test)]
mod tests;
