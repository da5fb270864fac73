//! Reading records, routes, dead letters and malformed intents to compare them with the streams (ADR 0038).
//!
//! The reads use the pool of the queries, whose sessions cannot write. Pages are limited by rows and by bytes
//! before they are read. One statement reads the routes of a record and their dead letters, so that they are
//! from the same moment.

pub(crate) mod entries;
pub(crate) mod orphans;
pub(crate) mod records;

use std::ops::ControlFlow;

use ambient::Timestamp;
use domain::audit::{EntryTrace, FoundOutcome, RouteState};
use domain::checkpoint::Checkpoint;
use domain::ports::{AuditStore, AuditedPage, ChildTable, OrphanPage, StoreError};
use domain::record::{NotificationId, RecordCursor};
use domain::route::{Channel, RouteKey};

use crate::queries::read;
use crate::{PgQueries, checkpoint, republish};

impl AuditStore for PgQueries {
    async fn audited_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        read!(self, "load the checkpoint", session => checkpoint::load(&session, stream))
    }

    async fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> Result<AuditedPage, StoreError> {
        read!(self, "list records with their routes", session => records::list(&session, after, until))
    }

    async fn get_audited_records(&self, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        read!(self, "read records with their routes", session => records::get(&session, ids))
    }

    async fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> Result<Vec<FoundOutcome>, StoreError> {
        read!(self, "find the outcomes of entries", session => entries::outcomes(&session, stream, entries))
    }

    async fn find_routes(&self, keys: &[&RouteKey]) -> Result<Vec<Option<RouteState>>, StoreError> {
        read!(self, "find the routes of entries", session => entries::routes(&session, keys))
    }

    async fn list_audited_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        read!(self, "list the names of the outbound streams", session => republish::list_names(&session, since))
    }

    async fn list_orphans(
        &self,
        table: ChildTable,
        after: Option<&RouteKey>,
    ) -> Result<OrphanPage, StoreError> {
        read!(self, "list rows without a parent", session => orphans::list(&session, table, after))
    }
}

#[cfg(test)]
mod tests;
