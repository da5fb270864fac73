//! Parses filters.

use std::sync::Arc;

use super::located::{Located, LocatedKind, quoted};
use super::{NameKind, Names, bad_name};
use crate::json::{Fault, Json};
use crate::query::{
    Comparison, Condition, Filter, Group, Instant, MAX_CONDITIONS, MAX_CONTAINED_ELEMENTS, MAX_ELEMENTS,
    MAX_LOGIC_LEVELS, Operand, Test, containment,
};

/// Parses the outermost object of a filter.
pub(super) fn read(located: Located, names: &impl Names) -> Result<Filter, Fault> {
    let mut reader = FilterReader { names, conditions: 0, elements: 0 };
    match &located.kind {
        LocatedKind::Object(members) if members.is_empty() => Ok(Filter::default()),
        _ => reader.filter(located, "filter", 0),
    }
}

struct FilterReader<'a, N> {
    names: &'a N,
    conditions: usize,
    /// The number of elements of the operands' arrays so far.
    elements: usize,
}

impl<N: Names> FilterReader<'_, N> {
    /// Parses an object within `level` of `$and`, `$or` and `$not`, of which there are at most
    /// [`MAX_LOGIC_LEVELS`].
    fn filter(&mut self, located: Located, what: &str, level: usize) -> Result<Filter, Fault> {
        let mut filter = Filter::default();
        for (name, (at, value)) in located.into_members(what)? {
            if let "$and" | "$or" | "$not" = name.as_str() {
                if level == MAX_LOGIC_LEVELS {
                    let reason =
                        format!("nested more than {MAX_LOGIC_LEVELS} levels deep in $and, $or and $not");
                    return Err(Fault::new(at, reason));
                }
                filter.groups.push(self.group(&name, value, level + 1)?);
                continue;
            }
            if name.starts_with('$') {
                return Err(Fault::new(
                    at,
                    format!("unknown operator {} in the place of a name", quoted(&name)),
                ));
            }
            let kind = self.names.kind(&name).ok_or_else(|| bad_name(at, &name, self.names))?;
            self.condition(&mut filter, &name, kind, at, value)?;
        }
        Ok(filter)
    }

    fn group(&mut self, name: &str, value: Located, level: usize) -> Result<Group, Fault> {
        if name == "$not" {
            return Ok(Group::Not(self.filter(value, name, level)?));
        }
        let at = value.at;
        let elements = value.into_elements(name)?;
        if elements.is_empty() {
            return Err(Fault::new(at, format!("{name} is empty")));
        }
        let element = format!("an element of {name}");
        let filters = elements
            .into_iter()
            .map(|located| self.filter(located, &element, level))
            .collect::<Result<_, _>>()?;
        Ok(if name == "$and" { Group::And(filters) } else { Group::Or(filters) })
    }

    /// Parses the condition on a name: a literal, or operators.
    fn condition(
        &mut self,
        filter: &mut Filter,
        name: &str,
        kind: NameKind,
        at: usize,
        value: Located,
    ) -> Result<(), Fault> {
        let shared: Arc<str> = name.into();
        let has_operators = match &value.kind {
            LocatedKind::Object(members) => {
                members.is_empty() || members.keys().any(|key| key.starts_with('$'))
            }
            _ => false,
        };
        if !has_operators {
            self.count(at)?;
            self.check_kind(kind, name, "a literal", at)?;
            filter.conditions.push(Condition { name: shared, test: Test::Equal(self.operand(value)?) });
            return Ok(());
        }
        let what = format!("the object of operators of {}", quoted(name));
        for (operator, (at, operand)) in value.into_members(&what)? {
            self.count(at)?;
            let test = self.test(&operator, name, at, operand)?;
            if !matches!(test, Test::Before(_) | Test::After(_)) {
                self.check_kind(kind, name, &operator, at)?;
            }
            filter.conditions.push(Condition { name: Arc::clone(&shared), test });
        }
        Ok(())
    }

    fn count(&mut self, at: usize) -> Result<(), Fault> {
        self.conditions += 1;
        match self.conditions > MAX_CONDITIONS {
            true => Err(Fault::new(at, format!("more than {MAX_CONDITIONS} conditions"))),
            false => Ok(()),
        }
    }

    fn check_kind(&self, kind: NameKind, name: &str, what: &str, at: usize) -> Result<(), Fault> {
        match kind {
            NameKind::Json => Ok(()),
            NameKind::Time => {
                Err(Fault::new(at, format!("{} takes $before and $after, not {what}", quoted(name))))
            }
        }
    }

    fn test(&mut self, operator: &str, name: &str, at: usize, operand: Located) -> Result<Test, Fault> {
        let what = format!("{operator} of {}", quoted(name));
        Ok(match operator {
            "$eq" => Test::Equal(self.operand(operand)?),
            "$ne" => Test::NotEqual(self.operand(operand)?),
            "$gt" => Test::Order(Comparison::Greater, ordered(operand, &what)?),
            "$gte" => Test::Order(Comparison::GreaterOrEqual, ordered(operand, &what)?),
            "$lt" => Test::Order(Comparison::Less, ordered(operand, &what)?),
            "$lte" => Test::Order(Comparison::LessOrEqual, ordered(operand, &what)?),
            "$in" => Test::In(self.list(operand, &what)?),
            "$nin" => Test::NotIn(self.list(operand, &what)?),
            "$exists" => Test::Exists(operand.into_bool(&what)?),
            "$contains" => Test::Contains(self.contained(operand, &what)?),
            "$before" => Test::Before(instant(operand, &what)?),
            "$after" => Test::After(instant(operand, &what)?),
            _ => {
                let reason = match operator.starts_with('$') {
                    true => format!("unknown operator {} of {}", quoted(operator), quoted(name)),
                    false => {
                        format!("the member {} among the operators of {}", quoted(operator), quoted(name))
                    }
                };
                return Err(Fault::new(at, reason));
            }
        })
    }

    fn operand(&mut self, operand: Located) -> Result<Json, Fault> {
        let at = operand.at;
        let json = operand.into_json();
        self.elements += containment::elements(&json);
        match self.elements > MAX_ELEMENTS {
            true => Err(Fault::new(at, format!("arrays with more than {MAX_ELEMENTS} elements in all"))),
            false => Ok(json),
        }
    }

    fn list(&mut self, operand: Located, what: &str) -> Result<Vec<Json>, Fault> {
        let at = operand.at;
        let elements = operand.into_elements(what)?;
        match self.operand(Located { at, kind: LocatedKind::Array(elements) })? {
            Json::Array(elements) => Ok(elements),
            other => Ok(vec![other]),
        }
    }

    fn contained(&mut self, operand: Located, what: &str) -> Result<Json, Fault> {
        let at = operand.at;
        let json = self.operand(operand)?;
        match containment::steps(&json) {
            Some(_) => Ok(json),
            None => {
                let reason = format!(
                    "an array of {what} has an element whose own arrays have more than {MAX_CONTAINED_ELEMENTS} elements"
                );
                Err(Fault::new(at, reason))
            }
        }
    }
}

fn ordered(operand: Located, what: &str) -> Result<Operand, Fault> {
    match operand.kind {
        LocatedKind::Scalar(Json::String(text)) => Ok(Operand::String(text)),
        LocatedKind::Scalar(Json::Number(number)) => Ok(Operand::Number(number)),
        _ => Err(Fault::new(operand.at, format!("{what} must be a number or a string"))),
    }
}

fn instant(operand: Located, what: &str) -> Result<Instant, Fault> {
    let at = operand.at;
    let reason = format!("{what} must be a time such as 2026-04-02T09:21:40.123456Z");
    let text = operand.into_string(what).map_err(|_| Fault::new(at, reason.clone()))?;
    Instant::parse(&text).ok_or_else(|| Fault::new(at, reason))
}
