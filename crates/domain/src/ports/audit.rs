//! Reading everything once, page by page and beside the traffic, to compare it. Nothing here writes.

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

/// Rows whose parent is missing, of one page of rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OrphanPage {
    /// The rows without a parent.
    pub orphans: Vec<RouteKey>,
    /// The last row of the page, with a parent or not; `None` when this was the last page.
    pub next: Option<RouteKey>,
}

/// A table whose rows belong to rows of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildTable {
    /// `routes`, of records.
    Routes,
    /// `dead_letters`, of routes.
    DeadLetters,
}

/// The tables. Each call examines a bounded number of rows, and what one call returns of a record is of one
/// moment.
pub trait AuditStore: Send + Sync {
    /// The durable checkpoint of `stream`.
    fn audited_checkpoint(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<Checkpoint>, StoreError>> + Send;

    /// The next records that were accepted after `after` and before `until`, as many as the store reads at
    /// once.
    fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> impl Future<Output = Result<AuditedPage, StoreError>> + Send;

    /// These records, at most as many as a page has; those that are not there are left out.
    fn get_audited_records(
        &self,
        ids: &[&NotificationId],
    ) -> impl Future<Output = Result<AuditedPage, StoreError>> + Send;

    /// What became of these entries of `stream`, in the order given.
    fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> impl Future<Output = Result<Vec<FoundOutcome>, StoreError>> + Send;

    /// These routes, in the order given; `None` for one that is not there.
    fn find_routes(
        &self,
        keys: &[&RouteKey],
    ) -> impl Future<Output = Result<Vec<Option<RouteState>>, StoreError>> + Send;

    /// The streams to which replicas published at `since` or later, by PostgreSQL's clock.
    fn list_audited_names(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<(Channel, String)>, StoreError>> + Send;

    /// The rows without a parent among the next rows of `table`, by primary key.
    fn list_orphans(
        &self,
        table: ChildTable,
        after: Option<&RouteKey>,
    ) -> impl Future<Output = Result<OrphanPage, StoreError>> + Send;
}

/// An entry of any stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// Its id.
    pub id: EntryId,
    /// Its fields, or why they were not read.
    pub fields: Result<RawFields, Unread>,
}

/// Streams, to be read from one end to the other.
pub trait StreamReader: Send + Sync {
    /// The next entries of `stream` after `after` and up to `until`, at least one if there is one, within
    /// `limit`.
    fn list_entries(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        limit: ReadLimit,
    ) -> impl Future<Output = Result<Vec<StreamEntry>, StoreError>> + Send;

    /// The stream as a whole; `None` if there is no such stream.
    fn inspect_stream(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<OutboundState>, StoreError>> + Send;
}
