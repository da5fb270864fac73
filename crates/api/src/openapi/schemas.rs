//! The schemas of the document, and references to its parts.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The place of schemas in a document, as a JSON pointer.
const SCHEMAS: &str = "/components/schemas";

/// References to the headers of a response: these, and `X-Request-Id`.
pub(super) fn header_refs(names: &[&str]) -> Value {
    let all = ["X-Request-Id"].iter().chain(names);
    all.map(|name| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}))).collect()
}

/// A reference to a schema of the document.
pub(super) fn schema_ref(name: &str) -> Value {
    json!({"$ref": format!("#{SCHEMAS}/{name}")})
}

/// Joins the lines of descriptions, which come from comments of source files.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(join_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// Collects the schemas of types.
pub(super) struct Schemas {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let in_components = |settings: &mut SchemaSettings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        };
        Self {
            answers: SchemaSettings::draft2020_12().for_serialize().with(in_components).into_generator(),
            requests: SchemaSettings::draft2020_12().with(in_components).into_generator(),
        }
    }

    /// A reference to the schema of a serialised type.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().to_value()
    }

    /// A reference to the schema of a parsed type.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    pub(super) fn finish(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        all.values_mut().for_each(join_lines);
        all
    }
}
