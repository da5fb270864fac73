//! Evaluation of filters and whole queries in memory.

use std::cmp::Ordering;

use super::{Condition, Filter, Group, Operand, Query, SortValue, Test, instant};
use crate::json::Json;
use crate::{Document, Key, Page, StateError};

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

    /// The order of two documents, from their sort values and keys.
    fn compare(&self, one: (&[Option<SortValue>], &Key), other: (&[Option<SortValue>], &Key)) -> Ordering {
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

impl Filter {
    /// Returns true if the document matches.
    pub fn matches(&self, document: &Json) -> bool {
        let condition = |condition: &Condition| condition.test.passes(document.get(&condition.name));
        self.conditions.iter().all(condition) && self.groups.iter().all(|group| group.matches(document))
    }
}

impl Group {
    fn matches(&self, document: &Json) -> bool {
        match self {
            Self::And(filters) => filters.iter().all(|filter| filter.matches(document)),
            Self::Or(filters) => filters.iter().any(|filter| filter.matches(document)),
            Self::Not(filter) => !filter.matches(document),
        }
    }
}

impl Test {
    /// Returns true if the value, or its absence, passes.
    pub fn passes(&self, value: Option<&Json>) -> bool {
        let Some(value) = value else { return matches!(self, Self::Exists(false)) };
        match self {
            Self::Equal(operand) => value == operand,
            Self::NotEqual(operand) => value != operand,
            Self::Order(comparison, Operand::String(operand)) => {
                value.as_str().is_some_and(|text| comparison.holds(text.cmp(operand)))
            }
            Self::Order(comparison, Operand::Number(operand)) => match value {
                Json::Number(number) => comparison.holds(number.cmp(operand)),
                _ => false,
            },
            Self::In(operands) => operands.contains(value),
            Self::NotIn(operands) => !operands.contains(value),
            Self::Exists(expected) => *expected,
            Self::Contains(operand) => contains_at_top(value, operand),
            Self::Before(time) => micros(value).is_some_and(|micros| micros < time.as_micros()),
            Self::After(time) => micros(value).is_some_and(|micros| micros > time.as_micros()),
        }
    }
}

fn micros(value: &Json) -> Option<i64> {
    value.as_str().and_then(instant::micros)
}

/// As `jsonb @>`: an array contains a scalar that is one of its elements, only at the top level.
fn contains_at_top(value: &Json, operand: &Json) -> bool {
    match (value, operand) {
        (Json::Array(elements), Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_)) => {
            elements.contains(operand)
        }
        _ => contains(value, operand),
    }
}

fn contains(value: &Json, operand: &Json) -> bool {
    match (value, operand) {
        (Json::Object(members), Json::Object(parts)) => {
            parts.iter().all(|(name, part)| members.get(name).is_some_and(|member| contains(member, part)))
        }
        (Json::Array(elements), Json::Array(parts)) => {
            parts.iter().all(|part| elements.iter().any(|element| contains(element, part)))
        }
        (value, operand) => value == operand,
    }
}
