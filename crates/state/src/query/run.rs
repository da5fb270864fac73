//! Runs whole queries in memory, and builds pages for both ways of evaluation.

use super::{Query, SortValue};
use crate::store::fitting;
use crate::{Document, Page, StateError};

impl Query {
    /// Runs the query on all documents of a table.
    pub fn run<'a>(&self, documents: impl Iterator<Item = &'a Document>) -> Result<Page, StateError> {
        let mut row = None;
        let mut found: Vec<(Vec<Option<SortValue>>, &Document)> = Vec::new();
        for document in documents {
            if self.row_needed().is_some_and(|(key, _)| *key == document.key) {
                row = Some(document);
            }
            if self.prefix.is_of(&document.key) && self.filter.matches(&document.value.to_json()?) {
                found.push((self.sort_values(document), document));
            }
        }
        let matched = found.len() as u64;
        if self.count {
            return Ok(Page { rows: Vec::new(), matched: Some(matched), next_cursor: None });
        }
        let place = |found: &(Vec<Option<SortValue>>, &'a Document)| (found.0.clone(), found.1.key.clone());
        found.sort_by(|one, other| self.compare((&one.0, &one.1.key), (&other.0, &other.1.key)));
        let after = match self.clone().with_row(row)?.position() {
            Some(position) => Some((position.values()?, position.key().clone())),
            None => None,
        };
        let is_after = |candidate: &&(Vec<Option<SortValue>>, &'a Document)| match &after {
            Some((values, key)) => {
                let (found, found_key) = place(candidate);
                self.compare((&found, &found_key), (values, key)).is_gt()
            }
            None => true,
        };
        // No machine has more documents than such an offset: the page is empty.
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let rows = found.iter().filter(is_after).skip(offset).take(self.rows_to_read());
        self.page(rows.map(|(_, document)| (*document).clone()).collect(), self.matched.then_some(matched))
    }

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
