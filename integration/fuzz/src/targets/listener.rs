//! Conversations with the listener of the service over streams in memory.
//!
//! Time passes only while everything waits, so a limit of 30 s is reached at once, and only if nothing else
//! happens. Each conversation has a listener of its own, so that it depends on its input alone.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use http_server::tokens::AccessTokens;
use http_server::{Answered, ConnectionSource, ListenerRefusal, ListenerSettings, Timeouts, Tls, serve};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The bytes that a stream in memory holds in each direction.
const STREAM_BYTES: usize = 64 * 1024;
/// The bytes that a client sends at most that does not stop sending.
const FLOOD_BYTES: usize = 1024 * 1024;
/// The bytes that are repeated then: the last ones of its input.
const REPEATED_BYTES: usize = 64;
/// The time after which every connection is closed: more than all limits of one together.
const LIMIT: Duration = Duration::from_secs(300);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: usize = 8;
/// The largest body of a request, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// A way to send an input, which its first byte chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// True if the client closes its side afterwards.
    closes: bool,
    /// True if the client continues with the end of the input, again and again.
    floods: bool,
    /// The bytes sent at a time; 0 for all.
    piece: usize,
}

impl Sending {
    pub(super) fn of(byte: u8) -> Self {
        Self { closes: byte & 1 == 1, floods: byte & 2 == 2, piece: usize::from(byte >> 2) }
    }
}

/// A listener to talk to.
pub(super) struct Listener {
    pub(super) router: Router,
    pub(super) refuse: fn(ListenerRefusal) -> Response,
    pub(super) tokens: Option<AccessTokens>,
    pub(super) tls: Option<Tls>,
}

/// The responses of a listener.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The bytes that the listener sent.
    pub(super) received: Vec<u8>,
    /// The statuses of the responses to requests that had a complete head.
    pub(super) statuses: Vec<StatusCode>,
    /// The bytes that the listener took.
    pub(super) taken: usize,
    /// The bytes that it sent on the connection after that, for the second input.
    pub(super) afterwards: Vec<u8>,
}

impl Listener {
    /// Sends `input` on one connection, and when it has ended `valid` on another one. Panics if a task of the
    /// listener panics, if a connection has no end, or if the listener does not stop.
    pub(super) fn converse<S: Encryption>(
        self,
        encryption: &S,
        (sending, input): (Sending, &[u8]),
        valid: &[u8],
    ) -> Conversation {
        note_panics();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let conversation = runtime.block_on(async {
            let (connections, accepted) = unbounded_channel();
            let (stop, statuses) = (CancellationToken::new(), Arc::<Mutex<Vec<StatusCode>>>::default());
            let settings = self.settings(Arc::clone(&statuses));
            let source = Source(tokio::sync::Mutex::new(accepted));
            let serving = tokio::spawn(serve(source, self.router, settings, stop.clone()));
            let (received, taken) = exchange(&connections, encryption, sending, input).await;
            let noted = std::mem::take(&mut *statuses.lock().unwrap_or_else(PoisonError::into_inner));
            let again = Sending { closes: true, floods: false, piece: 0 };
            let (afterwards, _) = exchange(&connections, encryption, again, valid).await;
            stop.cancel();
            let stopped = timeout(LIMIT, serving).await.expect("the listener does not stop");
            stopped.expect("the listener does not panic");
            Conversation { received, statuses: noted, taken, afterwards }
        });
        drop(runtime);
        assert!(!PANICKED.take(), "a task of the listener panicked");
        conversation
    }

    fn settings(&self, statuses: Arc<Mutex<Vec<StatusCode>>>) -> ListenerSettings {
        let note = move |answered: Answered<'_>| {
            statuses.lock().unwrap_or_else(PoisonError::into_inner).push(answered.status);
        };
        let second = Duration::from_secs(1);
        ListenerSettings {
            max_connections: MAX_CONNECTIONS,
            max_body_bytes: MAX_BODY_BYTES,
            max_buffered_bytes: 16 * MAX_BODY_BYTES,
            probes: &["/one"],
            timeouts: Timeouts { read_header: 10 * second, request: 30 * second, idle: 75 * second },
            drain_delay: Duration::ZERO,
            drain_timeout: DRAIN_TIMEOUT,
            refuse: self.refuse,
            observe: Some(Arc::new(note)),
            tls: self.tls.clone(),
            tokens: self.tokens.clone(),
        }
    }
}

/// A protocol between the streams and HTTP.
pub(super) trait Encryption {
    type Stream: AsyncRead + AsyncWrite + Unpin;

    fn connect(&self, stream: DuplexStream) -> impl Future<Output = io::Result<Self::Stream>>;
}

/// No encryption.
pub(super) struct Plain;

impl Encryption for Plain {
    type Stream = DuplexStream;

    async fn connect(&self, stream: DuplexStream) -> io::Result<DuplexStream> {
        Ok(stream)
    }
}

/// Sends an input on a new connection. Returns all that arrives until its end, and the bytes that the
/// listener took.
async fn exchange(
    connections: &UnboundedSender<CountedStream>,
    encryption: &impl Encryption,
    sending: Sending,
    input: &[u8],
) -> (Vec<u8>, usize) {
    let (client, server) = duplex(STREAM_BYTES);
    let taken = Arc::<AtomicUsize>::default();
    let server = CountedStream { stream: server, taken: Arc::clone(&taken) };
    connections.send(server).expect("the listener accepts connections");
    let client = encryption.connect(client).await.expect("the listener takes a connection");
    let (mut reader, mut writer) = tokio::io::split(client);
    let mut received = Vec::new();
    let conversation = async {
        let send = async {
            // Fails if the listener has closed the connection, which the reader sees.
            let sent = send(&mut writer, sending, input).await;
            if sending.closes || sent.is_err() {
                let _ = writer.shutdown().await;
            }
        };
        let receive = async {
            // A connection that is cut off has ended as well.
            let _ = reader.read_to_end(&mut received).await;
        };
        tokio::join!(send, receive);
    };
    timeout(LIMIT, conversation).await.expect("the listener closes the connection within its limits");
    // The task of the connection sees its end before the next connection comes.
    sleep(Duration::from_millis(1)).await;
    (received, taken.load(Ordering::SeqCst))
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), sending: Sending, input: &[u8]) -> io::Result<()> {
    let piece = if sending.piece == 0 { input.len().max(1) } else { sending.piece };
    for piece in input.chunks(piece) {
        writer.write_all(piece).await?;
        writer.flush().await?;
        tokio::task::yield_now().await;
    }
    let repeated = &input[input.len().saturating_sub(REPEATED_BYTES)..];
    let mut rest = if sending.floods && !repeated.is_empty() { FLOOD_BYTES } else { 0 };
    let block = repeated.repeat(STREAM_BYTES / REPEATED_BYTES);
    while rest > 0 {
        writer.write_all(&block).await?;
        rest = rest.saturating_sub(block.len());
    }
    writer.flush().await
}

/// The source of the connections.
struct Source(tokio::sync::Mutex<UnboundedReceiver<CountedStream>>);

impl ConnectionSource for Source {
    type Stream = CountedStream;
    type Remains = ();

    async fn accept(&self) -> io::Result<CountedStream> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }

    fn peer(_: &CountedStream) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)))
    }

    fn close(self) {}
}

/// A stream that counts the bytes that are read from it.
struct CountedStream {
    stream: DuplexStream,
    taken: Arc<AtomicUsize>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.taken.fetch_add(buf.filled().len() - before, Ordering::SeqCst);
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

thread_local! {
    /// True if a task of this thread panicked; the runtime keeps such a panic to itself.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.set(true);
            before(panic);
        }));
    });
    PANICKED.set(false);
}

/// Checks that what a listener sent with HTTP/1 begins as a response. Returns its status; `None` if the
/// listener sent nothing.
pub(super) fn first_status(received: &[u8]) -> Option<u16> {
    if received.is_empty() {
        return None;
    }
    let shown = || String::from_utf8_lossy(&received[..received.len().min(200)]);
    let status = received.strip_prefix(b"HTTP/1.1 ").or(received.strip_prefix(b"HTTP/1.0 "));
    let status = status.and_then(|rest| str::from_utf8(rest.get(..3)?).ok()?.parse().ok());
    Some(status.unwrap_or_else(|| panic!("not a response: {}", shown())))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_server::problem::refuse;

    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

    fn talk(router: Router, sent: &[u8]) -> Conversation {
        let listener = Listener { router, refuse, tokens: None, tls: None };
        listener.converse(&Plain, (Sending::of(0), sent), GET)
    }

    #[test]
    fn a_request_gets_its_response_and_half_a_request_ends_at_its_limit() {
        let router = Router::new().route("/", get(|| async { "x" }));
        let whole = talk(router.clone(), GET);
        assert_eq!((first_status(&whole.received), first_status(&whole.afterwards)), (Some(200), Some(200)));
        let half = talk(router, &GET[..20]);
        assert_eq!((first_status(&half.received), half.statuses.len()), (Some(408), 0));
    }

    #[test]
    #[should_panic(expected = "a task of the listener panicked")]
    fn a_panic_behind_the_listener_is_found() {
        let router = Router::new().route("/", get(|| async { if true { panic!("on purpose") } else { "" } }));
        talk(router, GET);
    }
}
