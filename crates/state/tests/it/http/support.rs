//! A listener of the state store over TCP or a Unix socket, and a client that returns raw responses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_server::{Answered, ConnectionSource, ListenerSettings, Timeouts, bind, bind_unix, serve};
use serde_json::Value;
use state::Store;
use state::http::{AllowedClients, StateService, refuse, router};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A time longer than any step takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The largest body.
pub(crate) const MAX_BODY_BYTES: usize = 10 * 1024 * 1024;

/// The operation and status of a response.
pub(crate) type Seen = (Option<String>, u16);

/// The transport between a test and the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

pub(crate) const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Unix];

pub(crate) struct Server {
    transport: Transport,
    addr: Option<std::net::SocketAddr>,
    folder: TempDir,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
    /// The responses that the observer received.
    pub(crate) answered: Arc<Mutex<Vec<Seen>>>,
}

/// The options of the listener.
pub(crate) struct Options {
    pub(crate) access: AllowedClients,
    pub(crate) statement_timeout: Duration,
    pub(crate) timeouts: Timeouts,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: AllowedClients::Everyone,
            statement_timeout: LONG,
            timeouts: Timeouts { read_header: LONG, request: 2 * LONG, idle: LONG },
        }
    }
}

impl Server {
    /// Serves `store`, by default for everyone and with timeouts that never pass.
    pub(crate) async fn start<S: Store>(store: S, transport: Transport, options: Options) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let service = StateService {
            store: Arc::new(store),
            access: options.access,
            statement_timeout: options.statement_timeout,
        };
        let answered: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let seen = Arc::clone(&answered);
        let observe = move |answer: Answered<'_>| {
            let answer = (answer.route.map(str::to_owned), answer.status.as_u16());
            seen.lock().expect("not poisoned").push(answer);
        };
        let settings = ListenerSettings {
            max_connections: 64,
            max_body_bytes: MAX_BODY_BYTES,
            max_buffered_bytes: 4 * MAX_BODY_BYTES,
            probes: &[],
            timeouts: options.timeouts,
            drain_delay: Duration::ZERO,
            drain_timeout: LONG,
            refuse,
            observe: Some(Arc::new(observe)),
            tls: None,
            tokens: None,
        };
        let stop = CancellationToken::new();
        let (addr, serving) = match transport {
            Transport::Tcp => {
                let listener = bind(Some("127.0.0.1"), 0).await.expect("a free port");
                let addr = listener.local_addr().expect("bound");
                (Some(addr), run(listener, service, settings, &stop))
            }
            Transport::Unix => {
                let path = folder.path().join("s");
                let listener = bind_unix(&path, 0o600).await.expect("nothing is there");
                (None, run(listener, service, settings, &stop))
            }
        };
        Self { transport, addr, folder, stop, serving, answered }
    }

    pub(crate) async fn connect(&self) -> Client {
        let stream: Box<dyn Stream> = match (self.transport, self.addr) {
            (Transport::Tcp, Some(addr)) => Box::new(TcpStream::connect(addr).await.expect("listens")),
            _ => Box::new(UnixStream::connect(self.folder.path().join("s")).await.expect("listens")),
        };
        Client { stream, buffer: Vec::new() }
    }

    /// Sends one request over a connection of its own.
    pub(crate) async fn ask(&self, request: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        self.connect().await.ask(request, headers, body).await
    }
}

fn run<S: Store>(
    listener: impl ConnectionSource,
    service: StateService<S>,
    settings: ListenerSettings,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    tokio::spawn(serve(listener, router(service), settings, stop.clone()))
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(crate) struct Client {
    pub(crate) stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

/// A response as it was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        let body = self.json();
        assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        body["error"].as_str().expect("a code").to_owned()
    }

    pub(crate) fn etag(&self) -> &str {
        self.header("etag").unwrap_or_else(|| panic!("{self:?} has no ETag"))
    }
}

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(LONG, self.stream.write_all(bytes.as_ref())).await.expect("is read").expect("is open");
    }

    /// Sends a request such as `GET /keys/a`, with headers each with a line break, and waits for its
    /// response.
    pub(crate) async fn ask(&mut self, request: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        let length = body.as_ref().len();
        let length = if length == 0 { String::new() } else { format!("Content-Length: {length}\r\n") };
        self.send(format!("{request} HTTP/1.1\r\nHost: state\r\n{headers}{length}\r\n")).await;
        self.send(body).await;
        self.answer(request.starts_with("HEAD ")).await
    }

    pub(crate) async fn answer(&mut self, is_head: bool) -> Answer {
        self.try_answer(is_head).await.expect("an answer before the connection ends")
    }

    /// The next response, if one arrives before the connection ends.
    pub(crate) async fn try_answer(&mut self, is_head: bool) -> Option<Answer> {
        loop {
            if let Some(answer) = self.take_answer(is_head) {
                return Some(answer);
            }
            let read = timeout(LONG, self.stream.read_buf(&mut self.buffer)).await;
            if !matches!(read.expect("an answer or an end"), Ok(1..)) {
                return None;
            }
        }
    }

    fn take_answer(&mut self, is_head: bool) -> Option<Answer> {
        let end = self.buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = str::from_utf8(&self.buffer[..end]).expect("ASCII");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers: Vec<_> = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let has_body = !is_head && status != 204 && status != 304;
        let length: usize = match length {
            Some((_, length)) if has_body => length.parse().expect("a length"),
            _ => 0,
        };
        let body = self.buffer.get(end..end + length)?;
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        self.buffer.drain(..end + length);
        Some(Answer { status, headers, body })
    }
}
