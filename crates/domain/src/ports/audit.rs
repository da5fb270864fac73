//! Read-only access to all tables and streams for an audit, page by page and concurrent with the traffic.

use std::future::Future;

use ambient::Timestamp;

use super::{ReadLimit, StoreError};
use crate::audit::{AuditedRecord, EntryTrace, FoundOutcome, RouteState, UnreadableRow};
use crate::checkpoint::Checkpoint;
use crate::entry::{EntryId, RawFields, Unread};
use crate::record::{NotificationId, RecordCursor};
use crate::republish::OutboundState;
use crate::route::{Channel, RouteKey};

/// One page of records in the order of acceptance.
#[derive(Debug, Default)]
pub struct AuditedPage {
    /// Records with all their routes.
    pub records: Vec<AuditedRecord>,
    /// Records that could not be read.
    pub unreadable: Vec<UnreadableRow>,
    /// The last record of the page; `None` when this was the last page.
    pub next: Option<RecordCursor>,
}

/// The rows without a parent among one page of rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OrphanPage {
    /// The rows without a parent.
    pub orphans: Vec<RouteKey>,
    /// The last row of the page, with a parent or not; `None` when this was the last page.
    pub next: Option<RouteKey>,
}

/// A table whose rows belong to rows of another table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildTable {
    /// `routes`, whose rows belong to records.
    Routes,
    /// `dead_letters`, whose rows belong to routes.
    DeadLetters,
}

/// Reads the tables. Each call examines a bounded number of rows, and returns data of each record as of one
/// moment.
pub trait AuditStore: Send + Sync {
    /// Returns the durable checkpoint of `stream`.
    fn audited_checkpoint(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<Checkpoint>, StoreError>> + Send;

    /// Returns the next records that were accepted after `after` and before `until`, as many as the store
    /// reads at once.
    fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> impl Future<Output = Result<AuditedPage, StoreError>> + Send;

    /// Returns these records, at most as many as a page has. Records that do not exist are left out.
    fn get_audited_records(
        &self,
        ids: &[&NotificationId],
    ) -> impl Future<Output = Result<AuditedPage, StoreError>> + Send;

    /// Returns the outcomes of these entries of `stream`, in the given order.
    fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> impl Future<Output = Result<Vec<FoundOutcome>, StoreError>> + Send;

    /// Returns these routes, in the given order; `None` for a route that does not exist.
    fn find_routes(
        &self,
        keys: &[&RouteKey],
    ) -> impl Future<Output = Result<Vec<Option<RouteState>>, StoreError>> + Send;

    /// Returns the streams to which replicas published at `since` or later, by PostgreSQL's clock.
    fn list_audited_names(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<(Channel, String)>, StoreError>> + Send;

    /// Returns the rows without a parent among the next rows of `table`, by primary key.
    fn list_orphans(
        &self,
        table: ChildTable,
        after: Option<&RouteKey>,
    ) -> impl Future<Output = Result<OrphanPage, StoreError>> + Send;
}

/// An entry of any stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// The id in the stream.
    pub id: EntryId,
    /// The fields, or the reason why they were not read.
    pub fields: Result<RawFields, Unread>,
}

/// Reads streams from one end to the other.
pub trait StreamReader: Send + Sync {
    /// Returns the next entries of `stream` after `after` and up to `until`, within `limit`. At least one, if
    /// there is one.
    fn list_entries(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        limit: ReadLimit,
    ) -> impl Future<Output = Result<Vec<StreamEntry>, StoreError>> + Send;

    /// Returns the state of the whole stream; `None` if the key does not exist, or is not a stream.
    fn inspect_stream(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<OutboundState>, StoreError>> + Send;

    /// Returns the type of the value under this key, in Redis' word for it; `None` if the key does not exist.
    fn key_type(&self, key: &str) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;
}
