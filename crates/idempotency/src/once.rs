//! Runs a handler once for each key.
//!
//! Claim, handler and completion run to their end on their own task, which neither a disconnected client nor
//! a timeout around the caller stops. So the handler's response is stored, and a repeat gets it. The number
//! of these tasks and the time of each are bounded.
//!
//! Crash recovery: a process that crashes before the claim leaves nothing. A crash between claim and
//! completion leaves a pending key, which is free once its lock TTL has passed; it is then unknown whether
//! the handler had its effect, unless the handler completes within its own transaction. A crash after the
//! completion leaves a stored response.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Episode, RandomTokens, Recovery, Tokens, error_chain};
use axum::body::Body;
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::buffer::{Buffered, buffer};
use crate::{
    Abandoner, Answer, Claim, ClaimId, ClaimRequest, CompletionRequest, Fingerprint, Guarded,
    IdempotencyError, Key, LockTtl, Owner, RetentionTtl, Store, Token,
};

/// The default timeout of a handler.
pub const DEFAULT_HANDLER_TIMEOUT: Duration = Duration::from_secs(30);
/// The default timeout of a claim and of a completion.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// The default limit of the body of a stored response, in bytes.
pub const DEFAULT_MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// The default limit of requests in progress.
pub const DEFAULT_MAX_CONCURRENT: usize = 1024;
/// The pause after the first failed completion; it doubles.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The timeouts and limits of [`Idempotency`].
#[derive(Clone, Copy, Debug)]
pub struct IdempotencySettings {
    /// The time for which a key is blocked after a crash; at least the time of the handler and twice that of
    /// the store.
    pub lock_ttl: LockTtl,
    /// The time for which a response is replayed.
    pub retention_ttl: RetentionTtl,
    /// The timeout of the handler, the body of its response included. After it the handler is dropped at an
    /// await, and the claim is abandoned.
    pub handler_timeout: Duration,
    /// The timeout of the claim, and of the completion with its retries.
    pub store_timeout: Duration,
    /// The largest stored body, in bytes. A response with a larger one is sent to the client and not stored.
    pub max_response_bytes: usize,
    /// The largest number of requests in progress, including those whose client has disconnected.
    pub max_concurrent: usize,
}

impl Default for IdempotencySettings {
    fn default() -> Self {
        Self {
            lock_ttl: LockTtl::default(),
            retention_ttl: RetentionTtl::default(),
            handler_timeout: DEFAULT_HANDLER_TIMEOUT,
            store_timeout: DEFAULT_STORE_TIMEOUT,
            max_response_bytes: DEFAULT_MAX_RESPONSE_BYTES,
            max_concurrent: DEFAULT_MAX_CONCURRENT,
        }
    }
}

/// The rule that decides from a response's parts and body whether it is stored.
type StoreIf = dyn Fn(&Parts, &Bytes) -> bool + Send + Sync;

/// Runs handlers once for each key of a store. Clones share everything.
pub struct Idempotency<S> {
    shared: Arc<OnceState<S>>,
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct OnceState<S> {
    store: Arc<S>,
    settings: IdempotencySettings,
    store_if: Box<StoreIf>,
    tokens: Arc<dyn Tokens>,
    abandoner: Abandoner<S>,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    failed_claims: Episode,
}

/// A request with an idempotency key.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    /// The owner of the key.
    pub owner: Owner,
    /// The idempotency key of the request.
    pub key: Key,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
}

/// The outcome of a request with an idempotency key.
#[must_use]
#[derive(Debug)]
pub enum Run {
    /// The handler ran; this is its response.
    Handled(Response<Body>),
    /// The request was processed before; this is its stored response.
    Replayed(Response<Body>),
    /// Another attempt is processing a request with this key, or the key is busy ([`Claim::Busy`]).
    InProgress,
    /// The key belongs to another request.
    Conflict,
    /// The store failed or is full, too many requests are in progress, or the handler was dropped after its
    /// timeout. It is unknown to the client whether the request was processed; the client may repeat it with
    /// the same key.
    Unavailable(IdempotencyError),
}

/// Returns true for a status that is stored: every status except those that request a retry, which are 408,
/// 425, 429 and all from 500 on.
pub fn is_final(status: StatusCode) -> bool {
    let again = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    !status.is_server_error() && !again.contains(&status)
}

impl<S: Store> Idempotency<S> {
    /// Creates a runner of handlers, each once for each key of `store`. Responses are stored if [`is_final`]
    /// returns true for their status.
    ///
    /// Returns [`IdempotencyError::InvalidArgument`] if the lock TTL is shorter than the sum of the timeouts
    /// of claim, handler and completion.
    pub fn new(store: Arc<S>, settings: IdempotencySettings) -> Result<Self, IdempotencyError> {
        Self::build(store, settings, |parts, _| is_final(parts.status), Arc::new(RandomTokens))
    }

    /// Does the same with the caller's own rule for storing responses and its own tokens.
    pub fn build(
        store: Arc<S>,
        settings: IdempotencySettings,
        store_if: impl Fn(&Parts, &Bytes) -> bool + Send + Sync + 'static,
        tokens: Arc<dyn Tokens>,
    ) -> Result<Self, IdempotencyError> {
        let needed = settings.handler_timeout.saturating_add(settings.store_timeout.saturating_mul(2));
        if settings.lock_ttl.as_duration() < needed {
            return Err(IdempotencyError::InvalidArgument(format!(
                "the lock TTL must be at least {needed:?}: the handler timeout and twice the store timeout"
            )));
        }
        let tasks = TaskTracker::new();
        Ok(Self {
            shared: Arc::new(OnceState {
                abandoner: Abandoner::new(store.clone(), tasks.clone()),
                permits: Arc::new(Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS))),
                store_if: Box::new(store_if),
                store,
                settings,
                tokens,
                tasks,
                failed_claims: Episode::default(),
            }),
        })
    }

    /// Returns the running tasks. Close it and wait for them before the runtime ends: a task that is cut
    /// short leaves its key blocked until the lock TTL has passed.
    pub fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    /// Runs `handler` unless its request was processed before, is being processed, or the store cannot
    /// determine that. An error of the handler is returned, and its claim is abandoned; a panic likewise, and
    /// it is resumed here.
    ///
    /// The response is returned once it is stored, or once storing has failed for
    /// [`IdempotencySettings::store_timeout`], because the handler has already had its effect. A response
    /// whose length is not known when it begins (a stream), that is larger than
    /// [`IdempotencySettings::max_response_bytes`], has trailers or switches protocols is returned at once
    /// and not stored.
    pub async fn run_once<F, E>(
        &self,
        request: KeyedRequest,
        handler: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Run, E>
    where
        F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
        E: Send + 'static,
    {
        self.run_once_holding(request, (), handler).await
    }

    /// Does the same as [`Idempotency::run_once`]. `held` is dropped when the request's task has ended, even
    /// if its client disconnected long before: for example a part of a budget that the request occupies.
    pub async fn run_once_holding<F, E>(
        &self,
        request: KeyedRequest,
        held: impl Send + 'static,
        handler: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Run, E>
    where
        F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
        E: Send + 'static,
    {
        let shared = self.shared.clone();
        let Ok(permit) = shared.permits.clone().try_acquire_owned() else {
            let max_concurrent = shared.settings.max_concurrent;
            return Ok(Run::Unavailable(IdempotencyError::TooManyRequests { max_concurrent }));
        };
        let run = async move {
            let run = shared.run(request, handler).await;
            drop((permit, held));
            run
        };
        match self.shared.tasks.spawn(run.in_current_span()).await {
            Ok(run) => run,
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            Err(_) => Ok(Run::Unavailable(IdempotencyError::Stopping)),
        }
    }
}

impl<S: Store> OnceState<S> {
    async fn run<F, E>(&self, request: KeyedRequest, handler: impl FnOnce() -> F) -> Result<Run, E>
    where
        F: Future<Output = Result<Response<Body>, E>>,
    {
        let KeyedRequest { owner, key, fingerprint } = request;
        let id = ClaimId { owner, key, token: Token::next(&*self.tokens) };
        let claim = self.claim(&id, fingerprint).await;
        self.log_claim(&claim);
        Ok(match claim {
            Ok(Claim::New) => return self.handle(id, handler).await,
            Ok(Claim::Pending { .. } | Claim::Busy) => Run::InProgress,
            Ok(Claim::Conflict) => Run::Conflict,
            Ok(Claim::Completed(answer)) => match answer.replay() {
                Ok(response) => Run::Replayed(response),
                Err(error) => {
                    tracing::error!(error = error_chain(&error), "a stored response cannot be read");
                    Run::Unavailable(error)
                }
            },
            Err(error) => {
                // The key may have been claimed nevertheless.
                self.abandoner.abandon_later([id], self.settings.lock_ttl);
                Run::Unavailable(error)
            }
        })
    }

    async fn claim(&self, id: &ClaimId, fingerprint: Fingerprint) -> Result<Claim, IdempotencyError> {
        let request = ClaimRequest { id: id.clone(), fingerprint, lock_ttl: self.settings.lock_ttl };
        let claims = self.in_time(self.store.claim(slice::from_ref(&request))).await?;
        Ok(claims.into_iter().next().unwrap_or(Claim::Busy))
    }

    /// Logs the beginning and the end of an outage, because it fails every request.
    fn log_claim(&self, claim: &Result<Claim, IdempotencyError>) {
        let now = Instant::now().into_std();
        match claim {
            Ok(_) => {
                if let Some(Recovery { times, lasted_ms }) = self.failed_claims.recovered(now) {
                    tracing::info!(times, lasted_ms, "claims of idempotency keys recovered");
                }
            }
            Err(error) => {
                let failure = self.failed_claims.failed(now, ());
                if failure.is_logged {
                    tracing::warn!(
                        error = error_chain(error),
                        times = failure.times,
                        "claims of idempotency keys fail; refusing requests with a key"
                    );
                }
            }
        }
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, IdempotencyError>>,
    ) -> Result<T, IdempotencyError> {
        let allowed = self.settings.store_timeout;
        timeout(allowed, call).await.unwrap_or(Err(IdempotencyError::TimedOut(allowed)))
    }

    async fn handle<F, E>(&self, id: ClaimId, handler: impl FnOnce() -> F) -> Result<Run, E>
    where
        F: Future<Output = Result<Response<Body>, E>>,
    {
        let end = Instant::now() + self.settings.handler_timeout;
        // State left by a panic is the handler's own: the caller resumes the panic.
        let handled = AssertUnwindSafe(async {
            let response = handler().await?;
            Ok(match buffer(response, self.settings.max_response_bytes).await {
                Buffered::Passed(response) => (None, response),
                Buffered::Whole(parts, body) => {
                    let is_stored = (self.store_if)(&parts, &body);
                    let answer = is_stored.then(|| Answer::from_response(&parts, body.clone()));
                    (answer, Response::from_parts(parts, Body::from(body)))
                }
            })
        });
        let handled = timeout_at(end, handled.catch_unwind()).await;
        if let Ok(Ok(Ok((Some(answer), response)))) = handled {
            self.complete(id, answer).await;
            return Ok(Run::Handled(response));
        }
        self.abandon(id).await;
        match handled {
            Ok(Ok(handled)) => handled.map(|(_, response)| Run::Handled(response)),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Ok(Run::Unavailable(IdempotencyError::HandlerTimedOut(self.settings.handler_timeout))),
        }
    }

    /// Frees the key before the client gets the response, so that its next attempt finds it free; if that
    /// fails, in the background.
    async fn abandon(&self, id: ClaimId) {
        let abandoned = self.in_time(self.store.abandon(slice::from_ref(&id))).await;
        if !matches!(abandoned.as_deref(), Ok([Guarded::Applied | Guarded::Fenced])) {
            self.abandoner.abandon_later([id], self.settings.lock_ttl);
        }
    }

    /// Stores a response, with retries until [`IdempotencySettings::store_timeout`] has passed. If that
    /// fails, the claim is not abandoned: the request was processed, and the lock TTL blocks repeats as long
    /// as possible.
    async fn complete(&self, id: ClaimId, answer: Answer) {
        let completion = CompletionRequest { id, answer, retention_ttl: self.settings.retention_ttl };
        let end = Instant::now() + self.settings.store_timeout;
        let mut pause = FIRST_RETRY_PAUSE;
        // An attempt whose outcome is unknown may have stored the response.
        let mut may_be_stored = false;
        loop {
            let stored = timeout_at(end, self.store.complete(slice::from_ref(&completion))).await;
            let error = match stored.unwrap_or(Err(IdempotencyError::TimedOut(self.settings.store_timeout))) {
                Ok(outcomes) if outcomes == [Guarded::Applied] => return,
                Ok(outcomes) if outcomes == [Guarded::Fenced] => {
                    if !may_be_stored {
                        tracing::warn!("a response was not stored: its claim had expired");
                    }
                    return;
                }
                Ok(_) => None,
                Err(error) => Some(error),
            };
            may_be_stored |= error.is_some();
            if Instant::now() + pause >= end {
                let error = error.map_or_else(|| "the key is locked".to_owned(), |error| error_chain(&error));
                tracing::warn!(
                    error,
                    "a response could not be stored; its key is blocked until the lock TTL ends"
                );
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    // I-15
    #[test]
    fn what_tells_the_client_to_try_again_is_not_stored() {
        for status in [200, 201, 202, 204, 301, 400, 404, 409, 422] {
            assert!(is_final(StatusCode::from_u16(status).expect("a status")), "{status}");
        }
        for status in [408, 425, 429, 500, 503, 599] {
            assert!(!is_final(StatusCode::from_u16(status).expect("a status")), "{status}");
        }
    }

    #[test]
    fn a_lock_ttl_shorter_than_a_request_may_take_is_refused() {
        let settings = |seconds| IdempotencySettings {
            lock_ttl: LockTtl::new(Duration::from_secs(seconds)).expect("valid"),
            ..IdempotencySettings::default()
        };
        let store = Arc::new(MemoryStore::new(1));
        assert!(Idempotency::new(store.clone(), settings(50)).is_ok());
        assert!(matches!(Idempotency::new(store, settings(49)), Err(IdempotencyError::InvalidArgument(_))));
    }
}
