//! Promises to producers and operators, tested from outside: the built-in catalogue, the fingerprint to the
//! byte, and properties of every possible entry.

mod catalogue;
mod fingerprint;
mod layers;
mod properties;

use domain::entry::RawFields;

/// A catalogue with one type whose payload is any object.
const OPEN: &str = r#"
[[type]]
name = "test.open"
producers = ["p", "q", 'p"q']
audiences.user = ["push"]
audiences.admin_email = ["email"]
payload = {}
"#;

/// An entry without its optional fields. Without recipients, it is for administrators.
fn entry(
    notification_type: &str,
    producer: &str,
    recipients: &str,
    occurred_at_ms: &str,
    payload: &str,
) -> RawFields {
    let kind = if recipients.is_empty() { "admin_email" } else { "user" };
    let mut fields = RawFields::from_iter([
        ("notification_type", notification_type),
        ("producer", producer),
        ("audience_kind", kind),
        ("idempotency_key", "key"),
        ("occurred_at_ms", occurred_at_ms),
        ("payload_json", payload),
    ]);
    if !recipients.is_empty() {
        fields.0.push(("recipient_user_ids_json".into(), recipients.into()));
    }
    fields
}
