//! The order of a page, and its start.
//!
//! A term is sorted by several expressions: the type of the value, and the value for each type that has an
//! order. If the filter allows only one type, one expression is enough, which can match an index.

use ambient::Timestamp;
use pg::bind;
use sea_query::{Expr, ExprTrait, Func, NullOrdering, Order, SelectStatement};

use super::{ReadPlan, Table, every, never};
use crate::StateError;
use crate::json::Json;
use crate::query::expressions::{IndexType, Path, bind_number, cut_as_indexed, number_as_indexed};
use crate::query::{Filter, Group, Operand, Query, SortName, SortTerm, SortValue, Test};

/// The key in byte order, even in a table that was created without that collation.
pub(crate) fn key_by_bytes() -> Expr {
    Expr::cust("(\"key\" COLLATE \"C\")")
}

/// The key in byte order, as an expression that no index has.
fn key_of_no_index() -> Expr {
    Expr::cust("((\"key\" || '') COLLATE \"C\")")
}

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

    fn column_name(&self) -> &'static str {
        match self.name {
            SortName::UpdatedAt => "updated_at",
            _ => "created_at",
        }
    }

    /// The column of a time. An index stores it unchanged, including values written by hand beyond the years
    /// 1 to 9999.
    fn column(&self) -> Expr {
        Expr::col(self.column_name())
    }

    /// The time of the document at which a page begins. Documents show the nearest representable time, and so
    /// does a cursor: if that is the first or the last one, the true time is read from the document.
    fn instant(&self, micros: i64, key: &str) -> Option<Expr> {
        let shown = bind::instant(Timestamp::from_micros(micros).ok()?);
        if ![Timestamp::MIN, Timestamp::MAX].iter().any(|limit| limit.as_micros() == micros) {
            return Some(shown);
        }
        let (column, table) = (self.column_name(), &self.table.name);
        let (min, max) = (bind::instant(Timestamp::MIN), bind::instant(Timestamp::MAX));
        let text = format!(
            "COALESCE((SELECT t.{column} FROM {table} AS t WHERE t.key = $1 AND NOT (t.{column} > $2 AND t.{column} < $3) LIMIT 1), $4)"
        );
        Some(Expr::cust_with_exprs(text, [bind::text(key), min, max, shown]))
    }

    /// The indexed expression of the member, if its type is fixed.
    fn indexed(&self) -> Option<Expr> {
        let (SortName::Member(member), Some(path)) = (self.name, self.path()) else { return None };
        let index_type = match self.shape {
            Shape::Text => IndexType::Text,
            Shape::Number => IndexType::Numeric,
            Shape::Constant | Shape::Any => return None,
        };
        self.table.is_indexed(member, index_type).then(|| path.indexed(index_type))
    }

    fn apply(&self, select: &mut SelectStatement) {
        let order = if self.descending { Order::Desc } else { Order::Asc };
        let Some(path) = self.path() else {
            select.order_by_expr(self.column(), order);
            return;
        };
        // With a fixed type no value is missing, and only the index's own order of NULLs can use the index.
        if let Some(indexed) = self.indexed() {
            select.order_by_expr(indexed, order.clone());
        }
        match self.shape {
            Shape::Constant => {}
            Shape::Text => drop(select.order_by_expr(path.string(), order)),
            Shape::Number => drop(select.order_by_expr(path.number(), order)),
            Shape::Any => {
                select.order_by_expr_with_nulls(rank(&path), order.clone(), NullOrdering::Last);
                for value in [path.string(), path.number(), path.boolean()] {
                    select.order_by_expr(value, order.clone());
                }
            }
        }
    }

    fn is_behind(&self, left: Expr, right: Expr) -> Expr {
        if self.descending { left.lt(right) } else { left.gt(right) }
    }

    /// The condition that holds for every row after the value or equal to it in this term: a range of the
    /// index in whose order the page is read.
    fn bound(&self, value: Option<&SortValue>, key: &str) -> Option<Expr> {
        let not_before =
            |left: Expr, right: Expr| if self.descending { left.lte(right) } else { left.gte(right) };
        match value? {
            SortValue::Micros(micros) => Some(not_before(self.column(), self.instant(*micros, key)?)),
            SortValue::String(text) if self.shape == Shape::Text => {
                Some(not_before(self.indexed()?, bind::text(cut_as_indexed(text))))
            }
            SortValue::Number(number) if self.shape == Shape::Number => {
                Some(not_before(self.indexed()?, bind_number(&number_as_indexed(number))))
            }
            _ => None,
        }
    }

    /// The conditions that a row is after this value in this term, and that it is equal to it.
    fn after_and_equal(&self, value: Option<&SortValue>, key: &str) -> (Expr, Expr) {
        let Some(path) = self.path() else {
            let bound = value.and_then(|value| match value {
                SortValue::Micros(micros) => self.instant(*micros, key),
                _ => None,
            });
            let Some(bound) = bound else { return (never(), never()) };
            return (self.is_behind(self.column(), bound.clone()), self.column().eq(bound));
        };
        let within = value.and_then(|value| exact(&path, value));
        match (self.shape, value) {
            (Shape::Constant, _) => (never(), Expr::cust("TRUE")),
            (Shape::Text, Some(SortValue::String(_))) | (Shape::Number, Some(SortValue::Number(_))) => {
                self.behind_and_equal(within)
            }
            (_, None) => (never(), path.value().is_null()),
            (_, Some(value)) => {
                let of_value = || Expr::val(rank_of(value)).cast_as("bigint");
                let same = || rank(&path).eq(of_value());
                let other = self.is_behind(rank(&path), of_value()).or(path.value().is_null());
                match within {
                    None => (other, same()),
                    within => {
                        let (behind, equal) = self.behind_and_equal(within);
                        (other.or(same().and(behind)), same().and(equal))
                    }
                }
            }
        }
    }

    fn behind_and_equal(&self, within: Option<(Expr, Expr)>) -> (Expr, Expr) {
        match within {
            Some((left, right)) => (self.is_behind(left.clone(), right.clone()), left.eq(right)),
            None => (never(), never()),
        }
    }
}

fn rank(path: &Path<'_>) -> Expr {
    let names = Expr::Constant(RANKS.into());
    Func::cust("strpos").arg(names).arg(Func::cust("jsonb_typeof").arg(path.value())).into()
}

/// The expression that checks the value's type, and the value's own.
fn exact(path: &Path<'_>, value: &SortValue) -> Option<(Expr, Expr)> {
    match value {
        SortValue::String(text) => Some((path.string(), bind::text(text))),
        SortValue::Number(number) => Some((path.number(), bind_number(number))),
        SortValue::Bool(value) => Some((path.boolean(), Expr::val(*value).cast_as("boolean"))),
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

/// Sorts by the key only, and starts after the key of the position.
pub(super) fn after_key(query: &Query, select: &mut SelectStatement) {
    let (_, key_descends) = query.terms();
    select.order_by_expr(key_by_bytes(), if key_descends { Order::Desc } else { Order::Asc });
    if let Some(position) = query.position() {
        let key = bind::text(position.key().as_str());
        select.and_where(if key_descends { key_by_bytes().lt(key) } else { key_by_bytes().gt(key) });
    }
}

/// Sorts, and starts after the position.
pub(super) fn apply(
    query: &Query,
    table: &Table,
    reading: ReadPlan,
    select: &mut SelectStatement,
) -> Result<(), StateError> {
    let (terms, key_descends) = query.terms();
    let terms: Vec<OrderTerm<'_>> =
        terms.iter().map(|term| OrderTerm::new(term, table, &query.filter)).collect();
    for term in &terms {
        term.apply(select);
    }
    let by_key = if reading == ReadPlan::Whole { key_of_no_index() } else { key_by_bytes() };
    select.order_by_expr(by_key, if key_descends { Order::Desc } else { Order::Asc });
    let Some(position) = query.position() else { return Ok(()) };
    let values = position.values()?;
    let key = bind::text(position.key().as_str());
    let key_is_behind = if key_descends { key_by_bytes().lt(key) } else { key_by_bytes().gt(key) };
    // From the last term to the first: after it, or equal to it and after the rest.
    let behind = terms.iter().zip(&values).rev().fold(key_is_behind, |rest, (term, value)| {
        let (after, equal) = term.after_and_equal(value.as_ref(), position.key().as_str());
        after.or(equal.and(rest))
    });
    let first = terms.iter().zip(&values).find(|(term, _)| term.shape != Shape::Constant);
    let bound = first.and_then(|(term, value)| term.bound(value.as_ref(), position.key().as_str()));
    select.and_where(every(bound.into_iter().chain([behind])));
    Ok(())
}

#[cfg(test)]
mod tests;
