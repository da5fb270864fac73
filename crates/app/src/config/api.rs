//! The HTTP API: its listener, its clients, and its limits.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use http_server::tokens::AccessTokens;
use http_server::{Timeouts, Tls, TrustedProxies};

use super::http_addr::HttpAddr;
use super::knobs::*;
use super::reader::{Reader, Section};
use super::section::section;
use super::value::Word;

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

section! {
    /// The limits of the HTTP API.
    #[derive(Debug, Clone, Copy)]
    pub struct ApiLimits {
        /// The maximum size of a request body other than a batch, in bytes.
        pub max_body_bytes: usize = NOTIFICATION_API_MAX_BODY_BYTES,
        /// The maximum size of the body of a batch, in bytes.
        pub max_batch_body_bytes: usize = NOTIFICATION_API_MAX_BATCH_BODY_BYTES,
        /// The maximum number of connections, and of requests in progress.
        pub max_connections: usize = NOTIFICATION_API_MAX_CONNECTIONS,
        /// The maximum memory for request bodies and responses together, in bytes.
        pub max_buffered_bytes: usize = NOTIFICATION_API_MAX_BUFFERED_BYTES,
        /// The timeouts of a request and of an idle connection.
        pub timeouts: Timeouts = NOTIFICATION_API_REQUEST_TIMEOUT =>
            |request| Timeouts { read_header: READ_HEADER_TIMEOUT, request, idle: IDLE_TIMEOUT },
        /// The time for which connections are still accepted after the stop.
        pub drain_delay: Duration = NOTIFICATION_API_DRAIN_DELAY,
        /// Requests per second for one token; 0 for no limit.
        pub rate_limit: u32 = NOTIFICATION_API_RATE_LIMIT,
        /// The time for which an idempotency key stays claimed if the replica that processes its request
        /// crashes.
        pub idempotency_lock_ttl: Duration = NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL,
        /// The timeout of an operator's query.
        pub query_timeout: Duration = NOTIFICATION_API_QUERY_TIMEOUT,
    }
}

/// The API, which its address turns on. If it is off, the values must be valid, too.
impl Section for Option<Api> {
    fn read(reader: &mut Reader) -> Option<Self> {
        let catalog = Arc::<Catalog>::read(reader);
        let addr = reader.get::<Option<HttpAddr>>(&NOTIFICATION_API_HTTP_ADDR);
        let certificates = reader.get(&NOTIFICATION_API_TLS_CERT_FILE);
        let key = reader.get(&NOTIFICATION_API_TLS_KEY_FILE);
        let tokens_file = reader.get(&NOTIFICATION_API_TOKENS_FILE);
        let limits = ApiLimits::read(reader);
        let trusted_proxies = reader.get(&NOTIFICATION_API_TRUSTED_PROXIES);
        let console = reader.get::<Word>(&NOTIFICATION_CONSOLE).map(|word| word.is("on"));
        let Some(addr) = addr? else {
            check_no_console(reader, console?);
            return limits.map(|_| None);
        };
        check_addr(reader, &addr);
        let tls = check_tls(reader, certificates?, key?);
        let tokens_file = check_tokens(reader, tokens_file?, catalog.as_deref());
        let limits = limits?;
        check_buffered(reader, &limits);
        Some(Some(Api {
            addr,
            tls: tls?,
            tokens_file: tokens_file?,
            limits,
            trusted_proxies: trusted_proxies?,
            console: console?,
        }))
    }
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
fn check_addr(reader: &mut Reader, addr: &HttpAddr) {
    let internal = reader.get::<HttpAddr>(&NOTIFICATION_INTERNAL_HTTP_ADDR);
    let is_taken = |other: &HttpAddr| {
        let overlap = addr.host == other.host || is_every_interface(addr) || is_every_interface(other);
        addr.port != 0 && addr.port == other.port && overlap
    };
    if internal.as_ref().is_some_and(is_taken) {
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
