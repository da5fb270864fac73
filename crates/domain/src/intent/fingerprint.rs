//! What tells two intents under one idempotency key apart.

use ambient::Timestamp;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Audience;
use crate::json;

/// What is fingerprinted, its members in the order in which they are written. A change here is a new version
/// of the fingerprint: every key in use would become a conflict.
#[derive(Serialize)]
struct Fingerprinted<'a> {
    audience_kind: &'static str,
    notification_type: &'a str,
    occurred_at_ms: i64,
    payload: json::Canonical<'a>,
    producer: &'a str,
    recipients: &'a [String],
}

/// `v1:` and the lower-case hex SHA-256 of what the intent says. It leaves out the key and the two ids for
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
