//! What a filter says.

use std::sync::Arc;

use super::Instant;
use crate::json::{Json, Number};

/// The most conditions of a filter: each operator and each literal is one.
pub const MAX_CONDITIONS: usize = 64;
/// The most elements that the arrays of a filter's operands have together. PostgreSQL compares many of them
/// with each element of a document's arrays.
pub const MAX_ELEMENTS: usize = 1_000;
/// The most elements that PostgreSQL compares with a document in one step, which it cannot interrupt. What
/// has more is compared in several steps.
pub const MAX_CONTAINED_ELEMENTS: usize = 8;
/// The most values of a query, of any kind: each takes more memory than its text.
pub const MAX_QUERY_VALUES: usize = 10_000;
/// How deep `$and`, `$or` and `$not` may nest; the outermost one is level 1.
pub const MAX_LOGIC_LEVELS: usize = 8;

/// An object of the filter: all its conditions and groups must hold. The empty one always does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// On its own names.
    pub conditions: Vec<Condition>,
    /// Further objects.
    pub groups: Vec<Group>,
}

/// Filters that are joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Group {
    /// All of them hold.
    And(Vec<Filter>),
    /// One of them holds.
    Or(Vec<Filter>),
    /// It does not hold.
    Not(Filter),
}

/// A test of what a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The name.
    pub name: Arc<str>,
    /// The test.
    pub test: Test,
}

/// What is asked of a value. All but [`Test::Exists`] fail if there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
    /// It is the same JSON.
    Equal(Json),
    /// It is not the same JSON.
    NotEqual(Json),
    /// It is of the operand's type, and in this order to it.
    Order(Comparison, Operand),
    /// It is one of these.
    In(Vec<Json>),
    /// It is none of these.
    NotIn(Vec<Json>),
    /// Whether there is one.
    Exists(bool),
    /// It contains this, as `jsonb` says.
    Contains(Json),
    /// It is a time before this one.
    Before(Instant),
    /// It is a time after this one.
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
    /// Whether values in this order pass.
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
