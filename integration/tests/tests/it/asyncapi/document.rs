//! The AsyncAPI document: three channels, each with a message for every notification type that it carries.

use domain::catalog::{AudienceKind, Catalog, NotificationType};
use domain::intent::{MAX_ENTRY, MAX_IDENTIFIER, MAX_PAYLOAD, MAX_RECIPIENT, MAX_RECIPIENTS};
use domain::route::Channel;
use serde_json::{Map, Value, json};

use super::examples::{self, Entries};
use crate::world::{INTENTS, MAIL, PUSH};

/// A channel of the document.
struct Stream {
    /// Its name in the document.
    name: &'static str,
    address: &'static str,
    /// The variable that names the stream.
    variable: &'static str,
    description: String,
    operation: &'static str,
    /// The action from the service's side: `receive` or `send`.
    action: &'static str,
    /// The prefix of the names of its messages.
    prefix: &'static str,
    payload: fn(&NotificationType) -> Value,
    examples: fn(Entries) -> Vec<Value>,
}

fn streams() -> [Stream; 3] {
    [
        Stream {
            name: "intents",
            address: INTENTS,
            variable: "NOTIFICATION_INTENTS_STREAM",
            description: format!(
                "Producers append an entry for each intent. A field that is unknown or repeated, or an entry of more than {MAX_ENTRY} bytes, is \
                 malformed. The same producer and key with the same content is a duplicate, with another content a conflict."
            ),
            operation: "acceptIntents",
            action: "receive",
            prefix: "intent",
            payload: intent,
            examples: |entries| entries.intents,
        },
        Stream {
            name: "clientEvents",
            address: PUSH,
            variable: "NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM",
            description: "The service appends an entry for each push route, at least once. Deduplicate on `event_id`.".to_owned(),
            operation: "publishClientEvents",
            action: "send",
            prefix: "clientEvent",
            payload: client_event,
            examples: |entries| entries.client_events,
        },
        Stream {
            name: "deliveryCommands",
            address: MAIL,
            variable: "NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM",
            description: "The service appends an entry for each e-mail route, at least once. Deduplicate on `delivery_id`.".to_owned(),
            operation: "publishDeliveryCommands",
            action: "send",
            prefix: "deliveryCommand",
            payload: delivery_command,
            examples: |entries| entries.delivery_commands,
        },
    ]
}

/// The document for a catalogue.
pub(super) fn document(catalog: &Catalog) -> Value {
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for stream in streams() {
        let own = stream.messages(catalog);
        channels.insert(stream.name.to_owned(), stream.channel(&own));
        operations.insert(stream.operation.to_owned(), stream.operation(&own));
        messages.extend(own);
    }
    let payloads = catalog.types().map(|known| (payload_name(known), payload(known)));
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "notification",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The streams of the notification service, with the built-in catalogue. An entry of a stream is a list of names and values, all of them \
                text; a message is shown as an object of them. Where a value is JSON, `contentSchema` describes it.\n\nLengths are in bytes \
                of UTF-8, where this document counts characters.",
            "license": {"name": "Apache License 2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"redis": {
            "host": "{address}",
            "protocol": "redis",
            "description": "Streams of one Redis server; `rediss` with TLS.",
            "variables": {"address": {"description": "`NOTIFICATION_REDIS_MASTER_ADDR`", "default": "localhost:6379"}},
        }},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": payloads.collect::<Map<_, _>>()},
    })
}

impl Stream {
    /// A message for each type that the stream carries.
    fn messages(&self, catalog: &Catalog) -> Map<String, Value> {
        let mut all = Map::new();
        for known in catalog.types() {
            let mut examples = (self.examples)(examples::entries(catalog, known, true));
            examples.extend((self.examples)(examples::entries(catalog, known, false)).into_iter().take(1));
            if examples.is_empty() {
                continue;
            }
            let examples: Vec<Value> = examples.into_iter().map(|entry| json!({"payload": entry})).collect();
            let mut payload = (self.payload)(known);
            payload["title"] = title(known, self.prefix).into();
            all.insert(
                format!("{}.{}", self.prefix, known.name()),
                json!({"name": known.name(), "payload": payload, "examples": examples}),
            );
        }
        all
    }

    fn channel(&self, messages: &Map<String, Value>) -> Value {
        let references: Map<String, Value> = messages
            .keys()
            .map(|name| (name.clone(), json!({"$ref": format!("#/components/messages/{name}")})))
            .collect();
        json!({
            "address": self.address,
            "description": format!("{} Another name: `{}`.", self.description, self.variable),
            "messages": references,
        })
    }

    fn operation(&self, messages: &Map<String, Value>) -> Value {
        let references: Vec<Value> = messages
            .keys()
            .map(|name| json!({"$ref": format!("#/channels/{}/messages/{name}", self.name)}))
            .collect();
        json!({
            "action": self.action,
            "channel": {"$ref": format!("#/channels/{}", self.name)},
            "messages": references,
        })
    }
}

fn payload_name(known: &NotificationType) -> String {
    format!("payload.{}", known.name())
}

/// The schema of the catalogue, with additions for code generators: a title, and the size of integers.
fn payload(known: &NotificationType) -> Value {
    let mut schema = known.payload_schema().clone();
    schema["title"] = title(known, "payload").into();
    for (_, member) in schema["properties"].as_object_mut().into_iter().flatten() {
        if member["type"] == "integer" {
            member["format"] = "int64".into();
        }
    }
    schema
}

/// The name of the type in generated code: `GameTurnReadyPayload`.
fn title(known: &NotificationType, suffix: &str) -> String {
    let words = known.name().split(['.', '_']).chain([suffix]);
    words.map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect()
}

fn payload_ref(known: &NotificationType) -> Value {
    json!({"$ref": format!("#/components/schemas/{}", payload_name(known))})
}

/// An entry with these fields, the first `required` of which are always present.
fn entry(fields: Vec<(&str, Value)>, required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn text(about: &str) -> Value {
    json!({"type": "string", "minLength": 1, "description": about})
}

fn identifier(about: &str) -> Value {
    json!({"type": "string", "maxLength": MAX_IDENTIFIER, "description": about})
}

fn millis(about: &str) -> Value {
    json!({"type": "string", "pattern": "^[0-9]{1,15}$", "description": format!("{about} In Unix milliseconds, decimal digits.")})
}

fn constant(value: &str) -> Value {
    json!({"type": "string", "const": value})
}

fn json_text(about: &str, schema: Value) -> Value {
    json!({"type": "string", "description": about, "contentMediaType": "application/json", "contentSchema": schema})
}

fn intent(known: &NotificationType) -> Value {
    let kinds: Vec<&str> = AudienceKind::ALL
        .into_iter()
        .filter(|kind| known.channels(*kind).is_some())
        .map(AudienceKind::as_str)
        .collect();
    let users = json!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_RECIPIENTS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_RECIPIENT},
    });
    let mut fields = vec![
        ("notification_type", constant(known.name())),
        ("producer", json!({"title": title(known, "producer"), "type": "string", "enum": known.producers()})),
        ("audience_kind", json!({"title": title(known, "audienceKind"), "type": "string", "enum": kinds})),
        (
            "idempotency_key",
            json!({"type": "string", "minLength": 1, "maxLength": MAX_IDENTIFIER, "description": "Never used for another intent."}),
        ),
        ("occurred_at_ms", millis("When it happened.")),
        (
            "payload_json",
            json_text(&format!("At most {MAX_PAYLOAD} bytes, strict JSON."), payload_ref(known)),
        ),
        ("request_id", identifier("For observability only.")),
        ("trace_id", identifier("For observability only.")),
    ];
    let mut required = vec![
        "notification_type",
        "producer",
        "audience_kind",
        "idempotency_key",
        "occurred_at_ms",
        "payload_json",
    ];
    if known.channels(AudienceKind::User).is_some() {
        fields.push((
            "recipient_user_ids_json",
            json_text("Required with `user`, forbidden with `admin_email`.", users),
        ));
        if kinds.len() == 1 {
            required.push("recipient_user_ids_json");
        }
    }
    let mut entry = entry(fields, &required);
    if kinds.len() > 1 {
        entry["if"] = json!({"properties": {"audience_kind": constant(AudienceKind::User.as_str())}});
        entry["then"] = json!({"required": ["recipient_user_ids_json"]});
        entry["else"] = json!({"properties": {"recipient_user_ids_json": false}});
    }
    entry
}

/// The optional fields of both outbound entries.
fn ids() -> [(&'static str, Value); 2] {
    [("request_id", text("As the producer gave it.")), ("trace_id", text("As the producer gave it."))]
}

fn client_event(known: &NotificationType) -> Value {
    let mut fields = vec![
        ("event_id", text("`<notification_id>/<route_id>`: never changes for a route.")),
        ("event_type", constant(known.name())),
        ("user_id", text("The recipient.")),
        ("notification_id", text("The id of the notification.")),
        (
            "route_id",
            json!({"type": "string", "pattern": format!("^{}:user:.+", Channel::Push), "description": "`push:user:<user_id>`"}),
        ),
        ("payload_json", json_text("The payload of the intent, in normal form.", payload_ref(known))),
        ("occurred_at_ms", millis("When it happened.")),
        (
            "attempt",
            json!({"type": "string", "pattern": "^[1-9][0-9]*$", "description": "The number of the attempt, from 1."}),
        ),
    ];
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.extend(ids());
    entry(fields, &required)
}

fn delivery_command(known: &NotificationType) -> Value {
    let empty = json!({"type": "array", "items": {"type": "string"}, "maxItems": 0});
    let command = json!({
        "type": "object",
        "properties": {
            "to": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "minLength": 1}},
            "cc": empty,
            "bcc": empty,
            "reply_to": empty,
            "template_id": constant(known.name()),
            "locale": text("A language tag."),
            "variables": payload_ref(known),
            "attachments": empty,
        },
        "required": ["to", "cc", "bcc", "reply_to", "template_id", "locale", "variables", "attachments"],
        "additionalProperties": false,
    });
    let mut fields = vec![
        ("delivery_id", text("`<notification_id>/<route_id>`: never changes for a route.")),
        ("source", constant("notification")),
        ("payload_mode", constant("template")),
        (
            "idempotency_key",
            json!({"type": "string", "pattern": "^notification:.+", "description": "`notification:<delivery_id>`"}),
        ),
        ("requested_at_ms", millis("When the intent was accepted.")),
        ("payload_json", json_text("What to send to whom.", command)),
    ];
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.extend(ids());
    entry(fields, &required)
}
