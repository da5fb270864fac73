//! The start time of a request.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;
use tokio::time::Instant;

/// The time of the first byte of a request, from which its timeout counts: the request may have waited for
/// room since.
///
/// Handlers extract it; for a middleware it is an extension of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started(pub Instant);

impl Started {
    /// The start of the request with these extensions. Without a listener, as in tests of a router, it is
    /// now.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or_else(|| Self(Instant::now()))
    }
}

impl<S: Sync> FromRequestParts<S> for Started {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&head.extensions))
    }
}
