//! The interface of a store, and its results.

use crate::query::Query;
use crate::room::ReservedRoom;
use crate::{
    Delete, Document, DocumentMembers, Key, Patch, Prefix, StateError, Value, Version, VersionCondition,
    Write, WriteConditions,
};

/// The most bytes that the values of one response have together, as text, so that no request makes a process
/// hold a whole table. A page of a query ends earlier; [`Store::get_many`] fails with
/// [`StateError::TooLarge`].
pub const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The key with which a probe reads the table. It need not exist.
pub(crate) const PROBE_KEY: &str = "readyz";

/// The number of documents, from the first on, that fit into one response.
pub(crate) fn fitting<'a>(documents: impl Iterator<Item = &'a Document>) -> usize {
    let mut bytes = 0_usize;
    let fits = |document: &&Document| {
        bytes = bytes.saturating_add(document.value.as_str().len());
        bytes <= MAX_ANSWER_BYTES
    };
    documents.take_while(fits).count()
}

/// The documents, if they fit into one response.
pub(crate) fn if_fitting(documents: Vec<Document>) -> Result<Vec<Document>, StateError> {
    if fitting(documents.iter()) < documents.len() { Err(StateError::TooLarge) } else { Ok(documents) }
}

/// Keys of a list, ascending by their bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyPage {
    /// The keys, at most as many as requested.
    pub keys: Vec<Key>,
    /// The last key if there are more after it.
    pub next_after: Option<Key>,
    pub(crate) held: ReservedRoom,
}

impl KeyPage {
    /// A page of at most `limit` keys, made from up to one more key.
    pub(crate) fn of(mut keys: Vec<Key>, limit: u32) -> Self {
        let limit = limit as usize;
        let is_more = keys.len() > limit;
        keys.truncate(limit);
        Self { next_after: keys.last().filter(|_| is_more).cloned(), keys, held: ReservedRoom::default() }
    }
}

/// Documents of a query.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The documents in the order of the query.
    pub rows: Vec<Document>,
    /// The number of all matching documents, if the query requested it.
    pub matched: Option<u64>,
    /// The start of the next page; `None` at the end. Opaque to clients.
    pub next_cursor: Option<String>,
}

/// Documents under keys, shared by all processes that use the table.
///
/// Each write is one atomic step: of several writers with conditions on the same version or status one
/// succeeds.
pub trait Store: Send + Sync + 'static {
    /// Returns one document. [`StateError::DocumentTooLarge`] if it exceeds the limit for values. For a large
    /// document, a store may wait until others that it has read are dropped, and fail with
    /// [`StateError::NoRoom`].
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Document>, StateError>> + Send;

    /// Returns the version of a document and reads nothing else.
    fn get_version(&self, key: &Key) -> impl Future<Output = Result<Option<Version>, StateError>> + Send {
        async move { Ok(self.get(key).await?.map(|document| document.version)) }
    }

    /// Checks that documents can be read and written.
    fn check_ready(&self) -> impl Future<Output = Result<(), StateError>> + Send {
        async move { self.get_version(&Key::new(PROBE_KEY)?).await.map(drop) }
    }

    /// Returns the documents of the keys that exist, in the requested order; a repeated key counts once.
    /// [`StateError::TooLarge`] if their values have more than [`MAX_ANSWER_BYTES`] together.
    fn get_many(&self, keys: &[Key]) -> impl Future<Output = Result<Vec<Document>, StateError>> + Send;

    /// Returns the named members of the documents that exist, in the order of `keys`; a repeated key counts
    /// once. A member whose text has more than `max_bytes` is not read.
    fn get_members(
        &self,
        keys: &[Key],
        names: &[&str],
        max_bytes: usize,
    ) -> impl Future<Output = Result<Vec<DocumentMembers>, StateError>> + Send {
        async move {
            let documents = self.get_many(keys).await?;
            documents.iter().map(|document| DocumentMembers::of(document, names, max_bytes)).collect()
        }
    }

    /// Stores the value if the conditions hold: inserts it, or replaces the existing one.
    fn put(
        &self,
        key: &Key,
        value: &Value,
        conditions: &WriteConditions,
    ) -> impl Future<Output = Result<Write, StateError>> + Send;

    /// Merges `patch` into the existing value by RFC 7396.
    fn patch(
        &self,
        key: &Key,
        patch: &Value,
        conditions: &WriteConditions,
    ) -> impl Future<Output = Result<Patch, StateError>> + Send;

    /// Deletes the document.
    fn delete(
        &self,
        key: &Key,
        condition: VersionCondition,
    ) -> impl Future<Output = Result<Delete, StateError>> + Send;

    /// Returns at most `limit` keys that start with `prefix`, after `after`.
    fn list(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<KeyPage, StateError>> + Send;

    /// Returns the documents of a query. [`StateError::InvalidQuery`] if its cursor cannot be continued.
    fn query(&self, query: &Query) -> impl Future<Output = Result<Page, StateError>> + Send;
}
