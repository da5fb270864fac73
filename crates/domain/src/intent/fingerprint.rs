//! The fingerprint that distinguishes two intents under one idempotency key.

use ambient::Timestamp;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Audience;
use crate::json;

/// The content of the fingerprint, with the members in the order in which they are hashed. A change here is a
/// new version of the fingerprint: every key in use would become a conflict.
#[derive(Serialize)]
struct Fingerprinted<'a> {
    audience_kind: &'static str,
    notification_type: &'a str,
    occurred_at_ms: i64,
    payload: json::Canonical<'a>,
    producer: &'a str,
    recipients: &'a [String],
}

/// Returns `v1:` and the lower-case hex SHA-256 of the intent's content, without the key and the two ids for
/// observability.
pub(super) fn fingerprint(
    notification_type: &str,
    producer: &str,
    audience: &Audience,
    occurred_at: Timestamp,
    payload: &Value,
) -> String {
    let text = json::to_text(&Fingerprinted {
        audience_kind: audience.kind().as_str(),
        notification_type,
        occurred_at_ms: occurred_at.as_millis(),
        payload: json::Canonical(payload),
        producer,
        recipients: audience.users(),
    });
    format!("v1:{}", hex::encode(Sha256::digest(text)))
}
