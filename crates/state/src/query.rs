//! The query language: read from JSON, evaluated in memory, compiled to SQL. Both ways give the same rows in
//! the same order whatever the documents hold, and neither ever fails because of a document.
//!
//! A [`Filter`] knows nothing of where its names lead: [`Names`] says which there are, [`compile::Target`]
//! which SQL each stands for. So another table may be searched by the same language.

pub mod compile;
mod containment;
mod cursor;
mod evaluate;
pub mod expressions;
mod filter;
mod instant;
mod parse;
mod run;
mod sort;

pub use cursor::Position;
pub use filter::{
    Comparison, Condition, Filter, Group, MAX_CONDITIONS, MAX_CONTAINED_ELEMENTS, MAX_ELEMENTS,
    MAX_LOGIC_LEVELS, MAX_QUERY_VALUES, Operand, Test,
};
pub use instant::Instant;
pub use parse::{Members, NameKind, Names};
pub use sort::{MAX_SORT_TERMS, SortName, SortTerm, SortValue};

use crate::{Key, Prefix, StateError, Version};

/// The most documents of a page, and how many one has if the query does not say.
pub const MAX_PAGE: u32 = 10_000;

/// Which documents, in which order, and how many of them.
#[derive(Clone, Debug)]
pub struct Query {
    /// The beginning of their keys.
    pub prefix: Prefix,
    /// What must hold of their values.
    pub filter: Filter,
    /// The order. Where it leaves two documents equal, their keys ascend.
    pub sort: Vec<SortTerm>,
    /// The most documents of a page, 1 to [`MAX_PAGE`].
    pub limit: u32,
    /// How many are left out first.
    pub offset: u64,
    /// Only the number of documents is wanted.
    pub count: bool,
    /// The number of documents is wanted beside the page.
    pub matched: bool,
    /// After which document the page begins.
    position: Option<Position>,
    /// Of prefix, filter and order.
    fingerprint: [u8; 32],
}

impl Query {
    /// Reads a query. [`StateError::InvalidQuery`] says what is wrong, with its name, and where.
    pub fn parse(text: &[u8]) -> Result<Self, StateError> {
        parse::query(text)
    }

    /// After which document the page begins, if it is known: not before [`Query::with_row`] if
    /// [`Query::row_needed`].
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// The document that must be read before the query can be carried on: some of its values were too large
    /// for the cursor.
    pub fn row_needed(&self) -> Option<(&Key, Version)> {
        self.position.as_ref().and_then(Position::row_needed)
    }

    /// Takes from the document what the cursor lacks. [`StateError::InvalidQuery`] if it is not the same as
    /// when the cursor was made: where the next page begins is then not known.
    pub fn with_row(mut self, row: Option<&crate::Document>) -> Result<Self, StateError> {
        if let Some(position) = &mut self.position {
            position.complete(&self.sort, row)?;
        }
        Ok(self)
    }
}
