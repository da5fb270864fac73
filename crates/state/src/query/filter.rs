//! The conditions of a filter.

use std::sync::Arc;

use super::Instant;
use crate::json::{Json, Number};

/// The most conditions of a filter: each operator and each literal counts as one.
pub const MAX_CONDITIONS: usize = 64;
/// The most elements of all arrays in a filter's operands. PostgreSQL compares many of them with each element
/// of a document's arrays.
pub const MAX_ELEMENTS: usize = 1_000;
/// The most elements that PostgreSQL compares with a document in one step, which it cannot interrupt. Larger
/// operands are compared in several steps.
pub const MAX_CONTAINED_ELEMENTS: usize = 8;
/// The most values of a query, of any kind: each takes more memory than its text.
pub const MAX_QUERY_VALUES: usize = 10_000;
/// The maximum nesting of `$and`, `$or` and `$not`; the outermost one is level 1.
pub const MAX_LOGIC_LEVELS: usize = 8;

/// An object of the filter: all its conditions and groups must hold. An empty one always holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// The conditions on its own names.
    pub conditions: Vec<Condition>,
    /// The groups of further objects.
    pub groups: Vec<Group>,
}

/// Filters that are joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Group {
    /// All of them hold.
    And(Vec<Filter>),
    /// One of them holds.
    Or(Vec<Filter>),
    /// The filter does not hold.
    Not(Filter),
}

/// A test of the value of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The name.
    pub name: Arc<str>,
    /// The test.
    pub test: Test,
}

/// A test of a value. All but [`Test::Exists`] fail if the value is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
    /// The value is the same JSON.
    Equal(Json),
    /// The value is not the same JSON.
    NotEqual(Json),
    /// The value has the operand's type, and this order relative to it.
    Order(Comparison, Operand),
    /// The value is one of these.
    In(Vec<Json>),
    /// The value is none of these.
    NotIn(Vec<Json>),
    /// The value exists, or does not exist.
    Exists(bool),
    /// The value contains this, as defined by `jsonb`.
    Contains(Json),
    /// The value is a time before this one.
    Before(Instant),
    /// The value is a time after this one.
    After(Instant),
}

/// An order of two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
}

impl Comparison {
    /// Returns true if values in this order pass.
    pub fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
        }
    }
}

/// A value that has an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A string.
    String(String),
    /// A number.
    Number(Number),
}
