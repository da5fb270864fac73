//! What is asked of a store, and what it answers.

use crate::query::Query;
use crate::room::Held;
use crate::{
    Delete, Document, Key, Members, Patch, Prefix, StateError, Value, Version, VersionCondition, Write,
    WriteConditions,
};

/// The most bytes that the values of one answer have together, as text, so that no request makes a process
/// hold all of a table. A page of a query ends earlier; [`Store::get_many`] fails with
/// [`StateError::TooLarge`].
pub const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The key by which a probe reads the table. It need not be there.
pub(crate) const PROBE_KEY: &str = "readyz";

/// How many of the documents, from the first on, fit into one answer.
pub(crate) fn fitting<'a>(documents: impl Iterator<Item = &'a Document>) -> usize {
    let mut bytes = 0_usize;
    let fits = |document: &&Document| {
        bytes = bytes.saturating_add(document.value.as_str().len());
        bytes <= MAX_ANSWER_BYTES
    };
    documents.take_while(fits).count()
}

/// The documents, if they fit into one answer.
pub(crate) fn if_fitting(documents: Vec<Document>) -> Result<Vec<Document>, StateError> {
    if fitting(documents.iter()) < documents.len() { Err(StateError::TooLarge) } else { Ok(documents) }
}

/// Keys of a list, ascending by their bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyPage {
    /// At most as many as were asked for.
    pub keys: Vec<Key>,
    /// The last of them if there are more after it.
    pub next_after: Option<Key>,
    pub(crate) held: Held,
}

impl KeyPage {
    /// A page of at most `limit` keys, of keys of which one more was read.
    pub(crate) fn of(mut keys: Vec<Key>, limit: u32) -> Self {
        let limit = limit as usize;
        let is_more = keys.len() > limit;
        keys.truncate(limit);
        Self { next_after: keys.last().filter(|_| is_more).cloned(), keys, held: Held::default() }
    }
}

/// Documents of a query.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// In the order of the query.
    pub rows: Vec<Document>,
    /// How many match in all, if the query asked for it.
    pub matched: Option<u64>,
    /// Where the next page begins; `None` at the end. Opaque to clients.
    pub next_cursor: Option<String>,
}

/// Documents under keys, shared by all processes that use the table.
///
/// Each write is one atomic step: of several writers with conditions on the same version or status one wins.
pub trait Store: Send + Sync + 'static {
    /// One document. [`StateError::DocumentTooLarge`] if it is one that could not be stored. A store may wait
    /// with a large one until others that it has read were dropped, and end with [`StateError::NoRoom`].
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Document>, StateError>> + Send;

    /// The version of a document, of which nothing else is read.
    fn get_version(&self, key: &Key) -> impl Future<Output = Result<Option<Version>, StateError>> + Send {
        async move { Ok(self.get(key).await?.map(|document| document.version)) }
    }

    /// Whether documents can be read and written.
    fn check_ready(&self) -> impl Future<Output = Result<(), StateError>> + Send {
        async move { self.get_version(&Key::new(PROBE_KEY)?).await.map(drop) }
    }

    /// The documents of those keys that exist, in the order asked; a key that is asked twice once.
    /// [`StateError::TooLarge`] if their values have more than [`MAX_ANSWER_BYTES`] together.
    fn get_many(&self, keys: &[Key]) -> impl Future<Output = Result<Vec<Document>, StateError>> + Send;

    /// The members of these names of those documents that exist, in the order of `keys`; a key that is asked
    /// twice once. A member whose text has more than `max_bytes` is not read.
    fn get_members(
        &self,
        keys: &[Key],
        names: &[&str],
        max_bytes: usize,
    ) -> impl Future<Output = Result<Vec<Members>, StateError>> + Send {
        async move {
            let documents = self.get_many(keys).await?;
            documents.iter().map(|document| Members::of(document, names, max_bytes)).collect()
        }
    }

    /// Stores the value if the conditions hold: inserts it, or replaces the one that is there.
    fn put(
        &self,
        key: &Key,
        value: &Value,
        conditions: &WriteConditions,
    ) -> impl Future<Output = Result<Write, StateError>> + Send;

    /// Merges `patch` into the value that is there by RFC 7396.
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

    /// At most `limit` keys that begin with `prefix`, after `after`.
    fn list(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<KeyPage, StateError>> + Send;

    /// The documents of a query. [`StateError::InvalidQuery`] if its cursor cannot be carried on.
    fn query(&self, query: &Query) -> impl Future<Output = Result<Page, StateError>> + Send;
}
