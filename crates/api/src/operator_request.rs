//! The shared part of operators' changes: a JSON body without query, by an operator, carried out once for
//! each `Idempotency-Key`.

use axum::extract::{FromRequest, RawQuery, Request};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use axum::{RequestExt, RequestPartsExt};
use http_server::problem::Problem;
use http_server::tokens::Principal;
use http_server::{JsonText, Object, Occupied, RequestId};
use idempotency::{Fingerprint, Key, KeyedRequest, Owner, Run};
use serde::Deserialize;

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, in_progress, request_conflict, unavailable};

/// The parts of an operator's `POST`.
pub(crate) struct OperatorRequest {
    pub(crate) principal: Principal,
    pub(crate) request_id: RequestId,
    headers: HeaderMap,
    path: String,
    body: String,
    occupied: Occupied,
}

impl<S: Send + Sync> FromRequest<S> for OperatorRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let principal: Principal = head.extract().await?;
        let Ok(request_id) = head.extract::<RequestId>().await;
        let Ok(occupied) = head.extract::<Occupied>().await;
        let Ok(RawQuery(query)) = head.extract::<RawQuery>().await;
        Params::none(query.as_deref())?;
        let (headers, path) = (head.headers.clone(), head.uri.path().to_owned());
        let JsonText(body) = Request::from_parts(head, body).extract().await?;
        Ok(Self { principal, request_id, headers, path, body, occupied })
    }
}

impl OperatorRequest {
    /// The parsed body.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        let parsed: Result<Object<T>, _> = serde_json::from_str(&self.body);
        parsed
            .map(|Object(request)| request)
            .map_err(|error| bad_request(format!("The body is not as expected: {error}.")))
    }

    /// The idempotency key, which every change needs.
    pub(crate) fn key(&self) -> Result<Key, Problem> {
        match Key::from_headers(&self.headers) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(bad_request("The header Idempotency-Key is missing.")),
            Err(error) => Err(bad_request(format!("The header Idempotency-Key is wrong: {error}."))),
        }
    }

    /// Runs `handler` once for the key. A repeated request gets the stored response.
    pub(crate) async fn run_once<P, F>(
        self,
        api: &Api<P>,
        key: Key,
        handler: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Response, Problem>
    where
        P: Ports,
        F: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        let owner = format!("POST {} {}", self.path, self.principal.name);
        let fingerprint = Fingerprint::of_request(&Method::POST, &self.path, self.body.as_bytes());
        guarded(api, &owner, key, fingerprint, self.occupied, handler).await
    }
}

/// Runs `handler` once for the key; a repeated request gets the stored response. `occupied` is held until
/// nothing of the request is left, which may be long after its client has disconnected.
pub(crate) async fn guarded<P, F>(
    api: &Api<P>,
    owner: &str,
    key: Key,
    fingerprint: Fingerprint,
    occupied: Occupied,
    handler: impl FnOnce() -> F + Send + 'static,
) -> Result<Response, Problem>
where
    P: Ports,
    F: Future<Output = Result<Response, Problem>> + Send + 'static,
{
    let owner = Owner::new(owner).map_err(|error| bad_request(error.to_string()))?;
    match api.keys.run_once_holding(KeyedRequest { owner, key, fingerprint }, occupied, handler).await? {
        Run::Handled(response) | Run::Replayed(response) => Ok(response),
        Run::InProgress => Err(in_progress(idempotency::RETRY_PAUSE)),
        Run::Conflict => Err(request_conflict()),
        Run::Unavailable(error) => Err(unavailable(&ambient::error_chain(&error))),
    }
}
