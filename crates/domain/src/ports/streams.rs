//! The intents stream: one reader, any number of producers.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::checkpoint::StreamState;
use crate::entry::{EntryId, LargeEntry, RawEntry, RawFields};
use crate::republish::ServerId;

/// The limits of one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadLimit {
    /// The most entries.
    pub entries: usize,
    /// The most bytes that Redis may send for them.
    pub bytes: usize,
}

/// The result of a read of the intents stream.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamRead {
    /// The entries in stream order; empty if none arrived in time.
    Entries(Vec<RawEntry>),
    /// The reply exceeds the limit on bytes, and the read was abandoned. Request fewer entries.
    TooLarge,
}

/// Reads and trims the intents stream.
pub trait IntentStream: Send + Sync {
    /// Returns entries after `after`, within `limit`. Waits up to `block` for the first one; `block` may be
    /// zero.
    fn read(
        &self,
        after: EntryId,
        limit: ReadLimit,
        block: Duration,
    ) -> impl Future<Output = Result<StreamRead, StoreError>> + Send;

    /// Closes the connection on which [`IntentStream::read`] waits. The next read opens another. For a
    /// connection to a server that is no longer the master.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;

    /// Returns the first entry after `after`, which is too large to be read, with only the heads of its
    /// fields. Redis copies the entry for this call, so it is called once for an entry, and rarely if that
    /// fails.
    fn look_at_large(
        &self,
        after: EntryId,
    ) -> impl Future<Output = Result<Option<LargeEntry>, StoreError>> + Send;

    /// Returns the id of the first entry after `after`, without waiting for one.
    fn first_after(&self, after: EntryId)
    -> impl Future<Output = Result<Option<EntryId>, StoreError>> + Send;

    /// Returns the entries up to `last`, the newest first, within `limit`: fewer if they exceed its bytes.
    /// The flag is true if the stream has no more of them.
    fn list_newest(
        &self,
        last: EntryId,
        limit: ReadLimit,
    ) -> impl Future<Output = Result<(Vec<RawEntry>, bool), StoreError>> + Send;

    /// Returns the server that has the stream. If the first read leads to another server, it fails, and the
    /// caller determines again where to resume.
    fn server(&self) -> impl Future<Output = Result<ServerId, StoreError>> + Send;

    /// Returns the state of the whole stream; `None` if the key does not exist.
    fn inspect(&self) -> impl Future<Output = Result<Option<StreamState>, StoreError>> + Send;

    /// Removes entries with ids below `before`, in whole nodes of the stream only, and returns the number
    /// removed.
    fn trim(&self, before: EntryId) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// The intents stream for a producer.
pub trait IntentProducer: Send + Sync {
    /// Appends an entry and returns its id. After [`StoreError::Unavailable`] the entry may be in the stream.
    /// Appending it again is safe, because its idempotency key makes the second one a duplicate.
    fn append(&self, fields: &RawFields) -> impl Future<Output = Result<EntryId, StoreError>> + Send;
}
