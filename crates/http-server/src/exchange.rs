//! One request and its response: state that the listener, the body and the handler share.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::Extensions;
use axum::http::request::Parts;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::budget::Reservation;
use crate::class::Class;
use crate::connection::RequestProgress;
use crate::stall::Stall;

/// The bytes that a response occupies besides its body: its head, and the server library's state of its
/// stream.
const ANSWER_OVERHEAD_BYTES: usize = 1024;

/// The largest piece of a response that an HTTP/2 connection takes at a time, in bytes.
const PIECE_BYTES: usize = 16 * 1024;

/// The time limit for the body of an unknown client.
const UNKNOWN_BODY_TIMEOUT: Duration = Duration::from_secs(2);

/// The progress of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyProgress {
    /// The handler has not requested the body, has all of it, or is processing a part of it.
    NotAwaited,
    /// The handler waits for the client.
    Awaited,
    /// The handler waits until the budget has room for the body.
    Paused,
}

/// A request in progress. Clones share it; it is an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Exchange(Arc<ExchangeState>);

#[derive(Debug)]
struct ExchangeState {
    max_body_bytes: usize,
    /// Name of the client's token.
    owner: Option<Arc<str>>,
    /// The class of known clients, if this client is unknown.
    known: Option<Arc<Class>>,
    /// Bytes that the body occupies.
    reservation: Arc<Reservation>,
    /// The class among whose requests this one counts, and its place there.
    place: Mutex<(Arc<Class>, Option<OwnedSemaphorePermit>)>,
    progress: Arc<RequestProgress>,
    body: Mutex<BodyProgress>,
    /// Time for which the body had to wait for room.
    paused: Mutex<Duration>,
    /// The part of the body that the handler did not read.
    unread: Mutex<Option<Incoming>>,
    route: OnceLock<ServedRoute>,
}

/// The route that serves a request.
#[derive(Debug)]
pub(crate) enum ServedRoute {
    /// A route of the router.
    Matched(MatchedPath),
    /// A route that a handler distinguishes by itself.
    Named(&'static str),
}

impl ServedRoute {
    fn template(&self) -> &str {
        match self {
            Self::Matched(path) => path.as_str(),
            Self::Named(template) => template,
        }
    }
}

/// Names the route of a request for the observer, in a handler that distinguishes routes by itself. The first
/// name counts; a template of the router takes precedence. There must be few templates, whatever clients
/// send.
pub fn name_route(extensions: &Extensions, template: &'static str) {
    if let Some(exchange) = extensions.get::<Exchange>() {
        exchange.set_route(ServedRoute::Named(template));
    }
}

/// The bytes that the body of a request occupies. A task that outlives its request holds them until it ends,
/// so that the budget counts them.
#[derive(Debug, Clone)]
pub struct Occupied(Option<Arc<Reservation>>);

impl Occupied {
    /// The bytes of the request with these extensions; nothing without a listener, as in tests of a router.
    pub fn of(extensions: &Extensions) -> Self {
        Self(extensions.get::<Exchange>().map(|exchange| Arc::clone(&exchange.0.reservation)))
    }

    /// Adds `bytes` that a handler produced from the body. The handler does not wait for them, but further
    /// requests do.
    pub fn add(&self, bytes: usize) {
        if let Some(reservation) = &self.0 {
            reservation.add(bytes);
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Occupied {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&head.extensions))
    }
}

/// Marks the client of a request as known, for example because of a session: from now on the request counts
/// against the room of known clients. Waits until there is room.
pub async fn admit_known_client(extensions: &Extensions) {
    if let Some(exchange) = extensions.get::<Exchange>() {
        exchange.admit_known().await;
    }
}

impl Exchange {
    pub(crate) fn new(max_body_bytes: usize, client: RequestClient, progress: RequestProgress) -> Self {
        let RequestClient { owner, class, known, place } = client;
        Self(Arc::new(ExchangeState {
            max_body_bytes,
            owner,
            known: (!Arc::ptr_eq(&class, &known)).then_some(known),
            reservation: Arc::new(Reservation::new(class.budget.clone())),
            place: Mutex::new((class, Some(place))),
            progress: Arc::new(progress),
            body: Mutex::new(BodyProgress::NotAwaited),
            paused: Mutex::default(),
            unread: Mutex::default(),
            route: OnceLock::new(),
        }))
    }

    async fn admit_known(&self) {
        let Some(known) = &self.0.known else { return };
        // Cannot fail: the semaphore is never closed.
        let Ok(place) = known.enter(false).await else { return };
        self.0.reservation.move_to(known.budget.clone());
        *self.0.place.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::clone(known), Some(place));
        self.0.progress.activity().set_known();
    }

    /// Frees the place for another request: the handler has ended, whether or not the client reads the
    /// response.
    pub(crate) fn leave(&self) {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner).1 = None;
    }

    /// The request's guard on its connection.
    pub(crate) fn progress(&self) -> &Arc<RequestProgress> {
        &self.0.progress
    }

    /// The largest body of routes without their own limit.
    pub(crate) fn max_body_bytes(&self) -> usize {
        self.0.max_body_bytes
    }

    /// The bytes that the body may occupy without a reservation.
    pub(crate) fn share(&self) -> usize {
        self.0.reservation.share()
    }

    /// The time limit for the body, in addition to the request timeout.
    pub(crate) fn body_timeout(&self) -> Option<Duration> {
        let is_unknown = self.0.known.as_ref().is_some_and(|known| {
            !Arc::ptr_eq(known, &self.0.place.lock().unwrap_or_else(PoisonError::into_inner).0)
        });
        is_unknown.then_some(UNKNOWN_BODY_TIMEOUT)
    }

    /// Waits until the body may occupy `bytes`. Must be called at most once per request.
    pub(crate) async fn reserve(&self, bytes: usize) {
        let since = Instant::now();
        self.set_body(BodyProgress::Paused);
        self.0.reservation.reserve(bytes, self.0.owner.as_ref()).await;
        self.set_body(BodyProgress::NotAwaited);
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner) += since.elapsed();
    }

    /// The time for which the body had to wait for room before it could be read.
    pub(crate) fn paused(&self) -> Duration {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the final size of the body to `bytes`.
    pub(crate) fn keep(&self, bytes: usize) {
        self.0.reservation.set(bytes);
    }

    /// The progress of the body.
    pub(crate) fn body(&self) -> BodyProgress {
        *self.0.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_body(&self, progress: BodyProgress) {
        *self.0.body.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Sets the route that matched.
    pub(crate) fn set_route(&self, route: ServedRoute) {
        // A nested router sets it again; the first one has the whole path.
        let _ = self.0.route.set(route);
    }

    /// The template of the route that matched, if any.
    pub(crate) fn route(&self) -> Option<&str> {
        self.0.route.get().map(ServedRoute::template)
    }

    /// The rest of the body, if the handler did not read all of it.
    pub(crate) fn take_unread(&self) -> Option<Incoming> {
        self.0.unread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Wraps the body of the request for the handler.
    pub(crate) fn request_body(&self, incoming: Incoming) -> Body {
        Body::new(RequestBody { incoming: Some(incoming), exchange: self.clone() })
    }

    /// Wraps the response body; its bytes are released when they have been written.
    pub(crate) fn answer_body(&self, body: Body) -> Body {
        let size = HttpBody::size_hint(&body).lower();
        let size = usize::try_from(size).unwrap_or(usize::MAX).saturating_add(ANSWER_OVERHEAD_BYTES);
        let class = Arc::clone(&self.0.place.lock().unwrap_or_else(PoisonError::into_inner).0);
        let reservation = Reservation::new(class.budget.clone());
        reservation.set_beyond(size);
        let stall = Stall::of_this_stream();
        if let Some(stall) = &stall {
            stall.advanced();
        }
        let occupancy =
            Arc::new(Occupancy { _reservation: reservation, _progress: Arc::clone(&self.0.progress), stall });
        Body::new(AnswerBody { body, occupancy, rest: Bytes::new() })
    }
}

/// The client of a request, and the request's place.
pub(crate) struct RequestClient {
    /// Name of the token.
    pub(crate) owner: Option<Arc<str>>,
    /// The class in which the request has its place.
    pub(crate) class: Arc<Class>,
    /// The class of known clients.
    pub(crate) known: Arc<Class>,
    pub(crate) place: OwnedSemaphorePermit,
}

/// A request body that records what the handler waits for, and keeps what it leaves unread.
struct RequestBody {
    incoming: Option<Incoming>,
    exchange: Exchange,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = self.incoming.as_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(incoming).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.incoming = None;
        }
        let awaited = polled.is_pending();
        self.exchange.set_body(if awaited { BodyProgress::Awaited } else { BodyProgress::NotAwaited });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) {
            *self.exchange.0.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(incoming);
        }
    }
}

/// The bytes that a response occupies until it is written. Until then its request counts as in progress.
struct Occupancy {
    _reservation: Reservation,
    _progress: Arc<RequestProgress>,
    /// Stall detection, with HTTP/2 only.
    stall: Option<Stall>,
}

/// A response body whose bytes remain counted until the server library drops them, after it wrote them to the
/// socket.
struct AnswerBody {
    body: Body,
    occupancy: Arc<Occupancy>,
    /// The rest of a frame of which the library has taken a piece.
    rest: Bytes,
}

struct CountedBytes {
    bytes: Bytes,
    occupancy: Arc<Occupancy>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        if let Some(stall) = &self.occupancy.stall {
            stall.written();
        }
    }
}

impl AnswerBody {
    fn count(&self, bytes: Bytes) -> Bytes {
        if let Some(stall) = &self.occupancy.stall {
            stall.taken();
        }
        Bytes::from_owner(CountedBytes { bytes, occupancy: Arc::clone(&self.occupancy) })
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                // The HTTP/2 stream ends only when all of it is written, so that a client that does not read
                // is detected.
                return self
                    .occupancy
                    .stall
                    .as_ref()
                    .map_or(Poll::Ready(()), |stall| stall.poll_written(cx))
                    .map(|()| None);
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.rest = data,
                Ok(Err(other)) => return Poll::Ready(Some(Ok(other))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let length = self.rest.len();
        let piece = if self.occupancy.stall.is_some() { length.min(PIECE_BYTES) } else { length };
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(self.count(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let is_written = self.occupancy.stall.as_ref().is_none_or(Stall::is_written);
        self.rest.is_empty() && self.body.is_end_stream() && is_written
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = HttpBody::size_hint(&self.body);
        let rest = self.rest.len() as u64;
        let upper = hint.upper();
        hint.set_lower(hint.lower() + rest);
        if let Some(upper) = upper {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
