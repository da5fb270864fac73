//! The order of documents.

use std::cmp::Ordering;

use super::Query;
use super::expressions::Member;
use crate::Document;
use crate::json::{self, Json, Number};

/// The most names to sort by.
pub const MAX_SORT_TERMS: usize = 8;

/// What to sort by, and in which direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortTerm {
    /// What to sort by.
    pub name: SortName,
    /// The greatest first. What is missing is last in both directions.
    pub descending: bool,
}

/// What a document may be sorted by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SortName {
    /// Its key.
    Key,
    /// When its key was written first.
    CreatedAt,
    /// When it was written last.
    UpdatedAt,
    /// A member of its value.
    Member(Member),
}

/// A value by which a document is sorted, in the order of the variants.
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
    /// An array: all are equal.
    Array,
    /// An object: all are equal.
    Object,
    /// Microseconds since 1970, for the columns that are times.
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
    /// The names to sort by before the key, and whether the key descends.
    pub(super) fn terms(&self) -> (&[SortTerm], bool) {
        match self.sort.iter().position(|term| term.name == SortName::Key) {
            Some(at) => (&self.sort[..at], self.sort[at].descending),
            None => (&self.sort, false),
        }
    }

    /// By what a document is sorted: for each of the names before the key its value, or nothing.
    pub(super) fn sort_values(&self, document: &Document) -> Vec<Option<SortValue>> {
        values_of(self.terms().0, document)
    }

    /// The order of two documents of which the values and the keys are given.
    pub(super) fn compare(
        &self,
        one: (&[Option<SortValue>], &crate::Key),
        other: (&[Option<SortValue>], &crate::Key),
    ) -> Ordering {
        let (terms, key_descends) = self.terms();
        let by_values = terms.iter().zip(one.0.iter().zip(other.0)).map(|(term, pair)| match pair {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(one), Some(other)) if term.descending => other.cmp(one),
            (Some(one), Some(other)) => one.cmp(other),
        });
        let by_key = if key_descends { other.1.cmp(one.1) } else { one.1.cmp(other.1) };
        by_values.fold(Ordering::Equal, Ordering::then).then(by_key)
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
