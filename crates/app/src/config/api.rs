//! The HTTP API: its listener, its clients, and its limits.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use domain::catalog::Catalog;
use http_server::tokens::AccessTokens;
use http_server::{Timeouts, Tls, TrustedProxies};

use super::http::{Http, HttpAddr};
use super::knob::Knob;
use super::knobs::{
    NOTIFICATION_API_DRAIN_DELAY, NOTIFICATION_API_HTTP_ADDR, NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL,
    NOTIFICATION_API_MAX_BATCH_BODY_BYTES, NOTIFICATION_API_MAX_BODY_BYTES,
    NOTIFICATION_API_MAX_BUFFERED_BYTES, NOTIFICATION_API_MAX_CONNECTIONS, NOTIFICATION_API_QUERY_TIMEOUT,
    NOTIFICATION_API_RATE_LIMIT, NOTIFICATION_API_REQUEST_TIMEOUT, NOTIFICATION_API_TLS_CERT_FILE,
    NOTIFICATION_API_TLS_KEY_FILE, NOTIFICATION_API_TOKENS_FILE, NOTIFICATION_API_TRUSTED_PROXIES,
    NOTIFICATION_CONSOLE, NOTIFICATION_INTERNAL_HTTP_ADDR,
};
use super::reader::Reader;

/// The timeout for the head of a request.
const READ_HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for which a connection is kept open between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of largest bodies that must fit into the buffer limit.
const BUFFERED_BODIES: u64 = 2;

/// The HTTP API.
#[derive(Debug, Clone)]
pub struct Api {
    /// The address of the listener.
    pub addr: HttpAddr,
    /// The certificate chain and its key; `None` for plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The file with the clients' tokens.
    pub tokens_file: PathBuf,
    /// The limits of requests and connections.
    pub limits: ApiLimits,
    /// The trusted proxies in front of the API.
    pub trusted_proxies: TrustedProxies,
    /// True if the API's listener also serves the console.
    pub console: bool,
}

/// The limits of the HTTP API.
#[derive(Debug, Clone, Copy)]
pub struct ApiLimits {
    /// The maximum size of a request body other than a batch, in bytes.
    pub max_body_bytes: usize,
    /// The maximum size of the body of a batch, in bytes.
    pub max_batch_body_bytes: usize,
    /// The maximum number of connections, and of requests in progress.
    pub max_connections: usize,
    /// The maximum memory for request bodies and responses together, in bytes.
    pub max_buffered_bytes: usize,
    /// The timeouts of a request and of an idle connection.
    pub timeouts: Timeouts,
    /// The time for which connections are still accepted after the stop.
    pub drain_delay: Duration,
    /// Requests per second for one token; 0 for no limit.
    pub rate_limit: u32,
    /// The time for which an idempotency key stays claimed if the replica that processes its request crashes.
    pub idempotency_lock_ttl: Duration,
    /// The timeout of an operator's query.
    pub query_timeout: Duration,
}

impl Api {
    /// Returns `Some(None)` if the API is off. `internal` and `catalog` are needed to check it.
    pub(super) fn read(
        reader: &mut Reader,
        internal: Option<&Http>,
        catalog: Option<&Catalog>,
    ) -> Option<Option<Self>> {
        let addr = reader.read(&NOTIFICATION_API_HTTP_ADDR, optional_addr, |addr| {
            addr.as_ref().map(HttpAddr::to_string).unwrap_or_default()
        });
        let certificates = path(reader, &NOTIFICATION_API_TLS_CERT_FILE);
        let key = path(reader, &NOTIFICATION_API_TLS_KEY_FILE);
        let tokens_file = path(reader, &NOTIFICATION_API_TOKENS_FILE);
        let limits = ApiLimits::read(reader);
        let trusted_proxies =
            reader.read(&NOTIFICATION_API_TRUSTED_PROXIES, str::parse::<TrustedProxies>, ToString::to_string);
        let console = read_console(reader);
        let Some(addr) = addr? else {
            check_no_console(reader, console?);
            return limits.map(|_| None);
        };
        check_addr(reader, &addr, internal);
        let tls = check_tls(reader, certificates?, key?);
        let tokens_file = check_tokens(reader, tokens_file?, catalog);
        let limits = limits?;
        check_buffered(reader, &limits);
        Some(Some(Self {
            addr,
            tls: tls?,
            tokens_file: tokens_file?,
            limits,
            trusted_proxies: trusted_proxies?,
            console: console?,
        }))
    }
}

impl ApiLimits {
    fn read(reader: &mut Reader) -> Option<Self> {
        let max_body_bytes = reader.number(&NOTIFICATION_API_MAX_BODY_BYTES);
        let max_batch_body_bytes = reader.number(&NOTIFICATION_API_MAX_BATCH_BODY_BYTES);
        let max_connections = reader.number(&NOTIFICATION_API_MAX_CONNECTIONS);
        let max_buffered_bytes = reader.number(&NOTIFICATION_API_MAX_BUFFERED_BYTES);
        let drain_delay = reader.duration(&NOTIFICATION_API_DRAIN_DELAY);
        let request = reader.duration(&NOTIFICATION_API_REQUEST_TIMEOUT);
        let rate_limit = reader.number(&NOTIFICATION_API_RATE_LIMIT);
        let idempotency_lock_ttl = reader.duration(&NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL);
        let query_timeout = reader.duration(&NOTIFICATION_API_QUERY_TIMEOUT);
        Some(Self {
            max_body_bytes: max_body_bytes?,
            max_batch_body_bytes: max_batch_body_bytes?,
            max_connections: max_connections?,
            max_buffered_bytes: max_buffered_bytes?,
            timeouts: Timeouts { read_header: READ_HEADER_TIMEOUT, request: request?, idle: IDLE_TIMEOUT },
            drain_delay: drain_delay?,
            rate_limit: rate_limit?,
            idempotency_lock_ttl: idempotency_lock_ttl?,
            query_timeout: query_timeout?,
        })
    }
}

fn optional_addr(text: &str) -> Result<Option<HttpAddr>, String> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

fn path(reader: &mut Reader, knob: &'static Knob) -> Option<Option<PathBuf>> {
    let parse = |text: &str| Ok::<_, Infallible>((!text.is_empty()).then(|| PathBuf::from(text)));
    reader.read(knob, parse, |path| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default())
}

fn read_console(reader: &mut Reader) -> Option<bool> {
    let parse = |text: &str| match text {
        "off" => Ok(false),
        "on" => Ok(true),
        _ => Err("it is neither off nor on"),
    };
    reader.read(&NOTIFICATION_CONSOLE, parse, |on| if *on { "on" } else { "off" }.to_owned())
}

/// Notes a problem if the console is on while the API is off, because the console has no listener of its own.
fn check_no_console(reader: &mut Reader, on: bool) {
    if on {
        let api = NOTIFICATION_API_HTTP_ADDR.name;
        let text = format!("is on, but the console is served where the HTTP API is: set {api} too");
        reader.problem(NOTIFICATION_CONSOLE.name, text);
    }
}

/// Notes a problem if both listeners have the same address. Port 0 never conflicts, because the system
/// chooses a free port.
fn check_addr(reader: &mut Reader, addr: &HttpAddr, internal: Option<&Http>) {
    let is_taken = |internal: &&Http| {
        let (one, other) = (addr, &internal.addr);
        let overlap = one.host == other.host || is_every_interface(one) || is_every_interface(other);
        one.port != 0 && one.port == other.port && overlap
    };
    if internal.is_some_and(|internal| is_taken(&internal)) {
        let other = NOTIFICATION_INTERNAL_HTTP_ADDR.name;
        let text = format!("is {addr}, which is the address of {other}: each listener needs one of its own");
        reader.problem(NOTIFICATION_API_HTTP_ADDR.name, text);
    }
}

fn is_every_interface(addr: &HttpAddr) -> bool {
    addr.host.as_deref().is_none_or(|host| ["0.0.0.0", "::"].contains(&host))
}

fn check_tls(
    reader: &mut Reader,
    certificates: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Option<Option<(PathBuf, PathBuf)>> {
    let (set, missing) = match (certificates, key) {
        (None, None) => return Some(None),
        (Some(certificates), Some(key)) => match Tls::load(&certificates, &key) {
            Ok(_) => return Some(Some((certificates, key))),
            Err(error) => {
                let text = format!("cannot be used: {}", ambient::error_chain(&error));
                reader.problem(NOTIFICATION_API_TLS_CERT_FILE.name, text);
                return None;
            }
        },
        (Some(_), None) => (NOTIFICATION_API_TLS_CERT_FILE.name, NOTIFICATION_API_TLS_KEY_FILE.name),
        (None, Some(_)) => (NOTIFICATION_API_TLS_KEY_FILE.name, NOTIFICATION_API_TLS_CERT_FILE.name),
    };
    reader.problem(missing, format!("is not set, but {set} is: set both or neither"));
    None
}

fn check_tokens(reader: &mut Reader, path: Option<PathBuf>, catalog: Option<&Catalog>) -> Option<PathBuf> {
    let variable = NOTIFICATION_API_TOKENS_FILE.name;
    let Some(path) = path else {
        let on = NOTIFICATION_API_HTTP_ADDR.name;
        let text =
            format!("is required and not set, because {on} turns the HTTP API on; it may name an empty file");
        reader.problem(variable, text);
        return None;
    };
    match AccessTokens::load(&path) {
        Ok(tokens) => {
            let known: Option<BTreeSet<String>> = catalog.map(known_producers);
            for (token, producer) in known.map(|known| tokens.unknown_producers(&known)).unwrap_or_default() {
                reader.warn(format!(
                    "{variable}: the token {token} is for the producer {producer}, which no type of the catalogue allows"
                ));
            }
            Some(path)
        }
        Err(error) => {
            reader.problem(variable, format!("cannot be used: {}", ambient::error_chain(&error)));
            None
        }
    }
}

/// The producers that may send at least one type of `catalog`.
pub fn known_producers(catalog: &Catalog) -> BTreeSet<String> {
    catalog.types().flat_map(|known| known.producers()).cloned().collect()
}

fn check_buffered(reader: &mut Reader, limits: &ApiLimits) {
    let largest = limits.max_body_bytes.max(limits.max_batch_body_bytes) as u64;
    let least = largest.saturating_mul(BUFFERED_BODIES);
    let buffered = limits.max_buffered_bytes;
    if (buffered as u64) < least {
        let text = format!(
            "is {buffered}: it must be at least {least}, twice the largest body ({}, {}), or no such body could be read",
            NOTIFICATION_API_MAX_BODY_BYTES.name, NOTIFICATION_API_MAX_BATCH_BODY_BYTES.name
        );
        reader.problem(NOTIFICATION_API_MAX_BUFFERED_BYTES.name, text);
    }
}
