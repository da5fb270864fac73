//! An example intent of a type, as commands to copy and run.

use ambient::Timestamp;
use domain::catalog::{AudienceKind, NotificationType};
use serde_json::{Value, json};

/// The recipient in examples. It is a placeholder, because every directory has other users.
const USER: &str = "u-1";

/// An intent for an audience.
pub(super) struct Example {
    pub(super) audience: AudienceKind,
    pub(super) curl: String,
    pub(super) redis: String,
}

/// Builds an example for each audience of the type; none if no payload was found that its schema allows.
pub(super) fn of(known: &NotificationType, stream: &str, now: Timestamp) -> Vec<Example> {
    let (Some(payload), Some(producer)) = (known.example_payload(), known.producers().first()) else {
        return Vec::new();
    };
    let audiences = AudienceKind::ALL.into_iter().filter(|kind| known.channels(*kind).is_some());
    let of = |audience: AudienceKind| Example {
        audience,
        curl: curl(known.name(), audience, &payload, now),
        redis: redis(known.name(), producer, audience, &payload, stream, now),
    };
    audiences.map(of).collect()
}

fn key(name: &str, audience: AudienceKind, now: Timestamp) -> String {
    format!("{name}:{audience}:{}", now.as_millis())
}

fn curl(name: &str, audience: AudienceKind, payload: &Value, now: Timestamp) -> String {
    let mut body = json!({
        "notification_type": name,
        "audience_kind": audience.as_str(),
        "occurred_at_ms": now.as_millis(),
        "payload": payload,
    });
    if audience == AudienceKind::User {
        body["recipient_user_ids"] = json!([USER]);
    }
    let key = quoted(&format!("Idempotency-Key: {}", key(name, audience, now)));
    let body = quoted(&body.to_string());
    format!(
        "curl --fail-with-body \"$API_URL/v1/intents\" \\\n  -H \"Authorization: Bearer $TOKEN\" -H {key} \\\n  \
         -H 'Content-Type: application/json' \\\n  -d {body}"
    )
}

fn redis(
    name: &str,
    producer: &str,
    audience: AudienceKind,
    payload: &Value,
    stream: &str,
    now: Timestamp,
) -> String {
    let mut fields = vec![
        ("notification_type", name.to_owned()),
        ("producer", producer.to_owned()),
        ("audience_kind", audience.as_str().to_owned()),
    ];
    if audience == AudienceKind::User {
        fields.push(("recipient_user_ids_json", json!([USER]).to_string()));
    }
    fields.extend([
        // The key differs from that of the other command; otherwise this intent would be a duplicate.
        ("idempotency_key", format!("{}:stream", key(name, audience, now))),
        ("occurred_at_ms", now.as_millis().to_string()),
        ("payload_json", payload.to_string()),
    ]);
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("  {name} {}", quoted(value))).collect();
    format!("redis-cli -e -u \"$REDIS_URL\" XADD {} '*' \\\n{}", quoted(stream), fields.join(" \\\n"))
}

/// Quotes a text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_word_of_a_shell_whatever_it_holds() {
        assert_eq!(quoted("it's $HOME `x` \"y\""), "'it'\\''s $HOME `x` \"y\"'");
    }
}
