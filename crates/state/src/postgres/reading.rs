//! Reads of documents that may be large: their bytes are counted before they are read.

use super::operation::{ManyRead, ReservedRead, StoreOperation, deadline_of};
use super::rows::{FoundRow, read_found};
use super::{MAX_READS, PostgresStore};
use crate::query::{Query, compile};
use crate::room::{MAX_UNCOUNTED_DOCUMENT, ReservedRoom};
use crate::{Document, Key, MAX_ANSWER_BYTES, Page, StateError, statements};

impl PostgresStore {
    /// The room, and the most bytes that a response takes of it.
    pub(super) fn counted(&self) -> ReservedRead<'_> {
        ReservedRead { room: &self.room, bytes: self.max_stored_bytes.max(MAX_ANSWER_BYTES), held: None }
    }

    /// Reads one document. A large one is read again after its bytes are reserved.
    pub(super) async fn read_one(&self, key: &Key) -> Result<Option<Document>, StateError> {
        let deadline = deadline_of(&self.pool);
        let (mut most, mut held) = (MAX_UNCOUNTED_DOCUMENT, ReservedRoom::default());
        for _ in 0..MAX_READS {
            let operation = StoreOperation::open(&self.pool, &self.table, "get a document", deadline).await?;
            let rows = operation.query(statements::get(&self.table, key, most)).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            match read_found(&self.table, row)? {
                FoundRow::Document(document) => {
                    operation.retire_after(document.value.as_str().len());
                    return Ok(Some(Document { value: document.value.within(&held), ..document }));
                }
                FoundRow::Larger { bytes, .. } if bytes <= self.max_stored_bytes => {
                    drop((operation, rows, std::mem::take(&mut held)));
                    (most, held) = (bytes, self.room.take(bytes, deadline).await?);
                }
                larger => return larger.document(self.max_stored_bytes).map(Some),
            }
        }
        Err(StateError::NoRoom)
    }

    /// Reads the page and the number of documents of a query.
    pub(super) async fn query_within(
        &self,
        operation: &StoreOperation<'_>,
        query: &Query,
        counted: &mut ReservedRead<'_>,
    ) -> Result<Option<Page>, StateError> {
        let is_counted = query.count || query.matched;
        let count = is_counted.then(|| statements::count(query, &self.target));
        let most = counted.held.as_ref().map_or(MAX_UNCOUNTED_DOCUMENT, |_| self.max_stored_bytes);
        let page = |reading| {
            (!query.count).then(|| statements::page(query, &self.target, (reading, most))).transpose()
        };
        let (first, second) = compile::readings(query, &self.target);
        let (mut counts, mut reading) = operation.query_snapshot(count, page(first)?, counted).await?;
        if let (Some(second), ManyRead::Read { found, is_whole: true }) = (second, &reading)
            && !query.count
            && found.len() < query.rows_to_read()
        {
            (counts, reading) = operation.query_snapshot(None, page(second)?, counted).await?;
        }
        let matched = counts.first().map(|row| self.column::<i64>(row, "count")).transpose()?;
        let matched = matched.map(i64::unsigned_abs);
        if query.count {
            return Ok(Some(Page { rows: Vec::new(), matched, next_cursor: None }));
        }
        let ManyRead::Read { found, .. } = reading else { return Ok(None) };
        let held = counted.held.clone().unwrap_or_default();
        let (mut documents, mut is_cut) = (Vec::new(), false);
        for found in found {
            match found {
                FoundRow::Document(document) => {
                    documents.push(Document { value: document.value.within(&held), ..document });
                }
                // The page ends before it, even if documents after it were read.
                FoundRow::Larger { .. } if !documents.is_empty() => {
                    is_cut = true;
                    break;
                }
                larger => drop(larger.document(self.max_stored_bytes)?),
            }
        }
        Ok(Some(query.page_of(documents, is_cut, matched)))
    }
}
