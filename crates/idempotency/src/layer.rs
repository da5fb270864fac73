//! The layer that guards unsafe requests with an idempotency key in an HTTP service.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::extract::OriginalUri;
use axum::http::request::Parts;
use axum::http::{self, Method, Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower::{Layer, Service, ServiceExt};

use crate::{Fingerprint, Idempotency, Key, KeyedRequest, Owner, Problem, Run, Store};

/// The default limit of the body of a request with a key, in bytes.
pub const DEFAULT_MAX_BODY_BYTES: usize = 1024 * 1024;

type OwnerOf = dyn Fn(&Parts) -> Option<Owner> + Send + Sync;
type Respond = dyn Fn(&Problem, &Parts) -> Response<Body> + Send + Sync;

/// Runs the service below it once for each idempotency key.
///
/// Put authentication and rate limits above this layer. Safe requests (GET, HEAD, OPTIONS, TRACE), CONNECT
/// and requests without a key pass untouched. Trailers of a request with a key are dropped. The README has a
/// table of the responses.
pub struct IdempotencyLayer<S> {
    shared: Arc<LayerState<S>>,
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct LayerState<S> {
    idempotency: Idempotency<S>,
    options: LayerOptions,
    owner: Box<OwnerOf>,
    respond: Box<Respond>,
}

/// The caller's options for requests.
#[derive(Clone, Copy, Debug)]
pub struct LayerOptions {
    /// True to reject unsafe requests without a key; otherwise they pass.
    pub required: bool,
    /// The largest body of a request with a key, in bytes: it is read as a whole.
    pub max_body_bytes: usize,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self { required: false, max_body_bytes: DEFAULT_MAX_BODY_BYTES }
    }
}

impl<S: Store> IdempotencyLayer<S> {
    /// Creates a layer whose keys belong to the owner that `owner` derives from a request, for example from
    /// its endpoint and authenticated client. A request with a key and without an owner is rejected. Problems
    /// are sent as [`Problem::to_response`].
    pub fn new(
        idempotency: Idempotency<S>,
        options: LayerOptions,
        owner: impl Fn(&Parts) -> Option<Owner> + Send + Sync + 'static,
    ) -> Self {
        Self::build(idempotency, options, owner, Problem::to_response)
    }

    /// Does the same with the caller's own form of problems.
    pub fn build(
        idempotency: Idempotency<S>,
        options: LayerOptions,
        owner: impl Fn(&Parts) -> Option<Owner> + Send + Sync + 'static,
        respond: impl Fn(&Problem, &Parts) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let (owner, respond) = (Box::new(owner), Box::new(respond));
        Self { shared: Arc::new(LayerState { idempotency, options, owner, respond }) }
    }
}

impl<S, Inner> Layer<Inner> for IdempotencyLayer<S> {
    type Service = IdempotencyService<S, Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        IdempotencyService { shared: self.shared.clone(), inner }
    }
}

/// The service that [`IdempotencyLayer`] creates.
pub struct IdempotencyService<S, Inner> {
    shared: Arc<LayerState<S>>,
    inner: Inner,
}

impl<S, Inner: Clone> Clone for IdempotencyService<S, Inner> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), inner: self.inner.clone() }
    }
}

impl<S, Inner, RequestBody, ResponseBody> Service<http::Request<RequestBody>> for IdempotencyService<S, Inner>
where
    S: Store,
    Inner: Service<http::Request<Body>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    Inner::Error: Send + 'static,
    RequestBody: HttpBody<Data = Bytes> + Send + 'static,
    RequestBody::Error: Into<BoxError>,
    ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    ResponseBody::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Inner::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, Inner::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<RequestBody>) -> Self::Future {
        let shared = self.shared.clone();
        // Use the service that was polled until ready, and leave the clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = match shared.key(&parts) {
                Ok(Some(key)) => key,
                Ok(None) => {
                    let request = http::Request::from_parts(parts, Body::new(body));
                    return Ok(inner.call(request).await?.map(Body::new));
                }
                Err(problem) => return Ok((shared.respond)(&problem, &parts)),
            };
            let (request, body) = match shared.request(&parts, key, body).await {
                Ok(request) => request,
                Err(problem) => return Ok((shared.respond)(&problem, &parts)),
            };
            let forwarded = http::Request::from_parts(parts.clone(), Body::from(body));
            let handler = async move || {
                Ok::<_, Inner::Error>(inner.ready().await?.call(forwarded).await?.map(Body::new))
            };
            // The extensions may hold resources that a layer above this one keeps for the request.
            let held = parts.extensions.clone();
            let problem = match shared.idempotency.run_once_holding(request, held, handler).await? {
                Run::Handled(response) | Run::Replayed(response) => return Ok(response),
                Run::InProgress => Problem::InProgress,
                Run::Conflict => Problem::Conflict,
                Run::Unavailable(error) => Problem::Unavailable(error),
            };
            Ok((shared.respond)(&problem, &parts))
        })
    }
}

impl<S> LayerState<S> {
    /// Returns the key of a guarded request; `None` for a request that passes.
    fn key(&self, parts: &Parts) -> Result<Option<Key>, Problem> {
        if parts.method.is_safe() || parts.method == Method::CONNECT {
            return Ok(None);
        }
        match Key::from_headers(&parts.headers) {
            Err(error) => Err(Problem::BadRequest(error.to_string())),
            Ok(None) if self.options.required => {
                Err(Problem::BadRequest("the header Idempotency-Key is required".to_owned()))
            }
            Ok(key) => Ok(key),
        }
    }

    /// Returns the request's claim data and its body.
    async fn request<B>(&self, parts: &Parts, key: Key, body: B) -> Result<(KeyedRequest, Bytes), Problem>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let owner = (self.owner)(parts).ok_or(Problem::Forbidden)?;
        let max_bytes = self.options.max_body_bytes;
        if body.size_hint().lower() > max_bytes as u64 {
            return Err(Problem::BodyTooLarge { max_bytes });
        }
        let body = match Limited::new(body, max_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(Problem::BodyTooLarge { max_bytes }),
            Err(_) => return Err(Problem::BadRequest("the body could not be read".to_owned())),
        };
        // In a nested router, `uri` lacks the part that the outer routers matched.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let path = uri.path_and_query().map_or_else(|| uri.path(), |path| path.as_str());
        let fingerprint = Fingerprint::of_request(&parts.method, path, &body);
        Ok((KeyedRequest { owner, key, fingerprint }, body))
    }
}
