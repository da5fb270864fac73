//! A response as a whole, if it can be stored.

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;

/// A response that was read, or was not.
pub(crate) enum Buffered {
    /// All of it.
    Whole(Parts, Bytes),
    /// One that cannot be stored, as it was.
    Passed(Response<Body>),
}

/// Reads the body of a response whose length is known and at most `max_bytes`. A body of unknown length may be a stream that
/// never ends, and a response that switches protocols has none.
pub(crate) async fn buffer(response: Response<Body>, max_bytes: usize) -> Buffered {
    let length = response.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS || length.is_none_or(|length| length > max_bytes)
    {
        return Buffered::Passed(response);
    }
    let (parts, body) = response.into_parts();
    match body.collect().await {
        Ok(collected) if collected.trailers().is_none() => Buffered::Whole(parts, collected.to_bytes()),
        Ok(collected) => Buffered::Passed(Response::from_parts(parts, Body::new(collected))),
        // The connection breaks off, as it would have without the buffer.
        Err(error) => {
            let broken = stream::once(async { Err::<Bytes, BoxError>(error.into()) });
            Buffered::Passed(Response::from_parts(parts, Body::from_stream(broken)))
        }
    }
}
