//! Builds an example value from a schema.
//!
//! The builder supports the keywords that payloads use. The caller checks the example against the compiled
//! schema, so an unsupported keyword can cost the example but never yields a wrong one.

use serde_json::{Map, Number, Value};

/// The nesting depth at which the search stops: a schema may refer to itself.
const MAX_DEPTH: usize = 16;
/// The most elements or characters that are generated to satisfy a minimum.
const MAX_PADDING: u64 = 1_000;

/// Returns an example of a value named `name`; `None` if none was found.
pub(super) fn of(schema: &Value, name: &str, depth: usize) -> Option<Value> {
    let schema = match schema {
        Value::Bool(true) => return Some(Value::from(name)),
        Value::Object(members) if depth < MAX_DEPTH => members,
        _ => return None,
    };
    if let Some(given) = given(schema) {
        return Some(given.clone());
    }
    for keyword in ["oneOf", "anyOf", "allOf"] {
        if let (Some(choices), None) = (schema.get(keyword).and_then(Value::as_array), schema.get("type")) {
            return choices.iter().find_map(|choice| of(choice, name, depth + 1));
        }
    }
    match type_of(schema)? {
        "object" => object(schema, depth),
        "array" => array(schema, name, depth),
        "string" => text(schema, name),
        "integer" => number(schema, 1),
        "number" => number(schema, 1),
        "boolean" => Some(Value::Bool(true)),
        "null" => Some(Value::Null),
        _ => None,
    }
}

/// Returns a value that the schema itself contains.
fn given(schema: &Map<String, Value>) -> Option<&Value> {
    let first =
        |keyword: &str| schema.get(keyword).and_then(Value::as_array).and_then(|values| values.first());
    first("examples").or(schema.get("const")).or(schema.get("default")).or_else(|| first("enum"))
}

/// Returns the first type that is not null, or the type that the other keywords imply.
fn type_of(schema: &Map<String, Value>) -> Option<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => Some(name),
        Some(Value::Array(names)) => {
            let names = || names.iter().filter_map(Value::as_str);
            names().find(|name| *name != "null").or_else(|| names().next())
        }
        _ if schema.contains_key("properties") => Some("object"),
        _ if schema.contains_key("items") => Some("array"),
        _ if schema.contains_key("minimum") || schema.contains_key("maximum") => Some("integer"),
        _ => Some("string"),
    }
}

/// An object with the required members, or with all described members if none is required.
fn object(schema: &Map<String, Value>, depth: usize) -> Option<Value> {
    let described = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let names: Vec<&str> = match (required, described) {
        (Some(required), _) if !required.is_empty() => required.iter().filter_map(Value::as_str).collect(),
        (_, Some(described)) => described.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let any = Value::Bool(true);
    let member = |name: &str| {
        let schema = described.and_then(|described| described.get(name)).unwrap_or(&any);
        Some((name.to_owned(), of(schema, name, depth + 1)?))
    };
    names.into_iter().map(member).collect::<Option<Map<_, _>>>().map(Value::Object)
}

fn array(schema: &Map<String, Value>, name: &str, depth: usize) -> Option<Value> {
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(1).min(MAX_PADDING);
    let any = Value::Bool(true);
    let items = schema.get("items").unwrap_or(&any);
    (0..least).map(|_| of(items, name, depth + 1)).collect::<Option<Vec<_>>>().map(Value::Array)
}

/// A text made from the member's name, the best hint of its content, cut or padded to the length bounds.
fn text(schema: &Map<String, Value>, name: &str) -> Option<Value> {
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let (least, most) = (bound("minLength").unwrap_or(0), bound("maxLength").unwrap_or(u64::MAX));
    let given = format!("{name}-1");
    let padding = usize::try_from(least.min(MAX_PADDING)).ok()?.saturating_sub(given.len());
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Some(given.chars().chain(std::iter::repeat_n('x', padding)).take(most).collect::<String>().into())
}

/// The number `preferred`, or the bound that it breaks, rounded up to the required multiple.
fn number(schema: &Map<String, Value>, preferred: i64) -> Option<Value> {
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_i64);
    let least = bound("minimum").or(bound("exclusiveMinimum").and_then(|least| least.checked_add(1)));
    let most = bound("maximum").or(bound("exclusiveMaximum").and_then(|most| most.checked_sub(1)));
    let number = preferred.max(least.unwrap_or(preferred)).min(most.unwrap_or(i64::MAX));
    let step = bound("multipleOf").filter(|step| *step > 0);
    let number =
        step.map_or(Some(number), |step| number.checked_add(step - 1).map(|sum| sum - sum.rem_euclid(step)));
    number.map(|number| Value::Number(Number::from(number)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalog::Catalog;

    #[test]
    fn every_built_in_type_has_an_example_that_its_schema_allows() {
        for known in Catalog::built_in().types() {
            let example = known.example_payload().unwrap_or_else(|| panic!("{} has none", known.name()));
            assert_eq!(known.check_payload(&example), Ok(()), "{}", known.name());
        }
    }

    #[test]
    fn an_example_keeps_the_bounds_of_each_keyword() {
        for (schema, expected) in [
            (json!({"type": "string"}), json!("n-1")),
            (json!({"type": "string", "minLength": 6}), json!("n-1xxx")),
            (json!({"type": "string", "maxLength": 1}), json!("n")),
            (json!({"type": "integer", "minimum": 10, "multipleOf": 4}), json!(12)),
            (json!({"type": "integer", "exclusiveMaximum": 0}), json!(-1)),
            (json!({"enum": ["a", "b"]}), json!("a")),
            (json!({"const": 7}), json!(7)),
            (json!({"type": "number", "examples": [1.5]}), json!(1.5)),
            (json!({"type": ["null", "boolean"]}), json!(true)),
            (json!({"type": "array", "minItems": 2, "items": {"type": "null"}}), json!([null, null])),
            (json!({"oneOf": [false, {"type": "integer"}]}), json!(1)),
            (
                json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {}}}),
                json!({"a": 1}),
            ),
            (json!({"properties": {"b": true}}), json!({"b": "b"})),
        ] {
            assert_eq!(of(&schema, "n", 0), Some(expected), "{schema}");
        }
    }

    #[test]
    fn a_schema_of_which_no_example_is_found_has_none() {
        let catalog = |payload: &str| {
            let text = format!(
                "[[type]]\nname = \"t\"\nproducers = [\"p\"]\naudiences.user = [\"push\"]\n[type.payload]\n{payload}"
            );
            Catalog::parse(&text).expect("a catalogue")
        };
        for payload in [
            "type = \"object\"\nrequired = [\"a\"]\nproperties.a = { type = \"string\", pattern = \"^[0-9]{4}$\" }",
            "type = \"object\"\nrequired = [\"a\"]\nproperties.a = { \"$ref\" = \"#\" }",
        ] {
            assert_eq!(catalog(payload).get("t").expect("it is there").example_payload(), None, "{payload}");
        }
    }
}
