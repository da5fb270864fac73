//! Frames of an HTTP/2 connection. The first byte chooses how they are sent, and the second whether the rest
//! are bytes of the connection, or frames of which the lengths are filled in: type, flags, stream, length of
//! the payload, payload.

use std::io;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::routing::{get, post};
use http_server::problem::{refuse, with_fallbacks};
use http_server::{JsonText, RequestId, Tls};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::DuplexStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::listener::{Encryption, Listener, Sending};
use crate::Target;

pub(super) const TARGET: Target = Target { name: "http2", max_bytes: 4 * 1024, check };

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first frame of each side.
const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const HEADERS: u8 = 1;
/// The number of types of frames that are known, and one that is not.
const FRAME_TYPES: u8 = 11;
/// The head of a GET of /one: three fields of the static table, the last two with a literal.
const GET_ONE: &[u8] = b"\x82\x87\x04\x04/one\x41\x01a";
/// The field `:status` with the value 200 in the static table.
const STATUS_200: u8 = 0x88;
const FRAME_HEAD_BYTES: usize = 9;

fn check(input: &[u8]) {
    let [first, form, rest @ ..] = input else { return };
    let mut bytes = [PREFACE, EMPTY_SETTINGS].concat();
    match form {
        b'r' => bytes.extend_from_slice(rest),
        b'R' => bytes = rest.to_vec(),
        _ => bytes.extend(frames(rest)),
    }
    let listener = Listener { router: router(), refuse, tokens: None, tls: Some(PAIR.tls.clone()) };
    let valid = [PREFACE, EMPTY_SETTINGS, &frame(HEADERS, 5, 1, GET_ONE)].concat();
    let talk = listener.converse(&PAIR.client, (Sending::of(*first), &bytes), &valid);
    let expected = [200, 400, 404, 405, 408, 413, 415, 503];
    assert!(talk.statuses.iter().all(|status| expected.contains(&status.as_u16())), "{:?}", talk.statuses);
    assert!(has_ok(&talk.afterwards), "a valid request gets no 200 afterwards: {:?}", talk.afterwards);
}

/// The frames of an input.
fn frames(mut rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let [kind, flags, stream, length, after @ ..] = rest {
        let (payload, after) = after.split_at(usize::from(*length).min(after.len()));
        bytes.extend(frame(kind % FRAME_TYPES, *flags, *stream, payload));
        rest = after;
    }
    bytes
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Returns true if a frame with the head of a response has the status 200.
fn has_ok(mut received: &[u8]) -> bool {
    while let Some((head, rest)) = received.split_at_checked(FRAME_HEAD_BYTES) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, rest)) = rest.split_at_checked(length) else { return false };
        if head[3] == HEADERS {
            return payload.first() == Some(&STATUS_200);
        }
        received = rest;
    }
    false
}

fn router() -> Router {
    let length = |JsonText(body): JsonText| async move { format!("length {}", body.len()) };
    let id = |id: RequestId| async move { id.as_str().to_owned() };
    let routes = Router::new()
        .route("/one", get(|| async { "one" }))
        .route("/length", post(length))
        .route("/id/{name}", get(id));
    with_fallbacks(routes)
}

/// A certificate for both sides.
struct Pair {
    tls: Tls,
    client: Client,
}

static PAIR: LazyLock<Pair> = LazyLock::new(|| {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (cert_path, key_path) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert_path, cert.pem()).expect("the certificate is written");
    std::fs::write(&key_path, signing_key.serialize_pem()).expect("the key is written");
    let tls = Tls::load(&cert_path, &key_path).expect("certificate and key belong together");
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Pair { tls, client: Client(TlsConnector::from(Arc::new(config))) }
});

struct Client(TlsConnector);

impl Encryption for Client {
    type Stream = TlsStream<DuplexStream>;

    async fn connect(&self, stream: DuplexStream) -> io::Result<Self::Stream> {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}
