//! A listener with some routes, and a client that returns what the server sends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use http_server::problem::{FORBIDDEN, Problem, refuse, with_fallbacks};
use http_server::tokens::{AccessTokens, Principal, TokenGuard};
use http_server::{
    Answered, BodyLimit, ConnectionSource, JsonBody, JsonText, ListenerSettings, Object, Peer, RequestId,
    Started, Timeouts, bind, bind_unix, serve,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longer than any operation takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A limit that a test waits for.
pub(crate) const SHORT: Duration = Duration::from_millis(60);
/// Longer than the short limits, to check that nothing happens.
pub(crate) const WHILE: Duration = Duration::from_millis(240);

pub(crate) const MAX_CONNECTIONS: usize = 32;
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;
pub(crate) const MAX_BATCH_BYTES: usize = 1024 * 1024;
pub(crate) const LONG_TIMEOUTS: Timeouts = Timeouts { read_header: LONG, request: LONG, idle: LONG };

/// The route and status of a response.
pub(crate) type Seen = (Option<String>, StatusCode);

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
    /// Each permit lets one request to `/held` continue.
    pub(crate) release: Arc<Semaphore>,
    /// One permit per request that waits in `/held`.
    pub(crate) held: Arc<Semaphore>,
    /// The calls of the observer.
    pub(crate) answered: Arc<Mutex<Vec<Seen>>>,
}

/// Settings whose limits are not reached accidentally.
pub(crate) fn settings() -> ListenerSettings {
    ListenerSettings {
        max_connections: MAX_CONNECTIONS,
        max_body_bytes: MAX_BODY_BYTES,
        max_buffered_bytes: 16 * MAX_BATCH_BYTES,
        probes: &["/two"],
        timeouts: LONG_TIMEOUTS,
        drain_delay: Duration::ZERO,
        drain_timeout: LONG,
        refuse,
        observe: None,
        tls: None,
        tokens: None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Strict {
    name: String,
    inner: Option<Object<Inner>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    number: u8,
}

/// The tokens of `game` and `on-call`.
pub(crate) fn tokens() -> AccessTokens {
    let entry = |name: &str, rest: &str| {
        let hash = hex::encode(Sha256::digest(format!("{name}-token")));
        format!("[[token]]\nname = {name:?}\nsha256 = \"{hash}\"\n{rest}\n")
    };
    let text = entry("game", "producer = \"game\"") + &entry("on-call", "role = \"operator\"");
    AccessTokens::from_toml(&text).expect("a right file")
}

/// A guard with a limit of 5 requests per second.
fn guard() -> TokenGuard {
    TokenGuard::new(tokens(), 5)
}

fn may_send(who: &Principal) -> Result<(), Problem> {
    who.producer
        .is_some()
        .then_some(())
        .ok_or_else(|| Problem::new(FORBIDDEN, "Only a producer's token sends."))
}

fn router(release: Arc<Semaphore>, held: Arc<Semaphore>) -> Router {
    let hold = move |JsonText(body): JsonText| async move {
        held.add_permits(1);
        release.acquire().await.expect("is never closed").forget();
        format!("length {}", body.len())
    };
    let send = |who: Principal, JsonText(_): JsonText| async move { format!("sent by {}", who.name) };
    let strict = |JsonBody(body): JsonBody<Strict>| async move {
        format!("{} {:?}", body.name, body.inner.map(|Object(inner)| inner.number))
    };
    let id = |id: RequestId| async move { format!("{} {}", id.as_str(), id.from_client().is_some()) };
    let started = |Started(at): Started| async move { at.elapsed().as_millis().to_string() };
    let length = |JsonText(body): JsonText| async move { format!("length {}", body.len()) };
    let routes = Router::new()
        .route("/one", get(|| async { "answer one" }))
        .route("/two", get(|| async { "answer two" }))
        .route("/length", post(length))
        .route("/batch", post(length).layer(Extension(BodyLimit(MAX_BATCH_BYTES))))
        .route("/strict", post(strict))
        .route("/held", post(hold).layer(Extension(BodyLimit(MAX_BATCH_BYTES))))
        .route("/never", get(|| async { std::future::pending::<&str>().await }))
        .route("/panic", get(|| async { if true { panic!("as the test wants it") } else { "" } }))
        .route("/id", get(id))
        .route("/started", get(started))
        .route("/peer", get(|Extension(peer): Extension<Peer>| async move { format!("{peer:?}") }))
        .route(
            "/bytes/{n}",
            get(|path: axum::extract::Path<usize>| async move { "x".repeat(path.0).into_response() }),
        )
        .route("/sent", guard().protect(post(send), |who, _| may_send(who)));
    with_fallbacks(routes)
}

pub(crate) async fn start(settings: ListenerSettings) -> Server {
    let listener = bind(Some("127.0.0.1"), 0).await.expect("a free port");
    let addr = listener.local_addr().expect("bound");
    start_on(listener, addr, settings)
}

/// Starts a listener on a Unix socket. The address of the server is unused: connect to the path.
pub(crate) async fn start_unix(path: &Path, settings: ListenerSettings) -> Server {
    let listener = bind_unix(path, 0o600).await.expect("nothing is in the way");
    start_on(listener, SocketAddr::from(([0, 0, 0, 0], 0)), settings)
}

fn start_on(listener: impl ConnectionSource, addr: SocketAddr, settings: ListenerSettings) -> Server {
    let stop = CancellationToken::new();
    let (release, held, answered) =
        (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)), Arc::default());
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::clone(&answered);
    let note = move |answer: Answered<'_>| {
        seen.lock().expect("not poisoned").push((answer.route.map(str::to_owned), answer.status));
    };
    let settings = ListenerSettings { observe: Some(Arc::new(note)), ..settings };
    let router = router(Arc::clone(&release), Arc::clone(&held));
    let serving = tokio::spawn(serve(listener, router, settings, stop.clone()));
    Server { addr, stop, serving, release, held, answered }
}

impl Server {
    /// Waits until `count` further requests wait in `/held`.
    pub(crate) async fn wait_for_held(&self, count: u32) {
        let held = timeout(LONG, self.held.acquire_many(count)).await;
        held.expect("so many requests come").expect("is never closed").forget();
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let mut client = Client::connect(self).await;
        client.get(path).await
    }
}

/// A response as it was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Head in lower case.
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The name of the problem.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body: serde_json::Value = serde_json::from_str(&self.body).expect("JSON");
        assert_eq!(body["status"], self.status);
        assert!(
            body["title"].is_string() && body["detail"].is_string() && body["instance"].is_string(),
            "{body}"
        );
        body["type"].as_str().and_then(|name| name.strip_prefix("/problems/")).expect("a type").to_owned()
    }
}

pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: S,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.addr).await.expect("is listening");
        Self { stream, buffer: Vec::new() }
    }
}

impl Client<UnixStream> {
    pub(crate) async fn connect_unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).await.expect("is listening");
        Self { stream, buffer: Vec::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("is open");
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        self.answer().await
    }

    /// Sends the head of a POST with a body of `length` bytes; each of `headers` ends with a line break.
    pub(crate) async fn begin_post(&mut self, path: &str, headers: &str, length: usize) {
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.send(head).await;
    }

    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        self.begin_post(path, headers, body.as_ref().len()).await;
        self.send(body).await;
        self.answer().await
    }

    /// Reads the next response, which has a `Content-Length`.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer before the connection ends")
    }

    /// Reads the next response, if one arrives before the connection ends.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(answer) = self.take_answer() {
                return Some(answer);
            }
            let read =
                timeout(LONG, self.stream.read_buf(&mut self.buffer)).await.expect("an answer or an end");
            if !matches!(read, Ok(1..)) {
                return None;
            }
        }
    }

    fn take_answer(&mut self) -> Option<Answer> {
        let end = self.buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
        let body = self.buffer.get(end..end + length)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
        let answer = Answer { status, body: String::from_utf8_lossy(body).into_owned(), head };
        self.buffer.drain(..end + length);
        Some(answer)
    }

    /// Reads everything until the server closes the connection.
    pub(crate) async fn until_closed(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.buffer);
        // Closing with unread bytes resets the connection, which is an end as well.
        let outcome = timeout(LONG, self.stream.read_to_end(&mut rest)).await;
        let outcome = outcome.expect("the server closes the connection");
        assert!(outcome.is_ok() || rest.is_empty(), "{outcome:?}");
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// True if nothing arrives for a while, not even the end.
    pub(crate) async fn is_silent(&mut self) -> bool {
        timeout(WHILE, self.stream.read_buf(&mut self.buffer)).await.is_err()
    }
}

/// The headers that a JSON body requires.
pub(crate) const JSON: &str = "Content-Type: application/json\r\n";
