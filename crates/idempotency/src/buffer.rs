//! Buffering of a whole response, if it can be stored.

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;

/// A response that was buffered or passed through.
pub(crate) enum Buffered {
    /// The whole response.
    Whole(Parts, Bytes),
    /// A response that cannot be stored, unchanged.
    Passed(Response<Body>),
}

/// Reads the body of a response if its length is known and at most `max_bytes`. A body of unknown length may
/// be a stream that never ends, and a response that switches protocols has no body.
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::{Frame, SizeHint};

    use super::*;

    /// A body that declares ten bytes, sends four and breaks off.
    struct BreaksOff(Vec<Result<Bytes, std::io::Error>>);

    impl HttpBody for BreaksOff {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop().map(|chunk| chunk.map(Frame::data)))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(10)
        }
    }

    // I-15
    #[tokio::test]
    async fn a_body_that_breaks_off_breaks_off_for_the_client_and_is_not_stored() {
        let body = BreaksOff(vec![Err(std::io::Error::other("cut")), Ok(Bytes::from_static(b"four"))]);
        let Buffered::Passed(response) = buffer(Response::new(Body::new(body)), 100).await else {
            panic!("it must not be stored");
        };
        let error = response.into_body().collect().await.expect_err("the client sees it");
        assert!(ambient::error_chain(&error).contains("cut"), "{error}");
    }
}
