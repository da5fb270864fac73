//! The intents stream: one reader, any number of producers.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::checkpoint::StreamState;
use crate::entry::{EntryId, LargeEntry, RawEntry, RawFields};
use crate::republish::ServerId;

/// The most that one read returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadLimit {
    /// Entries.
    pub entries: usize,
    /// Bytes that Redis may send for them.
    pub bytes: usize,
}

/// What a read of the intents stream returned.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// The entries in stream order; empty if none came within the time.
    Entries(Vec<RawEntry>),
    /// The reply exceeds the limit's bytes and the read was abandoned: ask for fewer entries.
    TooLarge,
}

/// The intents stream.
pub trait IntentStream: Send + Sync {
    /// Entries after `after`, within `limit`; waits up to `block` for the first, which may be no time at all.
    fn read(
        &self,
        after: EntryId,
        limit: ReadLimit,
        block: Duration,
    ) -> impl Future<Output = Result<Read, StoreError>> + Send;

    /// Closes the connection on which [`IntentStream::read`] waits; the next read opens another. For a
    /// connection to a server that no longer is the master.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;

    /// The first entry after `after`, which is too large to be read, with no more than the heads of its
    /// fields. It costs Redis a copy of the entry, so it is called once for an entry, and rarely if that
    /// fails.
    fn look_at_large(
        &self,
        after: EntryId,
    ) -> impl Future<Output = Result<Option<LargeEntry>, StoreError>> + Send;

    /// The id of the first entry after `after`, without waiting for one.
    fn first_after(&self, after: EntryId)
    -> impl Future<Output = Result<Option<EntryId>, StoreError>> + Send;

    /// The entries up to `last`, the newest first, within `limit`: fewer if they exceed its bytes. The flag
    /// says whether the stream has no more of them.
    fn list_newest(
        &self,
        last: EntryId,
        limit: ReadLimit,
    ) -> impl Future<Output = Result<(Vec<RawEntry>, bool), StoreError>> + Send;

    /// The server that has the stream.
    fn server(&self) -> impl Future<Output = Result<ServerId, StoreError>> + Send;

    /// The stream as a whole; `None` if there is no such key.
    fn inspect(&self) -> impl Future<Output = Result<Option<StreamState>, StoreError>> + Send;

    /// Removes entries with ids below `before`, in whole nodes of the stream only, and returns how many.
    fn trim(&self, before: EntryId) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// The intents stream as a producer sees it.
pub trait IntentProducer: Send + Sync {
    /// Appends an entry and returns its id. After [`StoreError::Unavailable`] the entry may be in the stream:
    /// to append it again is safe, because its idempotency key makes the second one a duplicate.
    fn append(&self, fields: &RawFields) -> impl Future<Output = Result<EntryId, StoreError>> + Send;
}
