//! Accepts a bounded number of connections, and stops.

use std::collections::HashMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::connection::ConnectionActivity;
use crate::frames::{Fragments, Frames};
use crate::framing::{BodyFraming, Framing};
use crate::proxies::Peer;
use crate::service::{HttpService, ListenerSettings};
use crate::socket::ConnectionSource;
use crate::stall::StreamExecutor;
use crate::stream::Watched;

/// The pause after a connection could not be accepted, for example for lack of file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The interval of a listener timer that does nothing. Tokio wakes the thread that waits for the network
/// whenever a timer is created that expires before all others. Without this timer, each request timeout would
/// do so.
const TIMER_INTERVAL: Duration = Duration::from_millis(500);

/// The interval at which a further connection without room looks for an idle one.
const ROOM_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The server library's buffer for a connection, in bytes: a piece of a body, a piece of a response. It may
/// overshoot by one read, to twice as much.
const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;

/// The longest head of a request with HTTP/1.1, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The most headers of a request with HTTP/1.1.
const MAX_HEADERS: usize = 100;

/// The most requests in progress on one HTTP/2 connection.
const MAX_STREAMS: u32 = 100;

/// The longest head of a request with HTTP/2, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 32 * 1024;

/// The time limit for writing the response to an incomplete head.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The response to a head that is incomplete at its deadline. No handler was called, so it has no body.
const HEAD_TIMEOUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves `router` until `stop` and for the drain delay after it, then closes connections as they become
/// idle. Returns when all are closed, at the latest after the drain timeout.
pub async fn serve<L: ConnectionSource>(
    listener: L,
    router: Router,
    settings: ListenerSettings,
    stop: CancellationToken,
) {
    let (drain_delay, drain_timeout) = (settings.drain_delay, settings.drain_timeout);
    let room = ConnectionRoom::new(settings.max_connections);
    let service = Arc::new(HttpService::new(router, settings));
    let drain = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut ended = pin!(async {
        while timeout(TIMER_INTERVAL, stop.cancelled()).await.is_err() {}
        sleep(drain_delay).await;
    });
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut ended => break,
            accepted = room.accept(&listener) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let peer = Peer { addr: L::peer(&stream), tls: service.settings.tls.is_some() };
                let connection =
                    OpenConnection::new(Arc::clone(&service), peer, &room, drain.clone(), permit);
                connections.spawn(connection.serve(stream));
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    let _remains = listener.close();
    drain.cancel();
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if timeout(drain_timeout, all_ended).await.is_err() {
        tracing::debug!("closed connections with requests in flight while stopping");
    }
}

/// The open connections, and the room for further ones. Clones share it.
#[derive(Clone)]
struct ConnectionRoom {
    permits: Arc<Semaphore>,
    connections: Arc<Mutex<OpenConnections>>,
}

#[derive(Default)]
struct OpenConnections {
    made: u64,
    open: HashMap<u64, ConnectionActivity>,
}

impl ConnectionRoom {
    fn new(max_connections: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(max_connections)), connections: Arc::default() }
    }

    /// Accepts a connection and finds room for it; meanwhile further ones stay in the backlog.
    async fn accept<L: ConnectionSource>(
        &self,
        listener: &L,
    ) -> io::Result<(L::Stream, OwnedSemaphorePermit)> {
        let stream = listener.accept().await?;
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok((stream, permit));
        }
        loop {
            self.close_one();
            let permit = timeout(ROOM_RETRY_INTERVAL, Arc::clone(&self.permits).acquire_owned()).await;
            if let Ok(permit) = permit {
                return Ok((stream, permit.map_err(io::Error::other)?));
            }
        }
    }

    /// Closes the most expendable connection, if one can be closed.
    fn close_one(&self) {
        let connections = self.connections();
        let ranked = connections.open.values().filter_map(|one| Some((one.expendability()?, one)));
        let first = ranked.min_by_key(|(rank, _)| *rank);
        if let Some((_, activity)) = first.filter(|((_, from), _)| *from <= Instant::now()) {
            activity.make_room();
        }
    }

    fn enter(&self, activity: &ConnectionActivity) -> u64 {
        let mut connections = self.connections();
        connections.made += 1;
        let number = connections.made;
        connections.open.insert(number, activity.clone());
        number
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, OpenConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection; ends on drop.
struct OpenConnection {
    service: Arc<HttpService>,
    peer: Peer,
    activity: ConnectionActivity,
    drain: CancellationToken,
    room: ConnectionRoom,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.room.connections().open.remove(&self.number);
    }
}

/// The way in which a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    Closed,
    TimedOut,
}

impl OpenConnection {
    fn new(
        service: Arc<HttpService>,
        peer: Peer,
        room: &ConnectionRoom,
        drain: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let activity = ConnectionActivity::new(service.settings.timeouts);
        let number = room.enter(&activity);
        Self { service, peer, activity, drain, room: room.clone(), number, _permit: permit }
    }

    /// Serves the connection until it ends, its deadline passes, or it is idle and the listener stops.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Some(tls) = &self.service.settings.tls else { return self.serve_http1(stream).await };
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        let stream = tokio::select! {
            outcome = handshake => outcome,
            () = self.activity.passed() => return,
            () = self.drain.cancelled() => return,
        };
        match stream {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => self.serve_http2(stream).await,
            Ok(stream) => self.serve_http1(stream).await,
            Err(error) => tracing::debug!(error = %error, "a TLS handshake failed"),
        }
    }

    async fn serve_http1(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let framing = Framing::default();
        let service = service_fn(|request: Request<Incoming>| {
            // Without a length the body is chunked. A body without both headers is empty and has a length.
            let body = request.body().size_hint().exact().map_or(BodyFraming::Chunked, BodyFraming::Length);
            let has_fragment = framing.begin(body);
            Arc::clone(&self.service).answer(request, self.peer, &self.activity, has_fragment)
        });
        let io = TokioIo::new(Watched::http1(stream, self.activity.clone(), framing.clone()));
        let mut connection = http1::Builder::new()
            // The deadline is kept in connection.rs.
            .header_read_timeout(None)
            .max_buf_size(CONNECTION_BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            // Responses are not copied into the buffer of the connection, so that their bytes are counted
            // until written.
            .writev(true)
            .serve_connection(io, service);
        if self.drive(Pin::new(&mut connection)).await == ConnectionEnd::TimedOut
            && self.activity.is_in_head()
        {
            let mut io = connection.into_parts().io.into_inner();
            // Fails if the client is gone; the connection ends in either case.
            let _ = timeout(LAST_WORD_TIMEOUT, io.write_all(HEAD_TIMEOUT)).await;
            let _ = timeout(LAST_WORD_TIMEOUT, io.shutdown()).await;
        }
    }

    async fn serve_http2(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let (service, peer, activity) = (Arc::clone(&self.service), self.peer, self.activity.clone());
        let executor = StreamExecutor::new(Arc::clone(&service.stalled));
        let fragments = Fragments::default();
        let (frames, watched) = (Frames::new(fragments.clone()), self.activity.clone());
        let service = service_fn(move |request| {
            // It is not known which of the requests it was: a client that sends such a target has to
            // reconnect.
            let has_fragment = fragments.were_seen();
            if has_fragment {
                activity.retire();
            }
            Arc::clone(&service).answer(request, peer, &activity, has_fragment)
        });
        let window = u32::try_from(CONNECTION_BUFFER_BYTES).unwrap_or(u32::MAX);
        let connection = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .max_send_buf_size(CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(Watched::http2(stream, watched, frames)), service);
        self.drive(pin!(connection)).await;
    }

    async fn drive<C>(&self, mut connection: Pin<&mut C>) -> ConnectionEnd
    where
        C: GracefulConnection<Error = hyper::Error>,
    {
        let mut closing = false;
        loop {
            tokio::select! {
                outcome = connection.as_mut() => {
                    if let Err(error) = outcome {
                        tracing::debug!(error = %error, "a connection failed");
                    }
                    return ConnectionEnd::Closed;
                }
                () = self.activity.passed() => return ConnectionEnd::TimedOut,
                () = self.drain.cancelled(), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = self.activity.unwanted(), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
