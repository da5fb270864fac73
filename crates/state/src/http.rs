//! The store over HTTP: the requests of the original's clients, and those that were added.
//!
//! [`router`] answers on any listener of the crate `http-server`, over TCP and over a Unix socket alike. It
//! tells paths apart by itself, because a key is everything after `/keys/`, taken literally: a router would
//! join `//` and resolve what it decodes. Errors are JSON, `{"error":"<code>","message":"…"}`, also those
//! that the listener gives by itself ([`refuse`]).
//!
//! A request passes these checks in this order: its path (404), its method (405), its token (401), what the
//! token allows (403), the media type (415), the length (413) and the form (400) of what it sends, whether
//! the document is there (404), its version (412), its status (409).
//!
//! What it deliberately lacks: tables, listeners, metrics and the environment.

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

pub use self::access::Access;
pub use self::error::refuse;
pub use self::target::OPERATIONS;

use self::availability::{Availability, Need};
use self::body::MediaTypes;
use self::error::ApiError;
use self::target::{Operation, Target};
use crate::{StateError, Store};

/// By how much an answer may come after the statement timeout: the store's own error arrives within it, and
/// the second that clients are promised is not over.
const ANSWER_MARGIN: Duration = Duration::from_millis(900);

/// What answers requests.
#[derive(Debug)]
pub struct Service<S> {
    /// The documents.
    pub store: Arc<S>,
    /// Who may ask.
    pub access: Access,
    /// How long a statement of the store may take; an answer comes at most a second later.
    pub statement_timeout: Duration,
}

/// The routes, for a listener whose `refuse` is [`refuse`].
pub fn router<S: Store>(service: Service<S>) -> Router {
    let Service { store, access, statement_timeout } = service;
    let answer_within = statement_timeout.saturating_add(ANSWER_MARGIN);
    let http = Arc::new(Http { store, access, answer_within, availability: Availability::default() });
    Router::new().fallback(move |request: Request| {
        let http = Arc::clone(&http);
        async move { http.answer(request).await.unwrap_or_else(IntoResponse::into_response) }
    })
}

/// What all requests share.
struct Http<S> {
    store: Arc<S>,
    access: Access,
    answer_within: Duration,
    availability: Availability,
}

impl<S: Store> Http<S> {
    async fn answer(&self, request: Request) -> Result<Response, ApiError> {
        let (head, body) = request.into_parts();
        let target = Target::of(&head.method, head.uri.path())?;
        name_route(&head.extensions, target.operation.name());
        let scope = self.access.admit(&head.headers, target.operation)?;
        let answered = match target.operation {
            Operation::Healthz => params::none(head.uri.query()).map(|()| answer::ok()),
            Operation::Readyz => self.readyz(&head).await,
            Operation::Get => self.get(&scope, &head, target.rest).await,
            Operation::Head => self.head(&scope, &head, target.rest).await,
            Operation::Put => self.put(&scope, &head, body, target.rest).await,
            Operation::Patch => self.patch(&scope, &head, body, target.rest).await,
            Operation::Delete => self.delete(&scope, &head, target.rest).await,
            Operation::List => self.list(&scope, &head).await,
            Operation::BatchGet => self.batch_get(&scope, &head, body).await,
            Operation::Query => self.query(&scope, &head, body).await,
        };
        answered.map_err(|error| if target.operation.writes() { error } else { error.of_reading() })
    }

    /// Runs `work`, which only reads from the store, within the time of a request.
    fn ask<T>(
        &self,
        work: impl Future<Output = Result<T, StateError>>,
    ) -> impl Future<Output = Result<T, ApiError>> {
        self.ask_for(Need::Read, work)
    }

    /// Runs `work` on the store within the time of a request.
    fn ask_for<T>(
        &self,
        need: Need,
        work: impl Future<Output = Result<T, StateError>>,
    ) -> impl Future<Output = Result<T, ApiError>> {
        // On the heap: it has kilobytes, which would be copied with every future around it.
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
