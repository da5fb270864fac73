//! Values of the domain as JSON: times in RFC 3339 with microseconds, `null` for what is absent.

use ambient::Timestamp;
use domain::explanation::explain;
use domain::query::{
    DeadLetter, Discarded, MalformedSummary, NotificationDetail, NotificationSummary, StoredMalformedIntent,
    StoredRoute,
};
use domain::route::Channel;
use serde_json::{Map, Value, json};

fn time(at: Timestamp) -> Value {
    at.to_string().into()
}

fn optional_time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, time)
}

/// JSON that PostgreSQL holds as text; as a string if another program wrote what is none.
fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// A notification, whole. Addresses are for operators; a producer knows its recipients by their ids.
pub(crate) fn notification(detail: &NotificationDetail, now: Timestamp, with_addresses: bool) -> Value {
    let NotificationDetail { record, updated_at, routes } = detail;
    let routes: Vec<Value> = routes.iter().map(|stored| route(stored, now, with_addresses)).collect();
    json!({
        "notification_id": record.notification_id.as_str(),
        "notification_type": record.content.notification_type,
        "producer": record.scope.producer,
        "audience_kind": record.audience_kind,
        "recipient_user_ids": record.recipient_user_ids,
        "payload": json_of(&record.content.payload_json),
        "idempotency_key": record.scope.key,
        "request_fingerprint": record.fingerprint,
        "request_id": record.content.request_id,
        "trace_id": record.content.trace_id,
        "occurred_at": time(record.content.occurred_at),
        "accepted_at": time(record.content.accepted_at),
        "updated_at": time(*updated_at),
        "idempotency_expires_at": time(record.idempotency_expires_at),
        "routes": routes,
    })
}

fn route(route: &StoredRoute, now: Timestamp, with_addresses: bool) -> Value {
    let names_address = route.channel == Channel::Email && route.recipient_ref.starts_with("email:");
    let recipient = |text: &str| match with_addresses || !names_address {
        true => Value::from(text),
        false => Value::Null,
    };
    json!({
        "route_id": recipient(&route.key.route_id),
        "channel": route.channel.as_str(),
        "recipient_ref": recipient(&route.recipient_ref),
        "status": route.status.as_str(),
        "attempt_count": route.attempt_count,
        "max_attempts": route.max_attempts,
        "next_attempt_at": optional_time(route.next_attempt_at),
        "resolved_email": if with_addresses { route.resolved_email.as_str().into() } else { Value::Null },
        "resolved_locale": route.resolved_locale,
        "last_error_classification": route.last_error_classification,
        "last_error_message": route.last_error_message,
        "last_error_at": optional_time(route.last_error_at),
        "created_at": time(route.created_at),
        "updated_at": time(route.updated_at),
        "published_at": optional_time(route.published_at),
        "dead_lettered_at": optional_time(route.dead_lettered_at),
        "skipped_at": optional_time(route.skipped_at),
        "published_entry_id": route.published_entry_id,
        "receipt": Value::Null,
        "explanation": explain(route, now),
    })
}

/// A notification in a list.
pub(crate) fn summary(summary: &NotificationSummary) -> Value {
    let routes: Map<String, Value> =
        summary.routes.iter().map(|(status, count)| (status.as_str().to_owned(), count.into())).collect();
    json!({
        "notification_id": summary.notification_id.as_str(),
        "notification_type": summary.notification_type,
        "producer": summary.producer,
        "audience_kind": summary.audience_kind,
        "idempotency_key": summary.idempotency_key,
        "accepted_at": time(summary.accepted_at),
        "occurred_at": time(summary.occurred_at),
        "routes": routes,
    })
}

/// A dead letter.
pub(crate) fn dead_letter(letter: &DeadLetter) -> Value {
    let discarded = letter.discarded.as_ref();
    let text =
        |part: fn(&Discarded) -> &str| discarded.map_or(Value::Null, |discarded| part(discarded).into());
    json!({
        "id": letter.key.to_string(),
        "notification_id": letter.key.notification_id.as_str(),
        "route_id": letter.key.route_id,
        "notification_type": letter.notification_type,
        "channel": letter.channel.as_str(),
        "recipient_ref": letter.recipient_ref,
        "final_attempt_count": letter.final_attempt_count,
        "max_attempts": letter.max_attempts,
        "failure_classification": letter.failure_classification,
        "failure_message": letter.failure_message,
        "recovery_hint": letter.recovery_hint,
        "created_at": time(letter.created_at),
        "discarded_at": optional_time(discarded.map(|discarded| discarded.at)),
        "discarded_by": text(|discarded| &discarded.by),
        "discard_reason": text(|discarded| &discarded.reason),
    })
}

/// A malformed intent in a list, without its raw fields.
pub(crate) fn malformed_summary(summary: &MalformedSummary) -> Map<String, Value> {
    let members = [
        ("stream", summary.key.stream.as_str().into()),
        ("stream_entry_id", summary.key.entry_id.as_str().into()),
        ("fields_fingerprint", summary.key.fields_fingerprint.as_str().into()),
        ("notification_type", summary.notification_type.as_str().into()),
        ("producer", summary.producer.as_str().into()),
        ("idempotency_key", summary.idempotency_key.as_str().into()),
        ("failure_code", summary.failure_code.as_str().into()),
        ("failure_message", summary.failure_message.as_str().into()),
        ("recorded_at", time(summary.recorded_at)),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A malformed intent, whole. Raw fields that are too large to be sent with the others are `null`.
pub(crate) fn malformed_intent(stored: &StoredMalformedIntent) -> Value {
    let mut members = malformed_summary(&stored.summary);
    let raw_fields = stored.raw_fields.as_deref().map_or(Value::Null, json_of);
    members.insert("raw_fields".to_owned(), raw_fields);
    Value::Object(members)
}
