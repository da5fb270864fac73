//! The user directory over HTTP.
//!
//! `GET {base}/api/v1/internal/users/{user_id}`. Concurrent calls for one user share one request
//! (`flights.rs`).
//!
//! A directory that sheds load receives fewer concurrent requests (`concurrency.rs`, kept between calls), and
//! refused users are requested again within the call (`schedule.rs`). Users without a usable response after
//! that are [`Lookup::Unavailable`]; all other lookups are returned, and the caller tries again later.

mod answer;
mod concurrency;
mod flights;
mod schedule;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{Lookup, UserDirectory, error_chain};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, sleep_until};
use url::Url;

use self::concurrency::Concurrency;
use self::flights::Flights;
use self::schedule::{LookupSchedule, RequestOutcome};
use crate::cache::Cache;

/// The most users of one call: each is a request, and entries wait for all requests of a call.
const USERS_PER_CALL: usize = 256;
/// The largest response body that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The statuses with which a directory or a proxy in front of it reports that it is overloaded or
/// unavailable.
const OVERLOADED: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
/// Everything except letters, digits, `-`, `_` and `~` is encoded. So is the dot: `..` is a valid user id.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Settings of an [`HttpUserDirectory`].
#[derive(Clone, Debug)]
pub struct UserDirectorySettings {
    /// Base URL, `http` or `https`, with the path under which the service is served.
    pub base_url: Url,
    /// The longest time that one response may take.
    pub timeout: Duration,
    /// The most requests that one call has in flight; 0 means 1. Fewer while some of them fail.
    pub concurrency: usize,
    /// The time for which a found user is reused.
    pub cache_ttl: Duration,
    /// The most users that are cached; 0 disables the cache.
    pub cache_entries: usize,
}

/// A user directory that is requested over HTTP. Clones share connections and cache.
#[derive(Clone, Debug)]
pub struct HttpUserDirectory {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    settings: Arc<UserDirectorySettings>,
    cache: Arc<Cache>,
    concurrency: Arc<Mutex<Concurrency>>,
    flights: Flights,
}

/// The operating system has no roots of trust for `https`.
#[derive(Debug, thiserror::Error)]
#[error("could not set up TLS for the user directory")]
pub struct NoTls(#[source] std::io::Error);

impl HttpUserDirectory {
    /// Creates a directory; it connects with the first request. A provider of cryptography must be installed.
    pub fn new(settings: UserDirectorySettings) -> Result<Self, NoTls> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(settings.timeout));
        let connector = HttpsConnectorBuilder::new()
            .try_with_platform_verifier()
            .map_err(|error| NoTls(std::io::Error::other(error)))?;
        let connector = connector.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(settings.concurrency)
            .build(connector);
        let cache = Arc::new(Cache::new(settings.cache_entries, settings.cache_ttl));
        let concurrency = Arc::new(Mutex::new(Concurrency::new(settings.concurrency)));
        let flights = Flights::default();
        Ok(Self { client, settings: Arc::new(settings), cache, concurrency, flights })
    }

    /// Requests one user, or waits for another call that does. Returns the outcome, and true if this call
    /// sent the request.
    async fn ask(&self, user_id: &str) -> (RequestOutcome, bool) {
        let flight = self.flights.join(user_id, || {
            let (directory, user_id) = (self.clone(), user_id.to_owned());
            async move { directory.ask_and_remember(&user_id).await }.boxed()
        });
        (flight.outcome().await, flight.is_own)
    }

    async fn ask_and_remember(&self, user_id: &str) -> RequestOutcome {
        let outcome = self.ask_in_time(user_id).await;
        if let RequestOutcome::Answer(Lookup::Found(user)) = &outcome {
            self.cache.keep([(user_id, user)]);
        }
        outcome
    }

    async fn ask_in_time(&self, user_id: &str) -> RequestOutcome {
        match tokio::time::timeout(self.settings.timeout, self.request(user_id)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let cause = format!("no response from the user directory within {:?}", self.settings.timeout);
                RequestOutcome::Refused { cause, retry_after: None }
            }
        }
    }

    async fn request(&self, user_id: &str) -> RequestOutcome {
        let unusable = |cause: String| RequestOutcome::Unusable { cause: no_usable_answer(&cause) };
        let request = match self.uri_of(user_id) {
            Ok(uri) => Request::get(uri).header("accept", "application/json").body(Empty::new()),
            Err(cause) => return unusable(cause),
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => return unusable(error.to_string()),
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let cause = no_usable_answer(&error_chain(&error));
                return RequestOutcome::Refused { cause, retry_after: None };
            }
        };
        let status = response.status();
        if OVERLOADED.contains(&status) {
            let cause = no_usable_answer(&format!("status {}", status.as_u16()));
            return RequestOutcome::Refused { cause, retry_after: retry_after(response.headers()) };
        }
        if status != StatusCode::OK && status != StatusCode::NOT_FOUND {
            return unusable(format!("status {}", status.as_u16()));
        }
        let body = match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return unusable(format!("the response could not be read: {error}")),
        };
        let lookup = match status {
            StatusCode::OK => answer::user(user_id, &body).map(Lookup::Found),
            _ => answer::missing(&body).map(|()| Lookup::Missing),
        };
        lookup.map_or_else(unusable, RequestOutcome::Answer)
    }

    /// The URI is built as text, because a URL type would resolve `..`.
    fn uri_of(&self, user_id: &str) -> Result<Uri, String> {
        let base = &self.settings.base_url;
        let path = base.path().trim_end_matches('/');
        let segment = utf8_percent_encode(user_id, SEGMENT);
        let authority = &base[url::Position::BeforeHost..url::Position::AfterPort];
        let text = format!("{}://{authority}{path}/api/v1/internal/users/{segment}", base.scheme());
        text.parse().map_err(|_| "the base URL and the user id make no URL".to_owned())
    }

    fn concurrency(&self) -> MutexGuard<'_, Concurrency> {
        // Nothing panics while the lock is held.
        self.concurrency.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpUserDirectory {
    /// Requests distinct users. The lookups are in the given order.
    async fn ask_all(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let mut schedule =
            LookupSchedule::new(user_ids.len(), self.settings.timeout, &self.concurrency(), Instant::now());
        let mut in_flight = FuturesUnordered::new();
        loop {
            let limit = self.concurrency().limit();
            while in_flight.len() < limit
                && let Some(index) = schedule.next(Instant::now())
            {
                in_flight.push(async move { (index, self.ask(user_ids[index]).await) });
            }
            let retry = schedule.next_retry().filter(|_| in_flight.len() < limit);
            tokio::select! {
                Some((index, (outcome, is_own))) = in_flight.next() => {
                    let mut concurrency = self.concurrency();
                    // One request counts once, however many calls wait for it.
                    let mut copy = concurrency.clone();
                    let concurrency = if is_own { &mut *concurrency } else { &mut copy };
                    schedule.record(index, outcome, concurrency, Instant::now());
                }
                () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
                else => return schedule.into_lookups().collect(),
            }
        }
    }
}

impl UserDirectory for HttpUserDirectory {
    fn users_per_call(&self) -> usize {
        USERS_PER_CALL
    }

    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        self.cache.recall(user_ids)
    }

    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        self.cache.look_up(user_ids, async |unknown| self.ask_all(&unknown).await).await
    }
}

fn no_usable_answer(cause: &str) -> String {
    format!("the user directory gave no usable response: {cause}")
}

/// The wait that the directory requests. A date is ignored: it would be compared with the clock of another
/// machine.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
