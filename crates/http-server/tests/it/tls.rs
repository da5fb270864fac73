//! TLS: HTTP/2 and HTTP/1.1, and certificates that change.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use http_server::{ListenerSettings, Timeouts, Tls};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{JSON, LONG, LONG_TIMEOUTS, MAX_BATCH_BYTES, WHILE, settings, start, tokens};

/// A certificate for `localhost`, and its key, in files.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates and writes a new certificate, then its key if `key_too` is true.
    fn renew(&self, key_too: bool) -> CertificateDer<'static> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        fs::write(self.path("cert.pem"), cert.pem()).expect("is written");
        if key_too {
            fs::write(self.path("key.pem"), signing_key.serialize_pem()).expect("is written");
        }
        cert.der().clone()
    }

    fn load(&self) -> Result<Tls, String> {
        Tls::load(&self.path("cert.pem"), &self.path("key.pem")).map_err(|error| error.to_string())
    }
}

/// A connection that trusts only `certificate` and offers `protocol`.
async fn connect(
    addr: SocketAddr,
    certificate: &CertificateDer<'static>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(addr).await?).await
}

fn post(path: &str, body: Vec<u8>) -> Request<Body> {
    let (name, value) = JSON.trim_end().split_once(": ").expect("a header");
    let request = Request::post(format!("https://localhost{path}")).header(name, value);
    request.body(Body::from(body)).expect("a request")
}

async fn http2(addr: SocketAddr, certificate: &CertificateDer<'static>) -> http2::SendRequest<Body> {
    let stream = connect(addr, certificate, "h2").await.expect("a connection");
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (client, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_client_chooses_between_http_2_and_http_1() {
    let files = Files::new();
    let certificate = files.renew(true);
    let tls = files.load().expect("a pair");
    let server = start(ListenerSettings { tls: Some(tls), ..settings() }).await;

    let mut client = http2(server.addr, &certificate).await;
    for length in [5, MAX_BATCH_BYTES] {
        let answer = client.send_request(post("/batch", vec![b'x'; length])).await.expect("an answer");
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body, format!("length {length}"));
    }
    let refused = client.send_request(post("/batch", vec![b'x'; 4 * MAX_BATCH_BYTES])).await;
    assert_eq!(refused.expect("an answer").status(), 413);

    let stream = connect(server.addr, &certificate, "http/1.1").await.expect("a connection");
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    let mut request = post("/batch", vec![b'x'; MAX_BATCH_BYTES]);
    request.headers_mut().insert("host", "localhost".parse().expect("a value"));
    let answer = client.send_request(request).await.expect("an answer");
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_connection_has_a_hundred_requests_in_progress_at_most_and_all_have_as_many_as_connections() {
    let files = Files::new();
    let certificate = files.renew(true);
    for (max_connections, expected) in [(200, 100), (20, 20)] {
        let tls = files.load().expect("a pair");
        let server = start(ListenerSettings { tls: Some(tls), max_connections, ..settings() }).await;
        let client = http2(server.addr, &certificate).await;
        let requests = (0..150).map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.send_request(post("/held", b"{}".to_vec())).await })
        });
        let requests: Vec<_> = requests.collect();
        server.wait_for_held(expected).await;
        let more = timeout(WHILE, server.held.acquire()).await;
        assert!(more.is_err(), "more than {expected} requests at once");
        server.release.add_permits(150);
        for request in requests {
            assert_eq!(request.await.expect("does not panic").expect("an answer").status(), 200);
        }
    }
}

#[tokio::test]
async fn a_connection_whose_handshake_does_not_end_is_cut_off_at_the_header_limit() {
    let files = Files::new();
    files.renew(true);
    let timeouts = Timeouts { read_header: WHILE, ..LONG_TIMEOUTS };
    let server =
        start(ListenerSettings { tls: Some(files.load().expect("a pair")), timeouts, ..settings() }).await;
    let mut client = crate::support::Client::connect(&server).await;
    client.send("\u{16}").await;
    assert_eq!(client.until_closed().await, "");
}

#[tokio::test]
async fn stopping_ends_idle_connections_of_http_2() {
    let files = Files::new();
    let certificate = files.renew(true);
    let server = start(ListenerSettings { tls: Some(files.load().expect("a pair")), ..settings() }).await;
    let mut client = http2(server.addr, &certificate).await;
    assert_eq!(client.send_request(post("/length", b"{}".to_vec())).await.expect("an answer").status(), 200);
    server.stop.cancel();
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
}

#[tokio::test]
async fn a_pair_that_does_not_match_is_refused_at_start() {
    let files = Files::new();
    files.renew(true);
    files.renew(false);
    let error = files.load().expect_err("does not match");
    assert!(error.contains("cert.pem and ") && error.contains("cannot be used together"), "{error}");
    fs::write(files.path("key.pem"), "no key").expect("is written");
    assert!(files.load().expect_err("no key").contains("holds no private key"));
    fs::write(files.path("cert.pem"), "").expect("is written");
    assert!(files.load().expect_err("no certificate").contains("holds no certificate"));
    fs::remove_file(files.path("cert.pem")).expect("was there");
    assert!(files.load().expect_err("no file").contains("cert.pem cannot be read"));
}

#[tokio::test]
async fn a_handler_learns_who_the_peer_is_and_whether_the_connection_is_encrypted() {
    let plain = start(settings()).await;
    assert_eq!(plain.get("/peer").await.body, "Peer { addr: Some(127.0.0.1), tls: false }");
    let files = Files::new();
    let certificate = files.renew(true);
    let server = start(ListenerSettings { tls: Some(files.load().expect("a pair")), ..settings() }).await;
    let mut client = http2(server.addr, &certificate).await;
    let request = Request::get("https://localhost/peer").body(Body::empty()).expect("a request");
    let answer = client.send_request(request).await.expect("an answer");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "Peer { addr: Some(127.0.0.1), tls: true }");
}

/// The hundred responses to a client that opens no window for their bodies.
async fn without_window(
    addr: SocketAddr,
    certificate: &CertificateDer<'static>,
    path: &str,
) -> Vec<Response<Incoming>> {
    let stream = connect(addr, certificate, "h2").await.expect("a connection");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let handshake = builder.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await;
    let (client, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let requests = (0..100).map(|_| {
        let mut client = client.clone();
        let request =
            Request::get(format!("https://localhost{path}")).body(Body::empty()).expect("a request");
        tokio::spawn(async move { client.send_request(request).await.expect("a head") })
    });
    let mut answers = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        answers.push(request.await.expect("does not panic"));
    }
    answers
}

#[tokio::test]
async fn answers_that_get_no_window_keep_no_place_and_end_after_the_stall_timeout() {
    let files = Files::new();
    let certificate = files.renew(true);
    for tokens in [None, Some(tokens())] {
        let tls = files.load().expect("a pair");
        // Far fewer places than responses.
        let server =
            start(ListenerSettings { tls: Some(tls), max_connections: 20, tokens, ..settings() }).await;
        let begun = Instant::now();
        let untaken = without_window(server.addr, &certificate, "/one").await;
        let mut client = http2(server.addr, &certificate).await;
        let answer = client.send_request(post("/length", b"{}".to_vec())).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert!(begun.elapsed() < Duration::from_secs(8), "it had to wait for the others");
        for answer in untaken {
            let ended = timeout(LONG, answer.into_body().collect()).await.expect("it is ended");
            assert!(ended.is_err(), "an answer without a window was sent");
        }
        assert!(begun.elapsed() >= Duration::from_secs(10), "ended too early");
    }
}

#[tokio::test]
async fn a_large_answer_is_taken_by_http_2_as_it_was_made() {
    let files = Files::new();
    let certificate = files.renew(true);
    let server = start(ListenerSettings { tls: Some(files.load().expect("a pair")), ..settings() }).await;
    let mut client = http2(server.addr, &certificate).await;
    for length in [0, 1, 16_384, 65_535, 3_000_000] {
        let request =
            Request::get(format!("https://localhost/bytes/{length}")).body(Body::empty()).expect("a request");
        let answer = client.send_request(request).await.expect("an answer");
        assert_eq!(answer.headers()["content-length"], length.to_string());
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes().len(), length);
    }
}

#[tokio::test]
async fn unknown_clients_with_slow_bodies_leave_the_places_to_known_ones() {
    let files = Files::new();
    let certificate = files.renew(true);
    let tls = files.load().expect("a pair");
    let server =
        start(ListenerSettings { tls: Some(tls), max_connections: 20, tokens: Some(tokens()), ..settings() })
            .await;
    let slow = http2(server.addr, &certificate).await;
    let requests: Vec<_> = (0..100)
        .map(|_| {
            let mut client = slow.clone();
            let body =
                Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
            let (parts, _) = post("/length", Vec::new()).into_parts();
            tokio::spawn(async move { client.send_request(Request::from_parts(parts, body)).await })
        })
        .collect();
    let mut known = http2(server.addr, &certificate).await;
    let mut request = post("/sent", b"{}".to_vec());
    request.headers_mut().insert("authorization", "Bearer game-token".parse().expect("a value"));
    let answer = timeout(Duration::from_secs(2), known.send_request(request)).await;
    assert_eq!(answer.expect("there is a place").expect("an answer").status(), 200);
    requests.into_iter().for_each(|request| request.abort());
}

#[tokio::test]
async fn a_target_with_a_fragment_is_400() {
    let files = Files::new();
    let certificate = files.renew(true);
    let server = start(ListenerSettings { tls: Some(files.load().expect("a pair")), ..settings() }).await;
    // A path in the format of RFC 7541, with its length: literal, and Huffman-coded.
    for (path, expected) in
        [(&b"\x04/one"[..], 0x88), (b"\x06/one#x", 0x8c), (b"\x05/#one", 0x8c), (b"\x83\x63\xfe\xbf", 0x8c)]
    {
        let mut stream = connect(server.addr, &certificate, "h2").await.expect("a connection");
        // GET, https, and an authority.
        let block = [&[0x82, 0x87, 0x41, 4][..], b"test", &[0x04], path].concat();
        let length = u8::try_from(block.len()).expect("short");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let sent = [&preface[..], &settings, &[0, 0, length, 1, 5, 0, 0, 0, 1], &block].concat();
        stream.write_all(&sent).await.expect("is open");
        let answer = timeout(LONG, async {
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await.expect("a frame");
                let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                stream.read_exact(&mut payload).await.expect("a frame");
                // The first HEADERS.
                if head[3] == 1 {
                    return payload;
                }
            }
        });
        // The status comes first, as an index of the static table, after size updates of the dynamic table.
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.iter().find(|byte| **byte & 0xe0 != 0x20), Some(&expected), "{path:x?}");
    }
}
