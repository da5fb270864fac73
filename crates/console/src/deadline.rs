//! How long a page may take, and what an operator sees if it takes longer or its handler panics: a page,
//! where the listener would answer for programs.

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
use crate::session::Operator;

/// How much later than its deadline a request is cut off: a handler that minds the deadline itself answers
/// first.
const LATE_ANSWER_TIME: Duration = Duration::from_millis(100);

/// By when the answer of a request is there. Requests carry it as an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// What `work` gives; `None` if that is not there in time.
    pub(crate) async fn limit<T>(self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.0, work).await.ok()
    }
}

/// Who sent a request, once that is known. Requests carry it as an extension: what answers in place of a
/// handler has their navigation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignedIn(Arc<OnceLock<Operator>>);

impl SignedIn {
    /// It is this operator.
    pub(crate) fn set(&self, operator: Operator) {
        // It is set once in a request.
        let _ = self.0.set(operator);
    }
}

/// Answers with a page in place of a handler that panics, or that is not ready `limit` after its request
/// began.
pub(crate) async fn guard(State(limit): State<Duration>, mut request: Request, next: Next) -> Response {
    let Started(started) = Started::of(request.extensions());
    let deadline = started + limit;
    let signed_in = SignedIn::default();
    request.extensions_mut().insert(Deadline(deadline));
    request.extensions_mut().insert(signed_in.clone());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    // What a panic leaves behind is locked data alone, which is put right whenever it is locked.
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
