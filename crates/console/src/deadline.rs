//! How long a page may take, and what an operator sees if it takes longer or its handler panics: a page, where the listener would answer for
//! programs.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};

use crate::error::PageError;

/// How much later than its deadline a request is cut off: a handler that minds the deadline itself answers first.
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

/// Answers with a page in place of a handler that takes longer than `limit`, or panics.
pub(crate) async fn guard(State(limit): State<Duration>, mut request: Request, next: Next) -> Response {
    let deadline = Instant::now() + limit;
    request.extensions_mut().insert(Deadline(deadline));
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    // What a panic leaves behind is locked data alone, which is put right whenever it is locked.
    let handling = AssertUnwindSafe(next.run(request)).catch_unwind();
    match timeout_at(deadline + LATE_ANSWER_TIME, handling).await {
        Ok(Ok(response)) => response,
        Ok(Err(_panic)) => {
            tracing::error!(route, "a page of the console panicked; its operator got an error page");
            PageError::Panicked.into_response()
        }
        Err(_) => {
            tracing::debug!(route, "a page of the console took too long");
            PageError::TimedOut.into_response()
        }
    }
}
