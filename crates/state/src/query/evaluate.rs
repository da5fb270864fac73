//! Evaluation of filters in memory.

use super::{Condition, Filter, Group, Operand, Test, instant};
use crate::json::Json;

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
