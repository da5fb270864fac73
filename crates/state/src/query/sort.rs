//! The order of documents.

use super::Query;
use super::expressions::Member;
use crate::Document;
use crate::json::{self, Json, Number};

/// The most sort terms of a query.
pub const MAX_SORT_TERMS: usize = 8;

/// A sort name and its direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortTerm {
    /// The name.
    pub name: SortName,
    /// True for descending order. Missing values are last in both directions.
    pub descending: bool,
}

/// The sortable names of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SortName {
    /// The document's key.
    Key,
    /// The time at which the key was first written.
    CreatedAt,
    /// The time of the last write.
    UpdatedAt,
    /// A member of the value.
    Member(Member),
}

/// A sort value of a document, ordered by the variants.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SortValue {
    /// `null`.
    Null,
    /// A string, by its bytes.
    String(String),
    /// A number.
    Number(Number),
    /// A boolean.
    Bool(bool),
    /// An array: all arrays are equal.
    Array,
    /// An object: all objects are equal.
    Object,
    /// Microseconds since 1970, for the time columns.
    Micros(i64),
}

impl SortValue {
    fn of(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::String(text) => Self::String(text.clone()),
            Json::Number(number) => Self::Number(number.clone()),
            Json::Bool(value) => Self::Bool(*value),
            Json::Array(_) => Self::Array,
            Json::Object(_) => Self::Object,
        }
    }
}

impl Query {
    /// The sort terms before the key, and true if the key descends.
    pub(super) fn terms(&self) -> (&[SortTerm], bool) {
        match self.sort.iter().position(|term| term.name == SortName::Key) {
            Some(at) => (&self.sort[..at], self.sort[at].descending),
            None => (&self.sort, false),
        }
    }

    /// The sort values of a document, one per sort name before the key; `None` if missing.
    pub(super) fn sort_values(&self, document: &Document) -> Vec<Option<SortValue>> {
        values_of(self.terms().0, document)
    }
}

pub(super) fn values_of(terms: &[SortTerm], document: &Document) -> Vec<Option<SortValue>> {
    let value = |term: &SortTerm| match &term.name {
        SortName::Key => None,
        SortName::CreatedAt => Some(SortValue::Micros(document.created_at.as_micros())),
        SortName::UpdatedAt => Some(SortValue::Micros(document.updated_at.as_micros())),
        SortName::Member(name) => json::member(document.value.as_str(), name.as_str())
            .map(|text| SortValue::of(&json::shallow(text))),
    };
    terms.iter().map(value).collect()
}
