//! One request and its answer: what the listener, the body and the handler tell each other about it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::Extensions;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::budget::Reservation;
use crate::connection::Progress;

/// How far the body of the request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyProgress {
    /// The handler has not asked for it, or has it, or does something with a part of it.
    NotAwaited,
    /// The handler waits for the client.
    Awaited,
    /// The handler waits until the budget has room for it.
    Paused,
}

/// A request in progress. Clones share it; it is an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Exchange(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_body_bytes: usize,
    occupancy: Arc<Occupancy>,
    body: Mutex<BodyProgress>,
    /// How long the body had to wait for room.
    paused: Mutex<Duration>,
    /// What the handler did not read.
    unread: Mutex<Option<Incoming>>,
    route: OnceLock<Route>,
}

/// Which route serves a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// One of the router's.
    Matched(MatchedPath),
    /// One that a handler told apart.
    Named(&'static str),
}

impl Route {
    fn template(&self) -> &str {
        match self {
            Self::Matched(path) => path.as_str(),
            Self::Named(template) => template,
        }
    }
}

/// Names the route of a request for the observer, in a handler that tells routes apart by itself. The first name counts, and a
/// template of the router before it. There must be few templates, whatever clients send.
pub fn name_route(extensions: &Extensions, template: &'static str) {
    if let Some(exchange) = extensions.get::<Exchange>() {
        exchange.set_route(Route::Named(template));
    }
}

/// What a request occupies until its answer is written: a place among the requests in progress, bytes, and the attention of
/// its connection.
#[derive(Debug)]
pub(crate) struct Occupancy {
    reservation: Reservation,
    _place: OwnedSemaphorePermit,
    _progress: Progress,
}

impl Occupancy {
    pub(crate) fn new(reservation: Reservation, place: OwnedSemaphorePermit, progress: Progress) -> Self {
        Self { reservation, _place: place, _progress: progress }
    }
}

impl Exchange {
    pub(crate) fn new(max_body_bytes: usize, occupancy: Occupancy) -> Self {
        Self(Arc::new(Shared {
            max_body_bytes,
            occupancy: Arc::new(occupancy),
            body: Mutex::new(BodyProgress::NotAwaited),
            paused: Mutex::default(),
            unread: Mutex::default(),
            route: OnceLock::new(),
        }))
    }

    /// The largest body where the route does not say otherwise.
    pub(crate) fn max_body_bytes(&self) -> usize {
        self.0.max_body_bytes
    }

    /// What the body may occupy without being reserved, in bytes.
    pub(crate) fn share(&self) -> usize {
        self.0.occupancy.reservation.share()
    }

    /// Waits until the body may occupy `bytes`. Once in a request.
    pub(crate) async fn reserve(&self, bytes: usize) {
        let since = Instant::now();
        self.set_body(BodyProgress::Paused);
        self.0.occupancy.reservation.reserve(bytes).await;
        self.set_body(BodyProgress::NotAwaited);
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner) += since.elapsed();
    }

    /// How long the body waited for room before it could be read.
    pub(crate) fn paused(&self) -> Duration {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body turned out to occupy `bytes`.
    pub(crate) fn keep(&self, bytes: usize) {
        self.0.occupancy.reservation.set(bytes);
    }

    /// How far the body has come.
    pub(crate) fn body(&self) -> BodyProgress {
        *self.0.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_body(&self, progress: BodyProgress) {
        *self.0.body.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// The route that matched.
    pub(crate) fn set_route(&self, route: Route) {
        // A nested router sets it again; the first one has the whole path.
        let _ = self.0.route.set(route);
    }

    /// The template of the route that matched, if one did.
    pub(crate) fn route(&self) -> Option<&str> {
        self.0.route.get().map(Route::template)
    }

    /// The rest of the body, if the handler did not read all of it.
    pub(crate) fn take_unread(&self) -> Option<Incoming> {
        self.0.unread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The body of the request, for the handler.
    pub(crate) fn request_body(&self, incoming: Incoming) -> Body {
        Body::new(RequestBody { incoming: Some(incoming), exchange: self.clone() })
    }

    /// `body` as it is sent: what it occupies is released when it has been written.
    pub(crate) fn answer_body(&self, body: Body) -> Body {
        let size = HttpBody::size_hint(&body).lower();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        self.0.occupancy.reservation.set(size);
        Body::new(AnswerBody { body, occupancy: Arc::clone(&self.0.occupancy) })
    }
}

/// Notes what the handler waits for, and keeps what it leaves unread.
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

/// An answer whose bytes keep what the request occupies until the server library drops them, which is after they were
/// written to the socket.
struct AnswerBody {
    body: Body,
    occupancy: Arc<Occupancy>,
}

struct Counted {
    bytes: Bytes,
    _occupancy: Arc<Occupancy>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let occupancy = Arc::clone(&self.occupancy);
        let count = |bytes| Bytes::from_owner(Counted { bytes, _occupancy: occupancy });
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| frame.map_data(count))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}
