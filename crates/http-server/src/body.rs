//! Request bodies: `application/json`, UTF-8, not compressed, of a bounded size.
//!
//! The extractors read the body when the handler requests it, after the token was checked, and check it in
//! the order 415, 413, 400. Its bytes count against the listener's budget until the response is written.

use std::fmt;
use std::panic::resume_unwind;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use http_body_util::BodyExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::exchange::{Exchange, Occupied};
use crate::problem::{BAD_REQUEST, BODY_TOO_LARGE, Problem, UNSUPPORTED_MEDIA_TYPE};

/// The largest body without a listener and without a [`BodyLimit`], in bytes.
const DEFAULT_MAX_BODY_BYTES: usize = 1024 * 1024;

/// The longest text that is parsed on the thread that serves connections, in bytes.
const MAX_PARSED_AT_ONCE_BYTES: usize = 256 * 1024;

/// The most such longer texts that are parsed at a time.
const MAX_LONG_PARSES: usize = 2;

/// The minimum by which the buffer of a body of unknown length grows, in bytes.
const MIN_GROWTH: usize = 4 * 1024;

/// The largest body of a route, in bytes, where it differs from the listener's:
/// `post(batch).layer(axum::Extension(BodyLimit(8 << 20)))`.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimit(pub usize);

/// The unparsed text of a JSON body: for a handler with its own parser.
#[derive(Debug, Clone)]
pub struct JsonText(pub String);

/// A JSON body parsed as a `T`, which must be a struct: the body must be an object. Unknown members are
/// rejected if `T` denies them (`#[serde(deny_unknown_fields)]`), duplicate members always. For members that
/// are structs see [`Object`].
#[derive(Debug, Clone)]
pub struct JsonBody<T>(pub T);

/// A struct that is deserialized only from a JSON object. Serde would also accept an array, member by member.
#[derive(Debug, Clone)]
pub struct Object<T>(pub T);

impl<S: Sync> FromRequest<S> for JsonText {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (head, body) = request.into_parts();
        check_media_type(&head.headers)?;
        let bytes = read_body(&head, body).await?;
        let text = String::from_utf8(bytes);
        text.map(Self).map_err(|_| Problem::new(BAD_REQUEST, "The body is not UTF-8."))
    }
}

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let JsonText(text) = JsonText::from_request(request, state).await?;
        let parsed: Result<Object<T>, _> = serde_json::from_str(&text);
        let invalid = |error| Problem::new(BAD_REQUEST, format!("The body is not as expected: {error}."));
        parsed.map(|Object(body)| Self(body)).map_err(invalid)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FromMap<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FromMap<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(FromMap(std::marker::PhantomData)).map(Self)
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let refuse = |detail| Err(Problem::new(UNSUPPORTED_MEDIA_TYPE, detail));
    if is_compressed(headers) {
        refuse("The body must not be compressed.")
    } else if !has_media_type(headers, "application/json") {
        refuse("The body must be application/json in UTF-8.")
    } else {
        Ok(())
    }
}

/// Returns true if there is a `Content-Encoding` other than `identity`.
pub fn is_compressed(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Returns true if there is one `Content-Type`, equal to `expected` and with no parameter except
/// `charset=utf-8`.
pub fn has_media_type(headers: &HeaderMap, expected: &str) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (given, further) = (types.next().and_then(|value| value.to_str().ok()), types.next());
    further.is_none() && given.is_some_and(|given| is_of_type(given, expected))
}

fn is_of_type(given: &str, expected: &str) -> bool {
    let mut parts = given.split(';').map(str::trim);
    let is_expected = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case(expected));
    let is_utf8 = |parameter: &str| {
        parameter.split_once('=').is_some_and(|(name, value)| {
            let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
            name.eq_ignore_ascii_case("charset") && value.eq_ignore_ascii_case("utf-8")
        })
    };
    is_expected && parts.all(is_utf8)
}

/// The length that the client declares. The server library has already rejected invalid and contradictory
/// lengths.
fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// An error while reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than its limit, which is this many bytes.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The client stopped sending the body.
    #[error("the body ended before it was complete")]
    Incomplete,
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(limit) => {
                Self::new(BODY_TOO_LARGE, format!("The body is larger than {limit} bytes."))
            }
            BodyError::Incomplete => Self::new(BAD_REQUEST, "The body ended before it was complete."),
        }
    }
}

/// Reads a body of any media type within the limit of its route and the budget of the listener. Must be
/// called at most once per request.
pub async fn read_body(head: &Parts, body: Body) -> Result<Vec<u8>, BodyError> {
    let exchange = head.extensions.get::<Exchange>();
    let limit = head.extensions.get::<BodyLimit>().map(|limit| limit.0);
    let limit = limit.or(exchange.map(Exchange::max_body_bytes)).unwrap_or(DEFAULT_MAX_BODY_BYTES);
    let declared = declared_length(&head.headers);
    if declared.is_some_and(|length| length > limit) {
        return Err(BodyError::TooLarge(limit));
    }
    let reading = read(body, declared, limit, exchange);
    match exchange.and_then(Exchange::body_timeout) {
        Some(allowed) => timeout(allowed, reading).await.unwrap_or(Err(BodyError::Incomplete)),
        None => reading.await,
    }
}

/// Reads the body into a buffer that is never larger than its reservation of the budget. More than a share is
/// reserved only after a share has arrived.
async fn read(
    mut body: Body,
    declared: Option<usize>,
    limit: usize,
    exchange: Option<&Exchange>,
) -> Result<Vec<u8>, BodyError> {
    let expected = declared.unwrap_or(limit);
    let mut reserved = exchange.map_or(expected, Exchange::share).min(expected);
    let mut bytes = Vec::with_capacity(if declared.is_some() { reserved } else { MIN_GROWTH.min(reserved) });
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Incomplete)?.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > limit {
            return Err(BodyError::TooLarge(limit));
        }
        if length > reserved {
            reserve(exchange, expected.max(length)).await;
            reserved = expected.max(length);
            // The buffer gets its final capacity at once: doubling would need three times as much while it is
            // copied.
            bytes.reserve_exact(reserved - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    bytes.shrink_to_fit();
    if let Some(exchange) = exchange {
        exchange.keep(bytes.len());
    }
    Ok(bytes)
}

/// Parses a text of `length` bytes with `parse`. A long text is parsed on a separate thread, few at a time,
/// so that other requests are not blocked. `occupied` is held until the text is parsed, even if the request
/// ends earlier.
pub async fn parse_apart<T: Send + 'static>(
    length: usize,
    occupied: Occupied,
    parse: impl FnOnce() -> T + Send + 'static,
) -> T {
    if length <= MAX_PARSED_AT_ONCE_BYTES {
        return parse();
    }
    static PERMITS: Semaphore = Semaphore::const_new(MAX_LONG_PARSES);
    // Cannot fail: the semaphore is never closed.
    let permit = PERMITS.acquire().await;
    let parsing = spawn_blocking(move || {
        let parsed = parse();
        drop((permit, occupied));
        parsed
    });
    match parsing.await {
        Ok(parsed) => parsed,
        // A panic belongs to the request. Only the end of the runtime cancels the task, and it ends this task
        // too.
        Err(ended) => resume_unwind(ended.into_panic()),
    }
}

async fn reserve(exchange: Option<&Exchange>, bytes: usize) {
    if let Some(exchange) = exchange {
        exchange.reserve(bytes).await;
    }
}
