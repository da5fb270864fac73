//! The time limit of a page, and the error page that an operator sees if the page takes longer or its handler
//! panics. Without it, the listener would send problem details as JSON.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http_server::Started;
use tokio::time::{Instant, timeout_at};

use crate::error::PageError;
use crate::layout;
use crate::operator::Visitor;

/// The time between the deadline of a request and its cancellation: a handler that observes the deadline
/// itself responds first.
const LATE_ANSWER_TIME: Duration = Duration::from_millis(100);

/// The time by which the response to a request is due. Requests carry it as an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// Returns the output of `work`; `None` if it is not ready in time.
    pub(crate) async fn limit<T>(self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.0, work).await.ok()
    }
}

/// The sender of a request, once determined. Requests carry it as an extension, so that an error page in
/// place of a handler's page has the navigation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignedIn(Arc<OnceLock<Visitor>>);

impl SignedIn {
    /// Sets the visitor.
    pub(crate) fn set(&self, visitor: Visitor) {
        // It is set once in a request.
        let _ = self.0.set(visitor);
    }
}

/// Responds with an error page if a handler panics, or is not ready `limit` after its request began.
pub(crate) async fn guard(State(limit): State<Duration>, mut request: Request, next: Next) -> Response {
    let Started(started) = Started::of(request.extensions());
    let deadline = started + limit;
    let signed_in = SignedIn::default();
    request.extensions_mut().insert(Deadline(deadline));
    request.extensions_mut().insert(signed_in.clone());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    // A panic can only leave shared data behind locks, which are recovered at the next lock.
    let handling = AssertUnwindSafe(next.run(request)).catch_unwind();
    let error = match timeout_at(deadline + LATE_ANSWER_TIME, handling).await {
        Ok(Ok(response)) => return response,
        Ok(Err(_panic)) => {
            tracing::error!(route, "a page of the console panicked; its operator got an error page");
            PageError::Panicked
        }
        Err(_) => {
            tracing::debug!(route, "a page of the console took too long");
            PageError::TimedOut
        }
    };
    layout::render(error.into_response(), signed_in.0.get())
}
