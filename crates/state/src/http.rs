//! The store over HTTP: the requests of the original's clients, and the added ones.
//!
//! [`router`] serves any listener of the crate `http-server`, over TCP and over a Unix socket alike. It
//! matches paths itself, because a key is everything after `/keys/`, taken literally: a router would join
//! `//` and resolve what it decodes. Errors are JSON, `{"error":"<code>","message":"…"}`, including those
//! that the listener itself returns ([`refuse`]).
//!
//! A request passes these checks in this order: its path (404), its method (405), its token (401), the
//! token's permissions (403), the media type (415), the length (413) and the form (400) of the body, the
//! existence of the document (404), its version (412), its status (409).
//!
//! The module deliberately lacks tables, listeners, metrics and the environment.

mod access;
mod answer;
mod availability;
mod body;
mod error;
mod handlers;
mod params;
mod preconditions;
mod target;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use http_server::{is_compressed, name_route};
use tokio::time::timeout;

pub use self::access::AllowedClients;
pub use self::error::refuse;
pub use self::target::OPERATIONS;

use self::availability::{Availability, Need};
use self::body::MediaTypes;
use self::error::ApiError;
use self::target::{HttpOperation, RequestTarget};
use crate::{StateError, Store};

/// The time after the statement timeout within which a response is sent: the store's own error arrives within
/// it, and it stays below the one second that clients are promised.
const ANSWER_MARGIN: Duration = Duration::from_millis(900);

/// The parts that serve requests.
#[derive(Debug)]
pub struct StateService<S> {
    /// The documents.
    pub store: Arc<S>,
    /// The access rules.
    pub access: AllowedClients,
    /// The time limit of a statement of the store; a response follows at most a second later.
    pub statement_timeout: Duration,
}

/// The routes, for a listener whose `refuse` is [`refuse`].
pub fn router<S: Store>(service: StateService<S>) -> Router {
    let StateService { store, access, statement_timeout } = service;
    let answer_within = statement_timeout.saturating_add(ANSWER_MARGIN);
    let http = Arc::new(HttpState { store, access, answer_within, availability: Availability::default() });
    Router::new().fallback(move |request: Request| {
        let http = Arc::clone(&http);
        async move { http.answer(request).await.unwrap_or_else(IntoResponse::into_response) }
    })
}

/// The state that all requests share.
struct HttpState<S> {
    store: Arc<S>,
    access: AllowedClients,
    answer_within: Duration,
    availability: Availability,
}

impl<S: Store> HttpState<S> {
    async fn answer(&self, request: Request) -> Result<Response, ApiError> {
        let (head, body) = request.into_parts();
        let target = RequestTarget::of(&head.method, head.uri.path())?;
        name_route(&head.extensions, target.operation.name());
        let scope = self.access.admit(&head.headers, target.operation)?;
        let answered = match target.operation {
            HttpOperation::Healthz => params::none(head.uri.query()).map(|()| answer::ok()),
            HttpOperation::Readyz => self.readyz(&head).await,
            HttpOperation::Get => self.get(&scope, &head, target.rest).await,
            HttpOperation::Head => self.head(&scope, &head, target.rest).await,
            HttpOperation::Put => self.put(&scope, &head, body, target.rest).await,
            HttpOperation::Patch => self.patch(&scope, &head, body, target.rest).await,
            HttpOperation::Delete => self.delete(&scope, &head, target.rest).await,
            HttpOperation::List => self.list(&scope, &head).await,
            HttpOperation::BatchGet => self.batch_get(&scope, &head, body).await,
            HttpOperation::Query => self.query(&scope, &head, body).await,
        };
        answered.map_err(|error| if target.operation.writes() { error } else { error.of_reading() })
    }

    /// Runs `work`, which only reads from the store, within the time limit of a request.
    fn ask<T>(
        &self,
        work: impl Future<Output = Result<T, StateError>>,
    ) -> impl Future<Output = Result<T, ApiError>> {
        self.ask_for(Need::Read, work)
    }

    /// Runs `work` on the store within the time limit of a request.
    fn ask_for<T>(
        &self,
        need: Need,
        work: impl Future<Output = Result<T, StateError>>,
    ) -> impl Future<Output = Result<T, ApiError>> {
        // On the heap: the future has kilobytes, which would be copied with every future around it.
        let work = timeout(self.answer_within, Box::pin(work));
        async move {
            let outcome = work.await;
            self.availability.note(need, &outcome);
            match outcome {
                Ok(outcome) => outcome.map_err(ApiError::from),
                Err(_) => Err(ApiError::no_answer()),
            }
        }
    }
}

/// The text of a body of one of these types.
async fn read_text(head: &Parts, body: Body, types: MediaTypes) -> Result<String, ApiError> {
    if is_compressed(&head.headers) {
        return Err(ApiError::unsupported_media_type("the body must not be compressed"));
    }
    types.check(&head.headers)?;
    let bytes = http_server::read_body(head, body).await?;
    String::from_utf8(bytes).map_err(|_| ApiError::bad_request("the body is not UTF-8"))
}
