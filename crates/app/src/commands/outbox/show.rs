//! Prints events.

use std::io::Write;

use ambient::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outbox::{EventDetail, StoredEvent};
use serde_json::{Value, json};

use crate::commands::operators::{Cell, Column, Style, print_rows, table};
use crate::commands::output::{print_json, print_line, printable};

/// A note that is shown with such events.
const MAY_BE_ON_STREAM: &str = "An event that is DEAD by `lease expired` may be on the stream all the same.";

/// Prints a list, as a table or as one JSON object a line.
pub(super) fn print_events(
    out: &mut impl Write,
    style: Style,
    events: &[StoredEvent],
    json: bool,
) -> anyhow::Result<()> {
    if json {
        return events.iter().try_for_each(|event| print_json(out, &event_json(event)));
    }
    if events.is_empty() {
        return print_line(out, "no event is DEAD");
    }
    let since =
        if events.iter().any(|event| event.status == "DELIVERED") { "DELIVERED" } else { "DEAD SINCE" };
    let row = |event: &StoredEvent| {
        [
            event.event_id.to_string().into(),
            printable(&event.event_type).into(),
            event.attempts.to_string().into(),
            event.updated_at.map_or_else(|| time(None).into(), Cell::time),
            printable(&event.last_error).into(),
        ]
    };
    let columns = [
        Column::new("EVENT_ID", 0),
        Column::new("TYPE", 3).at_least(12),
        Column::new("ATTEMPTS", 4),
        Column::new(since, 2),
        Column::new("LAST ERROR", 1).at_least(18),
    ];
    print_rows(out, style, &table(style, columns, events.iter().map(row)))?;
    match events.iter().any(StoredEvent::was_reaped) {
        true => print_line(out, &format!("\n{MAY_BE_ON_STREAM}")),
        false => Ok(()),
    }
}

/// Prints one event with everything it contains.
pub(super) fn print_detail(out: &mut impl Write, detail: &EventDetail, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(out, &detail_json(detail));
    }
    let event = &detail.event;
    let rows = [
        ("event_id", event.event_id.to_string()),
        ("event_type", printable(&event.event_type)),
        ("partition_key", printable(&event.partition_key)),
        ("status", printable(&event.status)),
        ("attempts", event.attempts.to_string()),
        ("last_error", printable(&event.last_error)),
        ("created_at", time(event.created_at)),
        ("available_at", time(event.available_at)),
        ("updated_at", time(event.updated_at)),
        ("headers", detail.headers.as_deref().map_or_else(too_large, printable)),
        ("payload", detail.payload.as_deref().map_or_else(too_large, payload_text)),
    ];
    print_rows(out, Style::PLAIN, &rows.map(|(name, value)| [name.into(), value.into()]))?;
    match event.was_reaped() {
        true => print_line(out, &format!("\n{MAY_BE_ON_STREAM}")),
        false => Ok(()),
    }
}

/// An event as JSON.
pub(super) fn event_json(event: &StoredEvent) -> Value {
    json!({
        "event_id": event.event_id.to_string(),
        "event_type": event.event_type,
        "partition_key": event.partition_key,
        "status": event.status,
        "attempts": event.attempts,
        "last_error": event.last_error,
        "may_be_on_stream": event.was_reaped(),
        "created_at": event.created_at.map(|at| at.to_string()),
        "available_at": event.available_at.map(|at| at.to_string()),
        "updated_at": event.updated_at.map(|at| at.to_string()),
        "payload_bytes": event.payload_bytes,
    })
}

/// An event as JSON with headers and payload. A payload that is not UTF-8 is in base64; one that is too large
/// is null.
fn detail_json(detail: &EventDetail) -> Value {
    let mut document = event_json(&detail.event);
    let headers = detail.headers.as_deref().and_then(|text| serde_json::from_str(text).ok());
    document["headers"] = headers.unwrap_or(Value::Null);
    document["payload"] = match detail.payload.as_deref() {
        None => Value::Null,
        Some(bytes) => match str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
        },
    };
    document
}

fn payload_text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => printable(text),
        Err(_) => format!("(not UTF-8, as base64) {}", STANDARD.encode(bytes)),
    }
}

fn too_large() -> String {
    "(more than 1 MiB, not shown)".to_owned()
}

fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "(no time)".to_owned(), |at| at.to_string())
}
