//! Builds pages for both ways of evaluation.

use super::Query;
use crate::store::fitting;
use crate::{Document, Page, StateError};

impl Query {
    /// One more row than a page has: it shows whether there is a next page.
    pub fn rows_to_read(&self) -> usize {
        self.limit as usize + 1
    }

    /// The page from these documents, of which [`Query::rows_to_read`] were requested. It ends early if their
    /// values together have more than [`crate::MAX_ANSWER_BYTES`], and has at least one document.
    pub fn page(&self, rows: Vec<Document>, matched: Option<u64>) -> Result<Page, StateError> {
        Ok(self.page_of(rows, false, matched))
    }

    /// As [`Query::page`]; `is_cut` means that there are more documents, which were not read.
    pub(crate) fn page_of(&self, mut rows: Vec<Document>, is_cut: bool, matched: Option<u64>) -> Page {
        let length = fitting(rows.iter()).max(1).min(self.limit as usize);
        let has_more = is_cut || rows.len() > length;
        rows.truncate(length);
        let last = rows.last().filter(|_| has_more);
        let next_cursor = last.map(|last| self.cursor_after(last));
        Page { rows, matched, next_cursor }
    }
}
