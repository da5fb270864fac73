//! When a request began.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;
use tokio::time::Instant;

/// When the first byte of a request came, from which its timeout counts: it may have waited for room since.
///
/// A handler gets it by extraction; for a middleware it is an extension of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started(pub Instant);

impl Started {
    /// That of the request with these extensions. Without a listener, as in tests of a router, it begins now.
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
