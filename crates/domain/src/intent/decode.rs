//! The rules of an entry, applied in order.

use ambient::Timestamp;
use serde_json::Value;

use super::envelope::{
    AUDIENCE_KIND, Envelope, IDEMPOTENCY_KEY, NOTIFICATION_TYPE, OCCURRED_AT_MS, PAYLOAD, PRODUCER,
    RECIPIENTS, REQUEST_ID, TRACE_ID,
};
use super::fingerprint::fingerprint;
use super::{
    Audience, Intent, MAX_IDENTIFIER, MAX_OCCURRED_AT_MS, MAX_PAYLOAD, MAX_RECIPIENT, MAX_RECIPIENTS,
};
use crate::catalog::{AudienceKind, Catalog, NotificationType};
use crate::entry::RawFields;
use crate::json;
use crate::malformed_intent::{FailureCode, Rejection, reject};

/// Decodes an entry, or returns the first rule that it breaks.
pub fn decode(fields: &RawFields, catalog: &Catalog) -> Result<Intent, Rejection> {
    decode_named(fields, |field| field, catalog)
}

/// Decodes an entry. Messages name its fields as `shown` returns them.
pub(super) fn decode_named(
    fields: &RawFields,
    shown: fn(&'static str) -> &'static str,
    catalog: &Catalog,
) -> Result<Intent, Rejection> {
    let envelope = Envelope::open(fields, shown)?;
    let known = notification_type(&envelope, catalog)?;
    let producer = producer(&envelope, known)?;
    let kind = audience_kind(&envelope, known)?;
    let recipients = recipients(&envelope, kind)?;
    let idempotency_key = identifier(&envelope, IDEMPOTENCY_KEY)?;
    let occurred_at = occurred_at(&envelope)?;
    let request_id = identifier(&envelope, REQUEST_ID)?;
    let trace_id = identifier(&envelope, TRACE_ID)?;
    let audience = audience(&envelope, kind, recipients)?;
    let payload = payload(&envelope, known)?;
    Ok(Intent {
        fingerprint: fingerprint(known.name(), producer, &audience, occurred_at, &payload),
        notification_type: known.name().to_owned(),
        producer: producer.to_owned(),
        audience,
        idempotency_key: idempotency_key.to_owned(),
        occurred_at,
        payload_json: json::canonical(&payload),
        request_id: request_id.to_owned(),
        trace_id: trace_id.to_owned(),
    })
}

fn notification_type<'c>(
    envelope: &Envelope<'_>,
    catalog: &'c Catalog,
) -> Result<&'c NotificationType, Rejection> {
    match catalog.get(envelope.text(NOTIFICATION_TYPE)) {
        Some(known) => Ok(known),
        None => {
            reject(FailureCode::UnknownNotificationType, "notification_type takes a type of the catalogue")
        }
    }
}

fn producer<'a>(envelope: &Envelope<'a>, known: &NotificationType) -> Result<&'a str, Rejection> {
    let producer = envelope.text(PRODUCER);
    match known.allows_producer(producer) {
        true => Ok(producer),
        false => {
            let takes = known.producers().join(", ");
            reject(FailureCode::ProducerNotAllowed, format!("producer of {} takes {takes}", known.name()))
        }
    }
}

fn audience_kind(envelope: &Envelope<'_>, known: &NotificationType) -> Result<AudienceKind, Rejection> {
    let allowed = AudienceKind::ALL.into_iter().filter(|kind| known.channels(*kind).is_some());
    let named = envelope.text(AUDIENCE_KIND);
    match allowed.clone().find(|kind| kind.as_str() == named) {
        Some(kind) => Ok(kind),
        None => {
            let takes: Vec<&str> = allowed.map(AudienceKind::as_str).collect();
            let message = format!("audience_kind of {} takes {}", known.name(), takes.join(" or "));
            reject(FailureCode::AudienceNotAllowed, message)
        }
    }
}

/// Returns the recipients as listed, each of an allowed length; none for administrators.
fn recipients(envelope: &Envelope<'_>, kind: AudienceKind) -> Result<Vec<String>, Rejection> {
    let refuse = |message: String| reject(FailureCode::InvalidRecipients, message);
    let name = (envelope.shown)(RECIPIENTS);
    let text = match (kind, envelope.get(RECIPIENTS)) {
        (AudienceKind::AdminEmail, None) => return Ok(Vec::new()),
        (AudienceKind::AdminEmail, Some(_)) => return refuse(format!("{name} is not for admin_email")),
        (AudienceKind::User, text) => text.unwrap_or_default(),
    };
    let items = match json::parse(text) {
        Ok(Value::Array(items)) => items,
        Ok(_) => return refuse(format!("{name} takes an array")),
        Err(error) => return refuse(format!("{name} is not strict JSON: {error}")),
    };
    if !(1..=MAX_RECIPIENTS).contains(&items.len()) {
        return refuse(format!("{name} has {} elements and takes 1 to {MAX_RECIPIENTS}", items.len()));
    }
    let mut users = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Value::String(user) if (1..=MAX_RECIPIENT).contains(&user.len()) => users.push(user),
            _ => return refuse(format!("{name} takes strings of 1 to {MAX_RECIPIENT} bytes")),
        }
    }
    Ok(users)
}

/// Returns the audience in normal form, after checking the characters of every recipient.
fn audience(
    envelope: &Envelope<'_>,
    kind: AudienceKind,
    mut recipients: Vec<String>,
) -> Result<Audience, Rejection> {
    if kind == AudienceKind::AdminEmail {
        return Ok(Audience::AdminEmail);
    }
    let name = format!("a recipient of {}", (envelope.shown)(RECIPIENTS));
    for recipient in &recipients {
        check_characters(&name, recipient)?;
    }
    recipients.sort_unstable();
    recipients.dedup();
    Ok(Audience::Users(recipients))
}

/// Returns the value of an identifier field. Empty if absent, which only an optional field can be at this
/// point.
fn identifier<'a>(envelope: &Envelope<'a>, name: &str) -> Result<&'a str, Rejection> {
    let value = envelope.text(name);
    if value.len() > MAX_IDENTIFIER {
        let message = format!("{name} has {} bytes and takes at most {MAX_IDENTIFIER}", value.len());
        return reject(FailureCode::InvalidField, message);
    }
    check_characters(name, value).map(|()| value)
}

fn check_characters(what: &str, identifier: &str) -> Result<(), Rejection> {
    if identifier.starts_with(char::is_whitespace) || identifier.ends_with(char::is_whitespace) {
        return reject(FailureCode::InvalidField, format!("{what} takes no white space at either end"));
    }
    match identifier.contains(char::is_control) {
        true => reject(FailureCode::InvalidField, format!("{what} takes no control characters")),
        false => Ok(()),
    }
}

fn occurred_at(envelope: &Envelope<'_>) -> Result<Timestamp, Rejection> {
    let digits =
        Some(envelope.text(OCCURRED_AT_MS)).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let millis = digits.and_then(|digits| digits.parse().ok()).filter(|millis| *millis <= MAX_OCCURRED_AT_MS);
    match millis.and_then(|millis| Timestamp::from_millis(millis).ok()) {
        Some(instant) => Ok(instant),
        None => {
            let message = format!(
                "{OCCURRED_AT_MS} takes Unix milliseconds in decimal digits, at most {MAX_OCCURRED_AT_MS}"
            );
            reject(FailureCode::InvalidField, message)
        }
    }
}

fn payload(envelope: &Envelope<'_>, known: &NotificationType) -> Result<Value, Rejection> {
    let refuse = |message: String| reject(FailureCode::InvalidPayloadJson, message);
    let (text, name) = (envelope.text(PAYLOAD), (envelope.shown)(PAYLOAD));
    if text.len() > MAX_PAYLOAD {
        return refuse(format!("{name} has {} bytes and takes at most {MAX_PAYLOAD}", text.len()));
    }
    let payload = match json::parse(text) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) => return refuse(format!("{name} takes an object")),
        Err(error) => return refuse(format!("{name} is not strict JSON: {error}")),
    };
    match known.check_payload(&payload) {
        Ok(()) => Ok(payload),
        Err(rule) => reject(FailureCode::PayloadSchemaViolation, format!("{name} {rule}")),
    }
}
