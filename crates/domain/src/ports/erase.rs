//! Erasing a person from the tables and streams.

use std::collections::HashSet;
use std::future::Future;

use ambient::Timestamp;
use serde_json::Value;

use super::StoreError;
use crate::entry::EntryId;
use crate::erase::{ErasedRows, ErasedUser, ErasurePlan, ErasureReport};
use crate::hold::HoldActor;
use crate::malformed_intent::MalformedKey;
use crate::operations::OperatorActionId;
use crate::query::{MalformedPlace, Page};
use crate::record::{NotificationId, RecordCursor};
use crate::route::RouteKey;

/// The result of erasing a user from a chunk of records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErasedChunk {
    /// The rows.
    pub rows: ErasedRows,
    /// The records that no longer name the user. The others are locked by another transaction, or have a live
    /// route whose lease is held by another.
    pub erased: HashSet<NotificationId>,
}

/// A malformed intent that may contain the id of a user, with its raw fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundMalformed {
    /// Its key.
    pub key: MalformedKey,
    /// Its raw fields, as JSON.
    pub raw_fields: String,
}

/// A former action of an operator that contains the id of a user.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundAction {
    /// Its key.
    pub id: OperatorActionId,
    /// Its arguments.
    pub arguments: Value,
}

/// Erases a user from the tables. Each call examines a bounded number of rows, is one transaction, waits for
/// no lock, and writes a row to `operator_actions` if it erases something.
pub trait ErasureStore: Send + Sync {
    /// Returns the key of the installation for hashes of users, which is `proposed` if it had none; `None`
    /// before the first start.
    fn erasure_key(
        &self,
        proposed: &[u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// Returns at most `limit` records that name the user and are not in `except`, in any order.
    fn list_records_naming(
        &self,
        user: &ErasedUser,
        except: &[NotificationId],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<NotificationId>, StoreError>> + Send;

    /// Erases the user from these records: deletes the routes to the user with their dead letters and
    /// receipts, the stored responses to the requests of the records, and the user from the lists of
    /// recipients. Deletes a record that has no other recipient. Leaves out records with a live route in
    /// `leased`, the routes whose leases others hold.
    fn erase_from_records(
        &self,
        user: &ErasedUser,
        records: &[NotificationId],
        leased: &HashSet<RouteKey>,
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<ErasedChunk, StoreError>> + Send;

    /// Returns the next malformed intents after `after`, the oldest first, that may contain the id of the
    /// user: all that do, and others with fields that are not text.
    fn list_malformed_containing(
        &self,
        user: &ErasedUser,
        after: Option<&MalformedPlace>,
    ) -> impl Future<Output = Result<Page<FoundMalformed, MalformedPlace>, StoreError>> + Send;

    /// Deletes the fields of these malformed intents, whose keys remain, and returns how many there were.
    fn erase_malformed(
        &self,
        user: &ErasedUser,
        keys: &[MalformedKey],
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the next actions after `after`, the oldest first, whose arguments contain the id of the user.
    fn list_actions_containing(
        &self,
        user: &ErasedUser,
        after: Option<OperatorActionId>,
    ) -> impl Future<Output = Result<Page<FoundAction, OperatorActionId>, StoreError>> + Send;

    /// Replaces the arguments of these actions, and returns how many there were.
    fn replace_arguments(
        &self,
        user: &ErasedUser,
        actions: &[FoundAction],
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the next records after `after`, the newest first, that do not name the user as a recipient and
    /// whose payload, key, request id or trace id contains the id.
    fn list_records_containing(
        &self,
        user: &ErasedUser,
        after: Option<&RecordCursor>,
    ) -> impl Future<Output = Result<Page<NotificationId, RecordCursor>, StoreError>> + Send;

    /// Writes a row to `operator_actions` for deleted entries of streams.
    fn record_stream_entries(
        &self,
        user: &ErasedUser,
        entries: u64,
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns true if the user directory in the schema has this document.
    fn has_user_document(&self, document: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes this document of the user in the user directory, and returns true if there was one.
    fn delete_user_document(
        &self,
        user: &ErasedUser,
        document: &str,
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// Deletes entries of streams.
pub trait EntryDeletion: Send + Sync {
    /// Deletes these entries of `stream`, and returns how many of them there were.
    fn delete_entries(
        &self,
        stream: &str,
        ids: &[EntryId],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Erases users, for operators.
pub trait Erasures: Send + Sync {
    /// Returns the data that erasing the user would concern now. `None` if the service has never started on
    /// these tables.
    fn plan_erasure(
        &self,
        user_id: &str,
    ) -> impl Future<Output = Result<Option<ErasurePlan>, StoreError>> + Send;

    /// Erases the user, from everything that was there at `now`. `None` if the service has never started on
    /// these tables.
    fn erase_user(
        &self,
        user_id: &str,
        actor: HoldActor<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<ErasureReport>, StoreError>> + Send;
}
