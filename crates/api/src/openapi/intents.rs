//! Schemas of intents: one for each type of the catalogue, without other members.

use domain::catalog::{AudienceKind, Catalog, NotificationType};
use domain::intent::{MAX_IDENTIFIER, MAX_OCCURRED_AT_MS, MAX_PAYLOAD, MAX_RECIPIENT, MAX_RECIPIENTS};
use serde_json::{Map, Value, json};

use super::schemas::schema_ref;
use crate::view::MAX_INTENTS;

/// The pattern of text without control characters, and without white space at its ends. The ranges are those
/// of `\p{Cc}`, which not all engines support.
const IDENTIFIER: &str = concat!(
    r"^[^\s\u0000-\u001F\u007F-\u009F]",
    r"([^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F])?$"
);
/// The same pattern, or the empty string.
const OPTIONAL_IDENTIFIER: &str = concat!(
    r"^([^\s\u0000-\u001F\u007F-\u009F]",
    r"([^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F])?)?$"
);

/// The schemas for a body with intents.
pub(super) fn schemas(catalog: &Catalog) -> Map<String, Value> {
    let mut all = Map::new();
    for known in catalog.types() {
        all.insert(payload_name(known), payload(known));
        all.insert(intent_name(known), intent(known));
        all.insert(element_name(known), element(known));
    }
    let intent = "An intent. A member that is `null` is as if it were absent.";
    all.insert("Intent".to_owned(), one_of(catalog, intent_name, intent));
    let element = "An element of a batch: an intent with its idempotency key.";
    all.insert("BatchIntent".to_owned(), one_of(catalog, element_name, element));
    all.insert("Batch".to_owned(), batch());
    all
}

/// A schema with one alternative for each type, and no other members. The constant `notification_type`
/// distinguishes the alternatives; with a `discriminator` too, some generators write the member twice.
fn one_of(catalog: &Catalog, name: fn(&NotificationType) -> String, about: &str) -> Value {
    let types: Vec<Value> = catalog.types().map(|known| schema_ref(&name(known))).collect();
    json!({"description": about, "oneOf": types, "unevaluatedProperties": false})
}

fn batch() -> Value {
    json!({
        "description": "Intents, each of which is decided by itself. An object that is no valid intent does not make the batch invalid: \
            its result says so.",
        "type": "object",
        "required": ["intents"],
        "properties": {
            "intents": {"type": "array", "minItems": 1, "maxItems": MAX_INTENTS, "items": schema_ref("BatchIntent")},
        },
        "additionalProperties": false,
    })
}

fn intent_name(known: &NotificationType) -> String {
    format!("intent.{}", known.name())
}

fn element_name(known: &NotificationType) -> String {
    format!("batchIntent.{}", known.name())
}

fn payload_name(known: &NotificationType) -> String {
    format!("payload.{}", known.name())
}

/// The payload schema from the catalogue. A schema with references to its own parts gets an id, against which
/// the references are resolved.
fn payload(known: &NotificationType) -> Value {
    let mut schema = known.payload_schema().clone();
    let refers = schema.to_string().contains(r#""$ref":"#);
    if let Some(members) = schema.as_object_mut().filter(|members| refers && !members.contains_key("$id")) {
        members.insert("$id".to_owned(), format!("/schemas/{}", payload_name(known)).into());
    }
    schema
}

/// The schema of an intent of this type in a batch. Generators lose members beside a `oneOf` or a reference,
/// so it repeats the members of the intent.
fn element(known: &NotificationType) -> Value {
    let mut schema = intent(known);
    schema["properties"]["idempotency_key"] = json!({
        "description": "Chosen by the producer, who never uses it for another intent.",
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_IDENTIFIER,
        "pattern": IDENTIFIER,
    });
    if let Some(required) = schema["required"].as_array_mut() {
        required.push("idempotency_key".into());
    }
    schema
}

/// The members of an intent of this type. The schemas that refer to it refuse other members. Rules that
/// depend on the audience are expressed by `if`, which generators do not read: for them an intent is one
/// object.
fn intent(known: &NotificationType) -> Value {
    let kinds = AudienceKind::ALL.into_iter().filter(|kind| known.channels(*kind).is_some());
    let names: Vec<&str> = kinds.map(AudienceKind::as_str).collect();
    let identifier = |about: &str| json!({"description": about, "type": ["string", "null"], "maxLength": MAX_IDENTIFIER, "pattern": OPTIONAL_IDENTIFIER});
    let mut schema = json!({
        "description": format!("Sent by {}.", known.producers().join(", ")),
        "type": "object",
        "required": ["notification_type", "audience_kind", "occurred_at_ms", "payload"],
        "properties": {
            "notification_type": {"const": known.name()},
            "audience_kind": {"type": "string", "enum": names},
            "recipient_user_ids": {
                "description": format!(
                    "User ids, each of at most {MAX_RECIPIENT} bytes. Repeats count as one, but are counted. Required for `user`; absent or `null` \
                     for `admin_email`, whose addresses are configured."
                ),
                "type": ["array", "null"],
                "minItems": 1,
                "maxItems": MAX_RECIPIENTS,
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_RECIPIENT, "pattern": IDENTIFIER},
            },
            "occurred_at_ms": {
                "description": "When it happened, in Unix milliseconds. Written with digits only: neither `1.0` nor `1e3` is accepted.",
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_OCCURRED_AT_MS,
            },
            "payload": schema_ref(&payload_name(known)),
            "request_id": identifier("For observability only; `X-Request-Id` of the request counts if it is absent."),
            "trace_id": identifier("For observability only."),
        },
    });
    schema["properties"]["payload"]["description"] =
        format!("At most {MAX_PAYLOAD} bytes in normal form, 64 levels of strict JSON.").into();
    if known.channels(AudienceKind::AdminEmail).is_none() {
        schema["properties"]["recipient_user_ids"]["type"] = "array".into();
        schema["required"] =
            json!(["notification_type", "audience_kind", "recipient_user_ids", "occurred_at_ms", "payload"]);
    } else {
        let users = json!({"type": "array", "items": {"type": "string"}});
        schema["if"] = json!({"properties": {"audience_kind": {"const": AudienceKind::User.as_str()}}});
        schema["then"] =
            json!({"required": ["recipient_user_ids"], "properties": {"recipient_user_ids": users}});
        schema["else"] = json!({"properties": {"recipient_user_ids": {"not": users}}});
    }
    schema
}
