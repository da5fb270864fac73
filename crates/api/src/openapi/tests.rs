//! Checks that the document matches the code: its routes, its parser of intents, and the file under docs/.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use domain::intent::{BodyContext, IntentBody};
use domain::operations::Budgets;
use jsonschema::Validator;
use proptest::prelude::*;

use super::schemas::schema_ref;
use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

/// The document with the built-in catalogue and the default limits.
fn built_in() -> Value {
    document(&settings(Catalog::built_in()))
}

fn settings(catalog: Catalog) -> ApiSettings {
    ApiSettings {
        catalog: Arc::new(catalog),
        stream: "notification:intents".to_owned(),
        budgets: Budgets { push: 3, email: 7 },
        max_body_bytes: 1 << 20,
        max_batch_body_bytes: 8 << 20,
        batch_timeout: Duration::from_secs(9),
        version: env!("CARGO_PKG_VERSION"),
    }
}

#[test]
fn the_file_under_docs_is_the_document_of_the_code() {
    let expected = format!("{:#}\n", built_in());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, expected).expect("docs can be written");
    } else {
        let written = fs::read_to_string(PAGE).expect("docs/openapi.json");
        assert!(
            written == expected,
            "docs/openapi.json has drifted: UPDATE_DOCS=1 cargo test -p api writes it again"
        );
    }
}

/// The methods of each path.
type Methods = BTreeMap<String, BTreeSet<String>>;

/// The routes of the router, from its source: each is `.route("<path>", …get(…` or `…post(…`.
fn routed(source: &str) -> Methods {
    let mut all = Methods::new();
    for route in source.split(".route(\"").skip(1) {
        let (path, rest) = route.split_once('"').expect("a path ends");
        let line = rest.lines().next().unwrap_or_default();
        let methods = ["get", "post", "put", "patch", "delete"].into_iter();
        let methods = methods.filter(|method| line.contains(&format!("{method}("))).map(str::to_owned);
        all.insert(path.to_owned(), methods.collect());
    }
    all
}

#[test]
fn the_document_has_exactly_the_routes_of_the_router() {
    let document = built_in();
    let paths = document["paths"].as_object().expect("paths");
    let documented: Methods = paths
        .iter()
        .map(|(path, item)| (path.clone(), item.as_object().expect("an item").keys().cloned().collect()))
        .collect();
    let routed = routed(include_str!("../lib.rs"));
    assert!(routed.values().all(|methods| methods.len() == 1), "a method was not found: {routed:?}");
    assert_eq!(documented, routed);
}

/// A validator for a schema of the document.
fn validator(document: &Value, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::new(&schema).expect("it is a schema")
}

/// Collects every `content` of the document, with its path.
fn contents<'a>(value: &'a Value, place: &str, found: &mut Vec<(String, &'a Value)>) {
    for (name, member) in value.as_object().into_iter().flatten() {
        let place = format!("{place}/{name}");
        match name.as_str() {
            "content" => found.extend(
                member.as_object().into_iter().flatten().map(|(_, content)| (place.clone(), content)),
            ),
            "schemas" | "example" | "examples" => {}
            _ => contents(member, &place, found),
        }
    }
}

#[test]
fn every_example_is_of_its_schema_and_every_body_has_one() {
    let document = built_in();
    let mut found = Vec::new();
    contents(&document, "", &mut found);
    assert!(found.len() > 20, "contents are found");
    for (place, content) in found {
        let validator = validator(&document, &content["schema"]);
        let examples: Vec<&Value> =
            content["examples"].as_object().into_iter().flatten().map(|(_, it)| &it["value"]).collect();
        assert!(!examples.is_empty() || place.contains("openapi.json"), "{place} has no example");
        for example in examples {
            let errors: Vec<String> = validator.iter_errors(example).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{place}: {errors:?}: {example}");
        }
    }
}

#[test]
fn no_two_schemas_have_one_name() {
    let document = built_in();
    let mut schemas = Schemas::new();
    let catalog = Catalog::built_in();
    let settings = settings(catalog);
    paths::paths(&settings, &mut schemas);
    let parts = [schemas.finish(), problems::schemas(), intents::schemas(&settings.catalog)];
    let named: usize = parts.iter().map(serde_json::Map::len).sum();
    assert_eq!(document["components"]["schemas"].as_object().map(serde_json::Map::len), Some(named));
}

#[test]
fn every_schema_is_one_and_every_reference_leads_somewhere() {
    let document = built_in();
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        assert!(jsonschema::draft202012::meta::is_valid(schema), "{name}");
    }
    let text = document.to_string();
    for reference in text.split(r#""$ref":"#).skip(1).filter_map(|rest| rest.split('"').nth(1)) {
        let pointer = reference.strip_prefix('#').expect("within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

const CONTEXT: BodyContext<'_> = BodyContext { producer: "", idempotency_key: Some("k-1"), request_id: None };

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => "[a-z][a-z0-9. -]{0,20}[a-z0-9]".prop_map(Value::from),
        1 => Just(json!("")),
        1 => Just(json!(" a")),
        1 => Just(json!("a\u{85}")),
        1 => Just(json!("a\nb")),
        1 => (126_usize..=129).prop_map(|length| "x".repeat(length).into()),
        1 => (254_usize..=257).prop_map(|length| "x".repeat(length).into()),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    prop_oneof![
        text(),
        Just(Value::Null),
        Just(json!(true)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["u-1"])),
        Just(json!([1])),
        (-2_i64..3).prop_map(Value::from),
        Just(json!(253_402_300_799_999_i64)),
        Just(json!(253_402_300_800_000_i64)),
        Just(json!(1.5)),
        Just(json!("user")),
        Just(json!("admin_email")),
    ]
}

/// The members of a payload that satisfies the schema, in the way of the built-in types.
fn valid_payload(schema: &Value) -> Value {
    let properties = schema["properties"].as_object().expect("properties");
    let member = |schema: &Value| if schema["type"] == "integer" { json!(54) } else { json!("x") };
    properties.iter().map(|(name, schema)| (name.clone(), member(schema))).collect()
}

/// The index of a type, a flag for administrators, and the changes: the index of a member, a flag for the
/// payload, and the new value.
type Drawn = (usize, bool, Vec<(prop::sample::Index, bool, Option<Value>)>);

/// A valid intent of some type and audience, with up to two members of it or of its payload replaced, removed
/// or added.
fn bodies() -> impl Strategy<Value = Drawn> {
    let change = (any::<prop::sample::Index>(), any::<bool>(), prop::option::of(anything()));
    (0_usize..100, any::<bool>(), prop::collection::vec(change, 0..3))
}

fn changed(catalog: &Catalog, (at, admin, changes): Drawn) -> (String, Value) {
    let known = catalog.types().nth(at % catalog.types().count()).expect("a type");
    let has_user = known.channels(domain::catalog::AudienceKind::User).is_some();
    let has_admin = known.channels(domain::catalog::AudienceKind::AdminEmail).is_some();
    let mut body = json!({
        "notification_type": known.name(),
        "audience_kind": "admin_email",
        "occurred_at_ms": 1_775_121_700_000_i64,
        "payload": valid_payload(known.payload_schema()),
    });
    if has_user && !(has_admin && admin) {
        body["audience_kind"] = "user".into();
        body["recipient_user_ids"] = json!(["u-1", "u-2"]);
    }
    for (index, within, value) in changes {
        let members = match (within, body["payload"].is_object()) {
            (true, true) => body["payload"].as_object_mut(),
            _ => body.as_object_mut(),
        };
        let members = members.expect("an object");
        let names: Vec<String> = members
            .keys()
            .cloned()
            .chain(
                ["request_id", "trace_id", "recipient_user_ids", "idempotency_key", "colour"]
                    .map(str::to_owned),
            )
            .collect();
        let name = index.get(&names).clone();
        match value {
            Some(value) => drop(members.insert(name, value)),
            None => drop(members.remove(&name)),
        }
    }
    (known.producers()[0].clone(), body)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn the_schema_of_an_intent_takes_exactly_what_the_parser_takes(drawn in bodies()) {
        thread_local! {
            static CATALOG: Catalog = Catalog::built_in();
            static SCHEMA: Validator = validator(&built_in(), &schema_ref("Intent"));
        }
        let (producer, body) = CATALOG.with(|catalog| changed(catalog, drawn));
        let text = body.to_string();
        let context = BodyContext { producer: &producer, ..CONTEXT };
        let parsed = CATALOG.with(|catalog| IntentBody::parse(&text).expect("an object").decode(context, catalog));
        // The body does not determine who may send a type.
        let wrong_sender = parsed.as_ref().is_err_and(|refused| refused.code.as_str() == "producer_not_allowed");
        prop_assume!(!wrong_sender);
        let documented = SCHEMA.with(|schema| schema.is_valid(&body));
        prop_assert_eq!(documented, parsed.is_ok(), "{}: {:?}", text, parsed.err());
    }
}

#[test]
fn an_element_of_a_batch_needs_its_key_and_an_intent_has_none() {
    let document = built_in();
    let (element, intent) =
        (validator(&document, &schema_ref("BatchIntent")), validator(&document, &schema_ref("Intent")));
    let mut body = changed(&Catalog::built_in(), (0, false, Vec::new())).1;
    assert!(intent.is_valid(&body) && !element.is_valid(&body));
    body["idempotency_key"] = "k-1".into();
    assert!(!intent.is_valid(&body) && element.is_valid(&body));
    body["colour"] = "red".into();
    assert!(!intent.is_valid(&body) && !element.is_valid(&body));
}

#[test]
fn a_payload_whose_schema_refers_to_itself_is_resolved_within_it() {
    let text = r##"
[[type]]
name = "tree.grown"
producers = ["gardener"]
audiences.user = ["push"]

[type.payload]
type = "object"
properties.left = { "$ref" = "#" }
additionalProperties = false
"##;
    let catalog = Arc::new(Catalog::parse(text).expect("a catalogue"));
    let schemas = Value::Object(intents::schemas(&catalog));
    let document = json!({"components": {"schemas": schemas}});
    let payload = validator(&document, &schema_ref("payload.tree.grown"));
    assert!(payload.is_valid(&json!({"left": {"left": {}}})));
    assert!(!payload.is_valid(&json!({"left": {"right": {}}})));
}

#[test]
fn members_are_not_taken_for_words_of_a_schema() {
    let payload =
        |of: &str| json!({"properties": {"const": true, "type": {"type": of}}, "default": {"const": 1}});
    let mut text = payload("string");
    tell_types(&mut text);
    assert_eq!(text, payload("string"));
    let mut integers = json!([payload("integer"), {"const": 1}, {"const": true}, {"const": "a"}]);
    tell_types(&mut integers);
    assert_eq!(integers[0]["properties"]["type"], json!({"type": "integer", "format": "int64"}));
    assert_eq!(integers[1], json!({"const": 1, "type": "integer", "format": "int64"}));
    assert_eq!([&integers[2]["type"], &integers[3]["type"]], ["boolean", "string"]);
}
