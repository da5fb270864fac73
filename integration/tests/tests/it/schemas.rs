//! JSON Schemas: the documents under docs/ are valid in their formats, and values are compared with their
//! descriptions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::docs::{first_quoted, quoted, read, table};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn read_json(path: &str) -> Value {
    let path = Path::new(ROOT).join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The errors of `value`, as `<place>: <rule>`.
pub(crate) fn errors(validator: &Validator, value: &Value) -> Vec<String> {
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// A validator for `schema`, whose references lead to the `components` of `document`.
pub(crate) fn validator(document: &Value, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::new(&schema).expect("it is a schema")
}

fn meta_schema(name: &str) -> Validator {
    let schema = read_json(&format!("integration/tests/testdata/schemas/{name}"));
    jsonschema::validator_for(&schema).expect("it is a schema")
}

#[test]
fn the_openapi_document_is_valid_openapi() {
    let format = meta_schema("openapi-3.1.json");
    let mut document = read_json("docs/openapi.json");
    assert_eq!(errors(&format, &document), [""; 0]);
    document["paths"]["/v1/status"]["get"]["responses"]["200"]["description"] = Value::Null;
    assert!(!format.is_valid(&document), "an error is found");
}

#[test]
fn the_asyncapi_document_is_valid_asyncapi() {
    let format = meta_schema("asyncapi-3.0.json");
    let mut document = read_json("docs/asyncapi.json");
    assert_eq!(errors(&format, &document), [""; 0]);
    document["channels"]["intents"]["address"] = 1.into();
    assert!(!format.is_valid(&document), "an error is found");
}

/// The fault in the code that a client generator makes of an incomplete schema.
fn fault(schema: &Map<String, Value>) -> Option<&'static str> {
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => Vec::from_iter(kind.and_then(Value::as_str)),
    };
    let format = schema.get("format").and_then(Value::as_str);
    if kinds.contains(&"integer") && !matches!(format, Some("int32" | "int64")) {
        return Some("an integer of unknown size");
    }
    if kinds.contains(&"array") && !schema.contains_key("items") {
        return Some("an array of unknown items");
    }
    if kinds == ["null"] {
        return Some("a type without a value");
    }
    (schema.contains_key("const") && kinds.is_empty()).then_some("a constant of unknown type")
}

/// The faults of the schemas in `value`, with their places. `null` beside another alternative is not a fault.
fn faults(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(fault(members).map(|fault| format!("{place}: {fault}")));
            for (name, member) in members {
                let place = format!("{place}/{name}");
                match (name.as_str(), member) {
                    ("default" | "enum" | "example" | "examples", _) => {}
                    ("properties", Value::Object(schemas)) => {
                        schemas
                            .iter()
                            .for_each(|(name, schema)| faults(schema, &format!("{place}/{name}"), found));
                    }
                    ("anyOf" | "oneOf", Value::Array(all)) if all.len() > 1 => {
                        let others = all.iter().filter(|schema| **schema != json!({"type": "null"}));
                        others.for_each(|schema| faults(schema, &place, found));
                    }
                    _ => faults(member, &place, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| faults(item, place, found)),
        _ => {}
    }
}

#[test]
fn generators_of_clients_know_the_types_of_both_documents() {
    for page in ["docs/openapi.json", "docs/asyncapi.json"] {
        let mut found = Vec::new();
        faults(&read_json(page), "", &mut found);
        assert_eq!(found, [""; 0], "{page}");
    }
    for wrong in [
        json!({"type": "integer"}),
        json!({"type": ["integer", "null"], "format": "uint32"}),
        json!({"items": {"type": "array"}}),
        json!({"properties": {"type": {"type": "null"}}}),
        json!({"anyOf": [{"type": "null"}]}),
        json!({"oneOf": [{"const": "a"}, {"type": "null"}]}),
    ] {
        let mut found = Vec::new();
        faults(&wrong, "", &mut found);
        assert_eq!(found.len(), 1, "{wrong}: {found:?}");
    }
}

#[test]
fn every_payload_of_the_asyncapi_document_has_a_title_of_its_own() {
    let document = read_json("docs/asyncapi.json");
    let members = |name: &str| document["components"][name].as_object().expect("components").values();
    let payloads = members("schemas").chain(members("messages").map(|message| &message["payload"]));
    let titles: Vec<&str> = payloads.map(|payload| payload["title"].as_str().expect("a title")).collect();
    assert!(titles.contains(&"GameTurnReadyPayload"), "{titles:?}");
    assert_eq!(BTreeSet::from_iter(&titles).len(), titles.len(), "{titles:?}");
}

#[test]
fn the_page_for_producers_names_the_generators_as_they_are_tried() {
    let folder = "integration/tests/generators";
    let pinned = read(format!("{folder}/requirements.txt")) + &read(format!("{folder}/package.json"));
    let tried = read("integration/tests/tests/large/generators.rs");
    for row in table("docs/producers.md", "generators of clients") {
        let (tool, version) = (first_quoted(&row[0]), first_quoted(&row[1]));
        let [python, node] = [format!("{tool}=={version}\n"), format!("\"{tool}\": \"{version}\"")];
        assert!(pinned.contains(&python) || pinned.contains(&node), "{tool} {version}");
        let language = quoted(&row[0]).nth(1).map_or(tool.to_owned(), |name| format!("client(\"{name}\""));
        assert!(tried.contains(&language), "{language}");
        let mut options = quoted(&row[2]).filter(|option| option.contains('='));
        assert!(options.all(|option| tried.contains(option)), "{row:?}");
    }
}
