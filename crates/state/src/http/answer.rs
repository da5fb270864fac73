//! Documents, keys and pages as JSON. Values are the database's text, so that numbers keep their digits.

use std::io::Write;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::preconditions::etag;
use crate::query::Query;
use crate::room::ReservedRoom;
use crate::{Document, KeyPage, Page, Version};

/// The approximate bytes of a row in addition to key and value.
const ROW_OVERHEAD_BYTES: usize = 160;

/// The response of a successful probe.
pub(super) fn ok() -> Response {
    "ok".into_response()
}

/// One document.
pub(super) fn document(document: &Document) -> Response {
    let mut body = Vec::with_capacity(document.value.as_str().len() + ROW_OVERHEAD_BYTES);
    write_document(&mut body, document);
    let mut response = json(body, document.value.held());
    response.headers_mut().insert(ETAG, etag(document.version));
    response
}

/// The response to `HEAD` for an existing document of this version.
pub(super) fn head(version: Version) -> Response {
    let mut response = json(Vec::new(), &ReservedRoom::default());
    response.headers_mut().insert(ETAG, etag(version));
    response
}

/// The response if the client already has this version.
pub(super) fn not_modified(version: Version) -> Response {
    empty(StatusCode::NOT_MODIFIED, Some(version))
}

/// The response to a write that was stored under this version.
pub(super) fn written(version: Version) -> Response {
    empty(StatusCode::NO_CONTENT, Some(version))
}

/// The response to a delete.
pub(super) fn deleted() -> Response {
    empty(StatusCode::NO_CONTENT, None)
}

/// The response with the keys of a list.
pub(super) fn keys(page: &KeyPage) -> Response {
    let mut body = b"{\"keys\":[".to_vec();
    for (index, key) in page.keys.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_string(&mut body, key.as_str());
    }
    body.extend_from_slice(b"],\"next_after\":");
    write_optional(&mut body, page.next_after.as_ref().map(crate::Key::as_str));
    body.push(b'}');
    json(body, &page.held)
}

/// The response with rows only.
pub(super) fn rows(rows: Vec<Document>) -> Response {
    let held = held_by(&rows);
    let mut body = write_rows(rows);
    body.push(b'}');
    json(body, &held)
}

/// The response with a page of a query. `total` is the length of the page, unless only the number was
/// requested.
pub(super) fn page(page: Page, query: &Query) -> Response {
    let Page { rows, matched, next_cursor } = page;
    let total = if query.count { matched.unwrap_or_default() } else { rows.len() as u64 };
    let held = held_by(&rows);
    let mut body = write_rows(rows);
    let numbers = format!(",\"total\":{total},\"has_more\":{},\"next_cursor\":", next_cursor.is_some());
    body.extend_from_slice(numbers.as_bytes());
    write_optional(&mut body, next_cursor.as_deref());
    if let Some(matched) = matched.filter(|_| query.matched) {
        body.extend_from_slice(format!(",\"matched\":{matched}").as_bytes());
    }
    body.push(b'}');
    json(body, &held)
}

fn empty(status: StatusCode, version: Option<Version>) -> Response {
    let mut response = status.into_response();
    if let Some(version) = version {
        response.headers_mut().insert(ETAG, etag(version));
    }
    response
}

/// The reserved room that counts all rows of a page.
fn held_by(rows: &[Document]) -> ReservedRoom {
    rows.first().map(|row| row.value.held().clone()).unwrap_or_default()
}

/// A body that keeps the room of its documents until it has been written.
struct HeldBody {
    body: Vec<u8>,
    _held: ReservedRoom,
}

impl AsRef<[u8]> for HeldBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn json(body: Vec<u8>, held: &ReservedRoom) -> Response {
    let body = Bytes::from_owner(HeldBody { body, _held: held.clone() });
    let mut response = Body::from(body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Writes `{"rows":[…]`, without the end. Each document is dropped after it is written.
fn write_rows(rows: Vec<Document>) -> Vec<u8> {
    let size = |row: &Document| row.value.as_str().len() + row.key.as_str().len() + ROW_OVERHEAD_BYTES;
    let mut body = Vec::with_capacity(rows.iter().map(size).sum::<usize>() + ROW_OVERHEAD_BYTES);
    body.extend_from_slice(b"{\"rows\":[");
    for (index, row) in rows.into_iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_document(&mut body, &row);
    }
    body.push(b']');
    body
}

fn write_document(body: &mut Vec<u8>, document: &Document) {
    body.extend_from_slice(b"{\"key\":");
    write_string(body, document.key.as_str());
    body.extend_from_slice(b",\"value\":");
    body.extend_from_slice(document.value.as_str().as_bytes());
    // Cannot fail: a vector accepts every write.
    write!(
        body,
        ",\"created_at\":\"{}\",\"updated_at\":\"{}\",\"version\":{}}}",
        document.created_at, document.updated_at, document.version.0
    )
    .expect("text in memory");
}

fn write_optional(body: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => write_string(body, text),
        None => body.extend_from_slice(b"null"),
    }
}

fn write_string(body: &mut Vec<u8>, text: &str) {
    // Cannot fail: text is valid in JSON, and a vector accepts every write.
    serde_json::to_writer(body, text).expect("text in memory");
}
