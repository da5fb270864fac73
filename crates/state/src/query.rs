//! The query language: parsed from JSON, evaluated in memory, compiled to SQL. Both ways return the same rows
//! in the same order whatever the documents contain, and neither ever fails because of a document.
//!
//! A [`Filter`] does not depend on the table: [`Names`] defines the valid names, [`compile::FilterTarget`]
//! the SQL that each stands for. So other tables can be searched in the same language.

pub mod compile;
mod containment;
mod cursor;
#[cfg(feature = "memory")]
mod evaluate;
pub mod expressions;
mod filter;
mod instant;
mod parse;
mod run;
mod sort;

pub use cursor::CursorPosition;
pub use filter::{
    Comparison, Condition, Filter, Group, MAX_CONDITIONS, MAX_CONTAINED_ELEMENTS, MAX_ELEMENTS,
    MAX_LOGIC_LEVELS, MAX_QUERY_VALUES, Operand, Test,
};
pub use instant::Instant;
pub use parse::{MemberNames, NameKind, Names};
pub use sort::{MAX_SORT_TERMS, SortName, SortTerm, SortValue};

use crate::{Key, Prefix, StateError, Version};

/// The most documents of a page, and the default.
pub const MAX_PAGE: u32 = 10_000;

/// A query: the filter, the order and the number of documents.
#[derive(Clone, Debug)]
pub struct Query {
    /// The prefix of the documents' keys.
    pub prefix: Prefix,
    /// The condition on the documents' values.
    pub filter: Filter,
    /// The order. Documents that are equal in it are sorted by ascending key.
    pub sort: Vec<SortTerm>,
    /// The most documents of a page, 1 to [`MAX_PAGE`].
    pub limit: u32,
    /// The number of documents that are skipped first.
    pub offset: u64,
    /// True if only the number of documents is requested.
    pub count: bool,
    /// True if the number of documents is requested in addition to the page.
    pub matched: bool,
    /// The document after which the page begins.
    position: Option<CursorPosition>,
    /// The fingerprint of prefix, filter and order.
    fingerprint: [u8; 32],
}

impl Query {
    /// Parses a query. [`StateError::InvalidQuery`] contains the fault, its name and its place.
    pub fn parse(text: &[u8]) -> Result<Self, StateError> {
        parse::query(text)
    }

    /// The document after which the page begins, if known: if [`Query::row_needed`], not before
    /// [`Query::with_row`].
    pub fn position(&self) -> Option<&CursorPosition> {
        self.position.as_ref()
    }

    /// The document that must be read before the query can continue: some of its values were too large for
    /// the cursor.
    pub fn row_needed(&self) -> Option<(&Key, Version)> {
        self.position.as_ref().and_then(CursorPosition::row_needed)
    }

    /// Takes the values that the cursor lacks from the document. [`StateError::InvalidQuery`] if the document
    /// has changed since the cursor was made: the start of the next page is then unknown.
    pub fn with_row(mut self, row: Option<&crate::Document>) -> Result<Self, StateError> {
        if let Some(position) = &mut self.position {
            position.complete(&self.sort, row)?;
        }
        Ok(self)
    }
}
