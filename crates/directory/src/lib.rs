//! The user directory over HTTP: who a recipient is, where their mail goes, which language they read.
//!
//! `GET {base}/api/v1/internal/users/{user_id}`. An answer that can be used is kept for seconds, so that a burst of
//! intents for the same users asks once; that a user does not exist, or that nobody answers, is never kept. There is no
//! retry here: an entry that must wait is tried again by the intake. Addresses never appear in what this crate says.

mod answer;
mod cache;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::ports::{Lookup, UserDirectory, error_chain};
use futures_util::StreamExt;
use futures_util::stream;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::cache::Cache;

/// The largest answer that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;
/// All but letters, digits, `-`, `_` and `~`. The dot is encoded, too: `..` is a user id like any other.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Where the directory is and how it is asked.
#[derive(Clone, Debug)]
pub struct DirectorySettings {
    /// `http` or `https`, with whatever path the service is under.
    pub base_url: Url,
    /// The longest that one answer may take.
    pub timeout: Duration,
    /// The most requests at a time; 0 is taken for 1.
    pub concurrency: usize,
    /// How long an answer may be used again.
    pub cache_ttl: Duration,
    /// The most answers that are kept; 0 keeps none.
    pub cache_entries: usize,
}

/// The directory. Clones share their connections and what they know.
#[derive(Clone, Debug)]
pub struct HttpDirectory {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    settings: Arc<DirectorySettings>,
    cache: Arc<Mutex<Cache>>,
}

/// The operating system offers no roots of trust for `https`.
#[derive(Debug, thiserror::Error)]
#[error("could not set up TLS for the user directory")]
pub struct NoTls(#[source] std::io::Error);

impl HttpDirectory {
    /// A directory; connects when it is first asked. A provider of cryptography must be installed.
    pub fn new(mut settings: DirectorySettings) -> Result<Self, NoTls> {
        // With none at a time, a look-up would never end.
        settings.concurrency = settings.concurrency.max(1);
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
        let cache = Arc::new(Mutex::new(Cache::new(settings.cache_entries)));
        Ok(Self { client, settings: Arc::new(settings), cache })
    }

    async fn ask(&self, user_id: &str) -> Lookup {
        match tokio::time::timeout(self.settings.timeout, self.request(user_id)).await {
            Ok(Ok(lookup)) => lookup,
            Ok(Err(cause)) => {
                Lookup::Unavailable(format!("the user directory gave no usable answer: {cause}"))
            }
            Err(_) => Lookup::Unavailable(format!(
                "the user directory gave no answer within {:?}",
                self.settings.timeout
            )),
        }
    }

    async fn request(&self, user_id: &str) -> Result<Lookup, String> {
        let request = Request::get(self.uri_of(user_id)?).header("accept", "application/json");
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| error_chain(&error))?;
        let status = response.status();
        if status != StatusCode::OK && status != StatusCode::NOT_FOUND {
            return Err(format!("status {}", status.as_u16()));
        }
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| format!("the answer could not be read: {error}"))?.to_bytes();
        match status {
            StatusCode::OK => answer::user(user_id, &body).map(Lookup::Found),
            _ => answer::missing(&body).map(|()| Lookup::Missing),
        }
    }

    /// Put together as text, because a URL type would take `..` for a way up.
    fn uri_of(&self, user_id: &str) -> Result<Uri, String> {
        let base = &self.settings.base_url;
        let path = base.path().trim_end_matches('/');
        let segment = utf8_percent_encode(user_id, SEGMENT);
        let authority = &base[url::Position::BeforeHost..url::Position::AfterPort];
        let text = format!("{}://{authority}{path}/api/v1/internal/users/{segment}", base.scheme());
        text.parse().map_err(|_| "the base URL and the user id make no URL".to_owned())
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        // Nothing panics while the lock is held.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserDirectory for HttpDirectory {
    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let now = Instant::now();
        let mut lookups: Vec<Option<Lookup>> = {
            let cache = self.cache();
            user_ids.iter().map(|id| cache.get(id, now).cloned().map(Lookup::Found)).collect()
        };
        // In the order given: whoever waits for the first of them is not kept waiting by those behind.
        let mut seen = HashSet::new();
        let missing = user_ids.iter().zip(&lookups).filter(|(_, lookup)| lookup.is_none());
        let unknown: Vec<String> =
            missing.filter(|(id, _)| seen.insert(**id)).map(|(id, _)| (*id).to_owned()).collect();
        let asks = unknown.into_iter().map(|id| async move { (self.ask(&id).await, id) });
        let mut asking = stream::iter(asks).buffer_unordered(self.settings.concurrency);
        let mut answers = HashMap::new();
        let mut failures = 0;
        while let Some((lookup, id)) = asking.next().await {
            if let Lookup::Found(user) = &lookup {
                self.cache().insert(&id, user.clone(), Instant::now() + self.settings.cache_ttl);
            }
            failures = if matches!(lookup, Lookup::Unavailable(_)) { failures + 1 } else { 0 };
            answers.insert(id, lookup);
            // As many in a row as are asked at once: nobody answers, and each further one would cost a time-out.
            if failures >= self.settings.concurrency {
                break;
            }
        }
        let not_asked = || {
            Lookup::Unavailable(format!(
                "the user directory was not asked, {failures} look-ups before had failed"
            ))
        };
        for (id, lookup) in user_ids.iter().zip(&mut lookups) {
            lookup.get_or_insert_with(|| answers.get(*id).cloned().unwrap_or_else(not_asked));
        }
        lookups.into_iter().flatten().collect()
    }
}
