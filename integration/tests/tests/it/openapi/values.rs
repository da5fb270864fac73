//! Values drawn from schemas, and the same values broken in one place.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value, json};

/// The maximum number of elements and members that are drawn beyond the required ones.
const FURTHER: usize = 3;

/// Draws a value of `schema`, whose references lead into `document`.
pub(crate) fn draw(document: &Value, schema: &Value, random: &mut StdRng) -> Value {
    let schema = expand(document, schema, random);
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        return names.choose(random).expect("an enumeration has a value").clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.choose(random).expect("a type").clone(),
        kind => kind.clone(),
    };
    match kind.as_str() {
        Some("null") => Value::Null,
        Some("boolean") => random.random::<bool>().into(),
        Some("integer") => integer(&schema, random).into(),
        Some("string") => text(&schema, random).into(),
        Some("array") => array(document, &schema, random),
        Some("object") => object(document, &schema, random),
        _ => panic!("no value of {schema:?}"),
    }
}

/// The schema without references and alternatives: these are drawn and merged into it.
fn expand(document: &Value, schema: &Value, random: &mut StdRng) -> Map<String, Value> {
    let mut merged = schema.as_object().expect("a schema is an object").clone();
    if let Some(reference) = merged.remove("$ref") {
        let pointer =
            reference.as_str().and_then(|text| text.strip_prefix('#')).expect("within the document");
        let target = document.pointer(pointer).expect("it leads somewhere");
        merge(&mut merged, expand(document, target, random));
    }
    for word in ["oneOf", "anyOf"] {
        let Some(Value::Array(choices)) = merged.remove(word) else { continue };
        let fitting: Vec<Map<String, Value>> = choices
            .iter()
            .map(|choice| expand(document, choice, random))
            .filter(|choice| {
                merged.get("type").is_none_or(|kind| choice.get("type").is_none_or(|of| of == kind))
            })
            .collect();
        merge(&mut merged, fitting.choose(random).expect("an alternative fits").clone());
    }
    merged
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        match (name.as_str(), into.get_mut(&name), value) {
            ("properties", Some(Value::Object(known)), Value::Object(further)) => {
                for (property, schema) in further {
                    let schema = schema.as_object().cloned().unwrap_or_default();
                    let known = known.entry(property).or_insert_with(|| json!({}));
                    merge(known.as_object_mut().expect("a schema"), schema);
                }
            }
            ("required", Some(Value::Array(known)), Value::Array(further)) => known.extend(further),
            (_, _, value) => drop(into.insert(name, value)),
        }
    }
}

fn integer(schema: &Map<String, Value>, random: &mut StdRng) -> i64 {
    let bound = |name: &str, otherwise: i64| schema.get(name).and_then(Value::as_i64).unwrap_or(otherwise);
    let (least, most) = (bound("minimum", -1_000), bound("maximum", 1_000));
    match random.random_range(0..4) {
        0 => least,
        1 => most,
        _ => random.random_range(least..=most),
    }
}

fn text(schema: &Map<String, Value>, random: &mut StdRng) -> String {
    if schema.get("format").is_some_and(|format| format == "date-time") {
        return format!(
            "20{:02}-0{}-1{}T09:21:40Z",
            random.random_range(20..40),
            random.random_range(1..10),
            random.random_range(0..10)
        );
    }
    let bound = |name: &str, otherwise: usize| {
        schema
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|bound| usize::try_from(bound).ok())
            .unwrap_or(otherwise)
    };
    let least = bound("minLength", 0);
    let most = bound("maxLength", least + 20);
    let length = match random.random_range(0..8) {
        0 => least,
        1 => most,
        _ => random.random_range(least..=most.min(least + 20)),
    };
    (0..length).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect()
}

fn array(document: &Value, schema: &Map<String, Value>, random: &mut StdRng) -> Value {
    let bound =
        |name: &str| schema.get(name).and_then(Value::as_u64).and_then(|bound| usize::try_from(bound).ok());
    let least = bound("minItems").unwrap_or(0);
    let most = bound("maxItems").unwrap_or(least + FURTHER).min(least + FURTHER);
    let items = schema.get("items").expect("an array has items");
    (0..random.random_range(least..=most)).map(|_| draw(document, items, random)).collect()
}

fn object(document: &Value, schema: &Map<String, Value>, random: &mut StdRng) -> Value {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut drawn = Map::new();
    for (name, property) in &properties {
        if required.contains(&name.as_str()) || random.random_bool(0.3) {
            drawn.insert(name.clone(), draw(document, property, random));
        }
    }
    Value::Object(drawn)
}

/// Every position in a value, as JSON pointers.
fn places(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                places(member, format!("{place}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                places(item, format!("{place}/{at}"), found);
            }
        }
        _ => {}
    }
    found.push(place);
}

/// Changes `value` in one place, and returns the place and the kind of change. It may still match its schema.
pub(crate) fn change(value: &mut Value, random: &mut StdRng) -> (String, &'static str) {
    let mut found = Vec::new();
    places(value, String::new(), &mut found);
    let place = found.choose(random).expect("the value itself is a place").clone();
    let at = value.pointer_mut(&place).expect("it was found there");
    let how = match random.random_range(0..4) {
        0 => remove_or_add(at, random),
        1 => out_of_bounds(at),
        _ => replace(at, random),
    };
    (place, how)
}

/// Replaces a value by a simple one of any type, or by null.
fn replace(at: &mut Value, random: &mut StdRng) -> &'static str {
    let others = [
        json!(null),
        json!(true),
        json!(7),
        json!(1.5),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!([null]),
        json!({"x": 1}),
    ];
    *at = others.choose(random).expect("there are some").clone();
    "replaced"
}

fn remove_or_add(at: &mut Value, random: &mut StdRng) -> &'static str {
    match at {
        Value::Object(members) if random.random::<bool>() && !members.is_empty() => {
            let names: Vec<String> = members.keys().cloned().collect();
            members.remove(names.choose(random).expect("there is one"));
            "a member removed"
        }
        Value::Object(members) => {
            members.insert("colour".to_owned(), json!("red"));
            "a member added"
        }
        Value::Array(items) => {
            items.clear();
            "emptied"
        }
        Value::String(text) => {
            text.push(' ');
            "white space added"
        }
        _ => replace(at, random),
    }
}

fn out_of_bounds(at: &mut Value) -> &'static str {
    match at {
        Value::String(text) => *text = "x".repeat(1_025),
        Value::Number(_) => *at = json!(-1),
        Value::Bool(_) => *at = json!(0),
        Value::Array(items) => {
            let item = items.first().cloned().unwrap_or(json!("x"));
            *items = vec![item; 1_001];
        }
        Value::Object(members) => {
            members.insert("x".repeat(300), json!(1));
        }
        Value::Null => *at = json!("\u{1}"),
    }
    "out of bounds"
}
