//! JSON Schemas: the documents under docs/ are valid ones of their formats, and values are held against what they describe.

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn read_json(path: &str) -> Value {
    let path = Path::new(ROOT).join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is wrong with `value`, as `<place>: <rule>`.
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
