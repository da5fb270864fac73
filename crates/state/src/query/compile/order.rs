//! The order of a page, and its start.
//!
//! A term is sorted by several expressions: the type of the value, and the value for each type that has an
//! order. If the filter allows only one type, one expression is enough, which can match an index.

use ambient::Timestamp;
use pg::parameter::{self, Parameters};

use super::{FALSE, ReadPlan, TRUE, Table, every};
use crate::StateError;
use crate::json::Json;
use crate::query::expressions::{IndexType, Path, add_number, cut_as_indexed, number_as_indexed};
use crate::query::{Filter, Group, Operand, Query, SortName, SortTerm, SortValue, Test};

/// The key in byte order, even in a table that was created without that collation.
pub(super) const KEY_BY_BYTES: &str = "(\"key\" COLLATE \"C\")";

/// The key in byte order, as an expression that no index has.
const KEY_OF_NO_INDEX: &str = "((\"key\" || '') COLLATE \"C\")";

/// The types of JSON in their order: the position of a name in this text is its rank; no name is part of an
/// earlier one.
const RANKS: &str = "null string number boolean array object";

fn rank_of(value: &SortValue) -> i64 {
    let name = match value {
        SortValue::Null => "null",
        SortValue::String(_) => "string",
        SortValue::Number(_) => "number",
        SortValue::Bool(_) => "boolean",
        SortValue::Array => "array",
        SortValue::Object | SortValue::Micros(_) => "object",
    };
    // `strpos` counts from 1.
    RANKS.find(name).map_or(0, |at| at as i64 + 1)
}

/// The values that the filter allows for a sorted member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// One constant value: it does not affect the order.
    Constant,
    /// A string.
    Text,
    /// A number.
    Number,
    /// Any value.
    Any,
}

fn shape_of(json: &Json) -> Shape {
    match json {
        Json::String(_) => Shape::Text,
        Json::Number(_) => Shape::Number,
        _ => Shape::Any,
    }
}

impl Shape {
    fn of_test(test: &Test) -> Self {
        match test {
            Test::Equal(_) => Self::Constant,
            Test::Order(_, Operand::String(_)) | Test::Before(_) | Test::After(_) => Self::Text,
            Test::Order(_, Operand::Number(_)) => Self::Number,
            Test::In(operands) => match operands.split_first() {
                Some((first, rest)) if rest.iter().all(|operand| shape_of(operand) == shape_of(first)) => {
                    shape_of(first)
                }
                _ => Self::Any,
            },
            Test::NotEqual(_) | Test::NotIn(_) | Test::Exists(_) | Test::Contains(_) => Self::Any,
        }
    }

    /// The shape that all matching documents have in common.
    fn of_member(name: &str, filter: &Filter) -> Self {
        let own = filter.conditions.iter().filter(|condition| &*condition.name == name);
        let of_groups = filter.groups.iter().flat_map(|group| match group {
            Group::And(filters) => filters.iter().map(|filter| Self::of_member(name, filter)).collect(),
            // Two constants are not a common constant.
            Group::Or(filters) => {
                let mut shapes = filters.iter().map(|filter| Self::of_member(name, filter));
                let first = shapes.next().filter(|first| matches!(first, Self::Text | Self::Number));
                first.filter(|first| shapes.all(|shape| shape == *first)).into_iter().collect()
            }
            Group::Not(_) => Vec::new(),
        });
        let shapes: Vec<Self> =
            own.map(|condition| Self::of_test(&condition.test)).chain(of_groups).collect();
        [Self::Constant, Self::Text, Self::Number]
            .into_iter()
            .find(|shape| shapes.contains(shape))
            .unwrap_or(Self::Any)
    }
}

/// A sort term before the key.
struct OrderTerm<'a> {
    table: &'a Table,
    name: &'a SortName,
    descending: bool,
    shape: Shape,
}

impl<'a> OrderTerm<'a> {
    fn new(term: &'a SortTerm, table: &'a Table, filter: &Filter) -> Self {
        let shape = match &term.name {
            SortName::Member(member) => Shape::of_member(member.as_str(), filter),
            SortName::Key | SortName::CreatedAt | SortName::UpdatedAt => Shape::Any,
        };
        Self { table, name: &term.name, descending: term.descending, shape }
    }

    fn path(&self) -> Option<Path<'a>> {
        match self.name {
            SortName::Member(member) => Some(self.table.path(member)),
            _ => None,
        }
    }

    /// The column of a time. An index stores it unchanged, including values written by hand beyond the years
    /// 1 to 9999.
    fn column(&self) -> &'static str {
        match self.name {
            SortName::UpdatedAt => "updated_at",
            _ => "created_at",
        }
    }

    /// The time of the document at which a page begins. Documents show the nearest representable time, and so
    /// does a cursor: if that is the first or the last one, the true time is read from the document.
    fn instant(&self, micros: i64, key: &str, parameters: &mut Parameters) -> Option<String> {
        let mut add = |instant| parameters.add(parameter::instant(instant));
        let shown = add(Timestamp::from_micros(micros).ok()?);
        if ![Timestamp::MIN, Timestamp::MAX].iter().any(|limit| limit.as_micros() == micros) {
            return Some(shown);
        }
        let (column, table) = (self.column(), &self.table.name);
        let (min, max) = (add(Timestamp::MIN), add(Timestamp::MAX));
        let key = parameters.add(parameter::text(key));
        Some(format!(
            "COALESCE((SELECT t.{column} FROM {table} AS t WHERE t.key = {key} \
             AND NOT (t.{column} > {min} AND t.{column} < {max}) LIMIT 1), {shown})"
        ))
    }

    /// The indexed expression of the member, if its type is fixed.
    fn indexed(&self) -> Option<String> {
        let (SortName::Member(member), Some(path)) = (self.name, self.path()) else { return None };
        let index_type = match self.shape {
            Shape::Text => IndexType::Text,
            Shape::Number => IndexType::Numeric,
            Shape::Constant | Shape::Any => return None,
        };
        self.table.is_indexed(member, index_type).then(|| path.indexed(index_type))
    }

    /// The expressions that sort by this term, with their directions.
    fn order(&self) -> Vec<String> {
        let direction = direction(self.descending);
        let Some(path) = self.path() else { return vec![format!("{} {direction}", self.column())] };
        // With a fixed type no value is missing, and only the index's own order of NULLs can use the index.
        let mut order: Vec<String> =
            self.indexed().map(|indexed| format!("{indexed} {direction}")).into_iter().collect();
        let values = match self.shape {
            Shape::Constant => vec![],
            Shape::Text => vec![path.string()],
            Shape::Number => vec![path.number()],
            Shape::Any => {
                order.push(format!("{} {direction} NULLS LAST", rank(&path)));
                vec![path.string(), path.number(), path.boolean()]
            }
        };
        order.extend(values.into_iter().map(|value| format!("{value} {direction}")));
        order
    }

    fn behind(&self) -> &'static str {
        behind(self.descending)
    }

    /// The condition for the rows whose value in this term is `value` or comes after it: a range of the index
    /// in whose order the page is read.
    fn bound(&self, value: Option<&SortValue>, key: &str, parameters: &mut Parameters) -> Option<String> {
        let (left, right) = match value? {
            SortValue::Micros(micros) => (self.column().to_owned(), self.instant(*micros, key, parameters)?),
            SortValue::String(text) if self.shape == Shape::Text => {
                (self.indexed()?, parameters.add(parameter::text(cut_as_indexed(text))))
            }
            SortValue::Number(number) if self.shape == Shape::Number => {
                (self.indexed()?, add_number(parameters, &number_as_indexed(number)))
            }
            _ => return None,
        };
        Some(format!("{left} {}= {right}", self.behind()))
    }

    /// The conditions that a row is after this value in this term, and that it is equal to it.
    fn after_and_equal(
        &self,
        value: Option<&SortValue>,
        key: &str,
        parameters: &mut Parameters,
    ) -> (String, String) {
        let Some(path) = self.path() else {
            let bound = match value {
                Some(SortValue::Micros(micros)) => self.instant(*micros, key, parameters),
                _ => None,
            };
            return self.behind_and_equal(bound.map(|bound| (self.column().to_owned(), bound)));
        };
        // A parameter that the text does not use would have no type.
        if self.shape == Shape::Constant {
            return (FALSE.to_owned(), TRUE.to_owned());
        }
        let within = value.and_then(|value| exact(&path, value, parameters));
        match (self.shape, value) {
            (Shape::Text, Some(SortValue::String(_))) | (Shape::Number, Some(SortValue::Number(_))) => {
                self.behind_and_equal(within)
            }
            (_, None) => (FALSE.to_owned(), format!("{} IS NULL", path.value())),
            (_, Some(value)) => {
                let (rank, of_value) = (rank(&path), parameters.add(parameter::bigint(rank_of(value))));
                let same = format!("{rank} = {of_value}");
                let other = format!("{rank} {} {of_value} OR {} IS NULL", self.behind(), path.value());
                match within {
                    None => (format!("({other})"), same),
                    within => {
                        let (behind, equal) = self.behind_and_equal(within);
                        (format!("({other} OR ({same} AND {behind}))"), format!("({same} AND {equal})"))
                    }
                }
            }
        }
    }

    fn behind_and_equal(&self, within: Option<(String, String)>) -> (String, String) {
        match within {
            Some((left, right)) => (format!("{left} {} {right}", self.behind()), format!("{left} = {right}")),
            None => (FALSE.to_owned(), FALSE.to_owned()),
        }
    }
}

fn direction(descending: bool) -> &'static str {
    if descending { "DESC" } else { "ASC" }
}

/// The comparison of a row with the last one of the previous page.
fn behind(descending: bool) -> &'static str {
    if descending { "<" } else { ">" }
}

fn rank(path: &Path<'_>) -> String {
    format!("strpos('{RANKS}', jsonb_typeof({}))", path.value())
}

/// The expression that checks the value's type, and the value's own.
fn exact(path: &Path<'_>, value: &SortValue, parameters: &mut Parameters) -> Option<(String, String)> {
    match value {
        SortValue::String(text) => Some((path.string(), parameters.add(parameter::text(text)))),
        SortValue::Number(number) => Some((path.number(), add_number(parameters, number))),
        SortValue::Bool(value) => Some((path.boolean(), parameters.add(parameter::boolean(*value)))),
        SortValue::Null | SortValue::Array | SortValue::Object | SortValue::Micros(_) => None,
    }
}

/// Returns true if an index has the order of the page: the primary key, or a declared one.
pub(super) fn is_of_an_index(query: &Query, table: &Table) -> bool {
    let (terms, _) = query.terms();
    let mut terms = terms.iter().map(|term| OrderTerm::new(term, table, &query.filter));
    let first = terms.find(|term| term.shape != Shape::Constant);
    first.is_none_or(|term| term.indexed().is_some())
}

/// Returns true if the page is sorted by key only.
pub(super) fn is_by_key(query: &Query, table: &Table) -> bool {
    let (terms, _) = query.terms();
    terms.iter().all(|term| OrderTerm::new(term, table, &query.filter).shape == Shape::Constant)
}

/// The order by the key only.
pub(super) fn by_key(query: &Query) -> String {
    format!("{KEY_BY_BYTES} {}", direction(query.terms().1))
}

/// The condition that the key is after that of the position, if there is one.
pub(super) fn after_key(query: &Query, parameters: &mut Parameters) -> Option<String> {
    let position = query.position()?;
    let key = parameters.add(parameter::text(position.key().as_str()));
    Some(format!("{KEY_BY_BYTES} {} {key}", behind(query.terms().1)))
}

/// The order of a page.
pub(super) fn of_page(query: &Query, table: &Table, reading: ReadPlan) -> String {
    let (terms, key_descends) = query.terms();
    let terms = terms.iter().flat_map(|term| OrderTerm::new(term, table, &query.filter).order());
    let by_key = if reading == ReadPlan::Whole { KEY_OF_NO_INDEX } else { KEY_BY_BYTES };
    let by_key = format!("{by_key} {}", direction(key_descends));
    terms.chain([by_key]).collect::<Vec<_>>().join(", ")
}

/// The condition that a row is after the position, if there is one.
pub(super) fn after(
    query: &Query,
    table: &Table,
    parameters: &mut Parameters,
) -> Result<Option<String>, StateError> {
    let (terms, _) = query.terms();
    let terms: Vec<OrderTerm<'_>> =
        terms.iter().map(|term| OrderTerm::new(term, table, &query.filter)).collect();
    let (Some(position), Some(key_is_behind)) = (query.position(), after_key(query, parameters)) else {
        return Ok(None);
    };
    let (values, key) = (position.values()?, position.key().as_str());
    // From the last term to the first: after it, or equal to it and after the rest.
    let behind = terms.iter().zip(&values).rev().fold(key_is_behind, |rest, (term, value)| {
        let (after, equal) = term.after_and_equal(value.as_ref(), key, parameters);
        format!("({after} OR ({equal} AND {rest}))")
    });
    let first = terms.iter().zip(&values).find(|(term, _)| term.shape != Shape::Constant);
    let bound = first.and_then(|(term, value)| term.bound(value.as_ref(), key, parameters));
    Ok(Some(every(bound.into_iter().chain([behind]))))
}

#[cfg(test)]
mod tests;
