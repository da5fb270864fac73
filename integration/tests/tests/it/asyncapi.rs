//! docs/asyncapi.json describes the three streams correctly: it is generated from the catalogue, and its
//! examples by the encoders.
//!
//! `UPDATE_DOCS=1 cargo test -p integration-tests --test it asyncapi` writes it.

mod document;
mod examples;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use domain::catalog::Catalog;
use domain::intent::FIELDS;
use serde_json::{Value, json};

use crate::schemas::{errors, read_json, validator};
use examples::Entries;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/asyncapi.json");

#[test]
fn the_file_under_docs_is_the_document_of_the_code() {
    let expected = format!("{:#}\n", document::document(&Catalog::built_in()));
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, expected).expect("docs can be written");
    } else {
        let written = fs::read_to_string(Path::new(PAGE)).expect("docs/asyncapi.json");
        assert!(
            written == expected,
            "docs/asyncapi.json has drifted: UPDATE_DOCS=1 cargo test -p integration-tests --test it asyncapi writes it again"
        );
    }
}

/// The errors of an entry: in its fields, and in the JSON in them, which the field's `contentSchema`
/// describes.
fn entry_errors(document: &Value, message: &str, entry: &Value) -> Vec<String> {
    let payload = &document["components"]["messages"][message]["payload"];
    let mut found = errors(&validator(document, payload), entry);
    for (name, field) in payload["properties"].as_object().expect("fields") {
        if let (Some(schema), Some(text)) = (field.get("contentSchema"), entry[name].as_str()) {
            match serde_json::from_str(text) {
                Ok(content) => found.extend(errors(&validator(document, schema), &content)),
                Err(error) => found.push(format!("{name} is no JSON: {error}")),
            }
        }
    }
    found
}

#[test]
fn every_entry_that_an_encoder_writes_is_as_documented_and_every_field_is_written() {
    let document = read_json("docs/asyncapi.json");
    let catalog = Catalog::built_in();
    for known in catalog.types() {
        for with_ids in [true, false] {
            let Entries { intents, client_events, delivery_commands } =
                examples::entries(&catalog, known, with_ids);
            for (prefix, entries) in
                [("intent", intents), ("clientEvent", client_events), ("deliveryCommand", delivery_commands)]
            {
                let message = format!("{prefix}.{}", known.name());
                let documented = &document["components"]["messages"][&message];
                assert_eq!(documented.is_null(), entries.is_empty(), "{message}");
                let mut written = BTreeSet::new();
                for entry in &entries {
                    assert_eq!(entry_errors(&document, &message, entry), [""; 0], "{message}: {entry}");
                    written.extend(entry.as_object().expect("an object").keys().cloned());
                }
                let fields = documented["payload"]["properties"].as_object();
                let fields: BTreeSet<String> =
                    fields.into_iter().flatten().map(|(name, _)| name.clone()).collect();
                if with_ids {
                    assert_eq!(written, fields, "{message}");
                }
            }
        }
    }
}

#[test]
fn the_fields_of_an_intent_are_those_of_the_envelope() {
    let document = read_json("docs/asyncapi.json");
    for message in ["intent.game.turn.ready", "intent.lobby.application.submitted"] {
        let fields =
            document["components"]["messages"][message]["payload"]["properties"].as_object().expect("fields");
        let names: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(FIELDS), "{message}");
    }
}

#[test]
fn every_message_is_in_a_channel_and_every_example_is_of_its_message() {
    let document = read_json("docs/asyncapi.json");
    let channels = document["channels"].as_object().expect("channels");
    let listed: BTreeSet<&str> = channels
        .values()
        .flat_map(|channel| channel["messages"].as_object().expect("messages").keys().map(String::as_str))
        .collect();
    let messages = document["components"]["messages"].as_object().expect("messages");
    assert_eq!(listed, messages.keys().map(String::as_str).collect());
    for (name, message) in messages {
        let examples = message["examples"].as_array().expect("examples");
        assert!(!examples.is_empty(), "{name}");
        for example in examples {
            assert_eq!(entry_errors(&document, name, &example["payload"]), [""; 0], "{name}");
        }
    }
}

#[test]
fn an_entry_that_differs_from_the_document_is_found() {
    let document = read_json("docs/asyncapi.json");
    let message = "clientEvent.game.turn.ready";
    let entry = document["components"]["messages"][message]["examples"][0]["payload"].clone();
    let with = |field: &str, value: Value| {
        let mut entry = entry.clone();
        entry[field] = value;
        entry_errors(&document, message, &entry)
    };
    assert_eq!(with("attempt", json!("1")), [""; 0]);
    for (field, value) in [
        ("attempt", json!("0")),
        ("device_session_id", json!("d")),
        ("payload_json", json!(r#"{"game_id":1}"#)),
        ("event_type", json!("other")),
    ] {
        assert!(!with(field, value).is_empty(), "{field}");
    }
}
