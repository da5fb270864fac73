//! A console on PostgreSQL, with the other ports in memory, and a browser that keeps cookies and sends forms
//! unchanged.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{ManualClock, SeededTokens, Timestamp};
use axum::Router;
use axum::body::Body;
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, Request, StatusCode};
use console::{Attempts, Console, ConsoleSettings, Ports};
use domain::catalog::Catalog;
use domain::erase::{ErasedRows, ErasurePlan, ErasureReport, Mentions};
use domain::hold::HoldActor;
use domain::operations::Budgets;
use domain::ports::{Erasures, StoreError};
use domain::query::{Counted, Leaderless};
use futures_util::{StreamExt, stream};
use harness::TestDatabase;
use http_body_util::BodyExt;
use http_server::tokens::{AccessTokens, token_sha256};
use http_server::{Peer, Started};
use idempotency::{Idempotency, IdempotencySettings, MemoryStore};
use memory_stores::{
    MemoryElection, MemoryIntents, MemoryReplicas, MemorySessions, RecordedAction, Script, Scripted,
};
use pg::{Dsn, PgPool, PoolSettings};
use store_postgres::{PgQueries, PgStore, QUERY_SESSION, SESSION};
use tokio::time::Instant;
use tower::ServiceExt;
use workers::{NamedStream, Resubmission, Search};

use crate::keys::HangingStore;
use crate::rows::STREAM;

/// The tokens of the tests.
pub(crate) const OPERATOR: &str = "operator-token";
pub(crate) const COLLEAGUE: &str = "colleague-token";
pub(crate) const PRODUCER: &str = "producer-token";

/// The time limit of a page.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A tokens file with these tokens and their grants.
pub(crate) fn tokens_file(entries: &[(&str, &str)]) -> String {
    let entry = |(token, grant): &(&str, &str)| {
        let (name, sha256) = (token.trim_end_matches("-token"), hex::encode(token_sha256(token)));
        format!("[[token]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n{grant}\n")
    };
    entries.iter().map(entry).collect()
}

pub(crate) const OPERATES: &str = "role = \"operator\"";

fn all_tokens() -> String {
    let sends = "producer = \"game_master\"";
    tokens_file(&[(OPERATOR, OPERATES), (COLLEAGUE, OPERATES), (PRODUCER, sends)])
}

struct TestPorts;

/// Erasures that find two notifications to each user, and erase one at a time: users and names of operators.
#[derive(Clone, Default)]
pub(crate) struct FakeErasures(pub(crate) Arc<Mutex<Vec<(String, String)>>>);

impl Erasures for FakeErasures {
    async fn plan_erasure(&self, _: &str) -> Result<Option<ErasurePlan>, StoreError> {
        let notifications = Counted { count: 2, capped: false };
        let mut plan = ErasurePlan { notifications, directory_document: true, ..ErasurePlan::default() };
        plan.mentions.add_notification("7-0".to_owned().into());
        Ok(Some(plan))
    }

    async fn erase_user(
        &self,
        user_id: &str,
        actor: HoldActor<'_>,
        now: Timestamp,
    ) -> Result<Option<ErasureReport>, StoreError> {
        let mut erased = self.0.lock().expect("no test panics while it holds the users");
        erased.push((user_id.to_owned(), actor.name.to_owned()));
        Ok(Some(ErasureReport {
            user_hash: "9d".repeat(32),
            request_id: actor.request_id.to_owned(),
            started_at: now,
            ended_at: now,
            rows: ErasedRows { records_deleted: 1, ..ErasedRows::default() },
            stream_entries: 3,
            unread_entries: 0,
            complete: erased.len() == 2,
            mentions: Mentions::default(),
        }))
    }
}

impl Ports for TestPorts {
    type Queries = PgQueries;
    type Operations = Scripted<PgStore>;
    type Holds = Scripted<PgStore>;
    type Erasures = FakeErasures;
    type Stream = Scripted<MemoryIntents>;
    type Leader = MemoryElection;
    type Finder = Search<PgQueries, Scripted<MemoryIntents>, MemoryElection>;
    type Resubmitter = Resubmission<PgStore, PgStore, Scripted<MemoryIntents>, Scripted<MemoryIntents>>;
    type Activity = Scripted<MemoryReplicas>;
    type Sessions = Scripted<MemorySessions>;
    type Keys = HangingStore;
    type Clock = Arc<ManualClock>;
}

/// The state that replicas share.
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    database: TestDatabase,
    pub(crate) store: PgStore,
    queries: PgQueries,
    pub(crate) intents: Scripted<MemoryIntents>,
    pub(crate) election: MemoryElection,
    pub(crate) replicas: MemoryReplicas,
    pub(crate) sessions: MemorySessions,
    /// The scripted effects of the stream, the operations, the activity and the sessions.
    pub(crate) script: Script,
    keys: Idempotency<HangingStore>,
    /// If set, claims of keys never complete.
    pub(crate) claims_hang: Arc<AtomicBool>,
    ids: Arc<SeededTokens>,
    pub(crate) erasures: FakeErasures,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_keys(IdempotencySettings::default()).await
    }

    /// Creates a world with these settings of the idempotency keys of forms.
    pub(crate) async fn with_keys(settings: IdempotencySettings) -> Self {
        let database = TestDatabase::new().await;
        let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
        let pool = |session| {
            // No test is about the time of a statement.
            let operation_timeout = Duration::from_secs(60);
            PgPool::new(&dsn, PoolSettings { max_connections: 2, operation_timeout, session })
                .expect("a pool")
        };
        let claims_hang = Arc::<AtomicBool>::default();
        let keys = HangingStore { store: MemoryStore::new(100), hangs: Arc::clone(&claims_hang) };
        let clock = Arc::new(ManualClock::new(start()));
        let script = Script::default();
        Self {
            store: PgStore::new(pool(SESSION)),
            queries: PgQueries::new(pool(QUERY_SESSION)),
            erasures: FakeErasures::default(),
            database,
            intents: Scripted::new(MemoryIntents::default(), &script),
            election: MemoryElection::default(),
            replicas: MemoryReplicas::new(Arc::clone(&clock)),
            sessions: MemorySessions::new(Arc::clone(&clock)),
            clock,
            script,
            keys: Idempotency::new(Arc::new(keys), settings).expect("the times fit"),
            claims_hang,
            ids: Arc::new(SeededTokens::new(1)),
        }
    }

    /// The console of a replica with all tokens and without proxies.
    pub(crate) fn console(&self) -> Router {
        self.console_with(&all_tokens(), "")
    }

    /// The console of a replica.
    pub(crate) fn console_with(&self, tokens: &str, proxies: &str) -> Router {
        console::router(Console::<TestPorts> {
            queries: self.queries.clone(),
            operations: Scripted::new(self.store.clone(), &self.script),
            holds: Scripted::new(self.store.clone(), &self.script),
            erasures: self.erasures.clone(),
            stream: self.intents.clone(),
            leader: self.election.clone(),
            resubmitter: Resubmission {
                store: self.store.clone(),
                checkpoints: self.store.clone(),
                intents: NamedStream { name: STREAM.to_owned(), stream: self.intents.clone() },
                producer: self.intents.clone(),
            },
            finder: Search {
                queries: self.queries.clone(),
                intents: NamedStream { name: STREAM.to_owned(), stream: self.intents.clone() },
                outbound: Vec::new(),
                leader: self.election.clone(),
                catalog: Arc::new(Catalog::built_in()),
            },
            activity: Scripted::new(self.replicas.clone(), &self.script),
            sessions: Scripted::new(self.sessions.clone(), &self.script),
            clock: Arc::clone(&self.clock),
            tokens: AccessTokens::from_toml(tokens).expect("the tokens are right"),
            keys: self.keys.clone(),
            ids: Arc::clone(&self.ids) as Arc<dyn ambient::Tokens>,
            proxies: proxies.parse().expect("networks"),
            attempts: Attempts::new(),
            leaderless: Leaderless::new(),
            settings: ConsoleSettings {
                catalog: Arc::new(Catalog::built_in()),
                stream: STREAM.to_owned(),
                budgets: Budgets { push: 3, email: 7 },
                time_limit: TIME_LIMIT,
            },
        })
    }

    pub(crate) fn browser(&self) -> Browser {
        Browser::of(self.console())
    }

    /// A browser of a signed-in operator.
    pub(crate) async fn signed_in(&self) -> Browser {
        let mut browser = self.browser();
        let answer = browser.sign_in(OPERATOR).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        browser
    }

    /// The actions of operators, in order.
    pub(crate) async fn actions(&self) -> Vec<RecordedAction> {
        self.database.actions().await
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

pub(crate) fn start() -> Timestamp {
    "2026-04-02T09:21:40Z".parse().expect("a time")
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    /// The cookies that the response sets, as they are.
    pub(crate) fn set_cookies(&self) -> Vec<&str> {
        self.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().expect("ASCII")).collect()
    }

    /// The value of the first hidden field with this name.
    pub(crate) fn hidden(&self, name: &str) -> Option<String> {
        let (_, rest) = self.body.split_once(&format!("type=\"hidden\" name=\"{name}\" value=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    }

    /// Returns true if the response redirects to the sign-in.
    pub(crate) fn asks_to_sign_in(&self) -> bool {
        self.status == StatusCode::SEE_OTHER && self.header("location").starts_with("/console/sign-in")
    }
}

/// A browser: cookies, an address, and the headers of each request.
#[derive(Clone)]
pub(crate) struct Browser {
    pub(crate) console: Router,
    pub(crate) cookies: BTreeMap<String, String>,
    pub(crate) addr: IpAddr,
    pub(crate) headers: Vec<(String, String)>,
    /// The time that its requests waited for capacity before the console received them.
    pub(crate) waited: Duration,
}

impl Browser {
    pub(crate) fn of(console: Router) -> Self {
        let addr = "198.51.100.7".parse().expect("an address");
        Self { console, cookies: BTreeMap::new(), addr, headers: Vec::new(), waited: Duration::ZERO }
    }

    /// Adds a header to each request.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn at(mut self, addr: &str) -> Self {
        self.addr = addr.parse().expect("an address");
        self
    }

    /// The same cookies at another replica.
    pub(crate) fn elsewhere(&self, console: Router) -> Self {
        Self { console, ..self.clone() }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.send("POST", path, Some(body)).await
    }

    /// Opens the sign-in and sends its form.
    pub(crate) async fn sign_in(&mut self, token: &str) -> Answer {
        self.sign_in_at("/console/sign-in", token).await
    }

    pub(crate) async fn sign_in_at(&mut self, path: &str, token: &str) -> Answer {
        let page = self.get(path).await;
        let form_token = page.hidden("form_token").expect("the page has a form");
        let next = page.hidden("next").unwrap_or_default().replace("&amp;", "&");
        self.post("/console/sign-in", &[("form_token", &form_token), ("next", &next), ("token", token)]).await
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, body: Option<String>) -> Answer {
        let is_form = body.is_some();
        self.send_body(method, path, Body::from(body.unwrap_or_default()), is_form).await
    }

    /// Sends the beginning of a form, and never its rest.
    pub(crate) async fn send_unfinished(&mut self, path: &str) -> Answer {
        let begun = stream::once(async { Ok::<_, Infallible>("form_token=") });
        self.send_body("POST", path, Body::from_stream(begun.chain(stream::pending())), true).await
    }

    async fn send_body(&mut self, method: &str, path: &str, body: Body, is_form: bool) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", "console.example");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if !self.cookies.is_empty() {
            let pairs: Vec<String> =
                self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header(COOKIE, pairs.join("; "));
        }
        if is_form && !self.headers.iter().any(|(name, _)| name == "content-type") {
            request = request.header("content-type", "application/x-www-form-urlencoded");
        }
        let mut request = request.body(body).expect("a request");
        request.extensions_mut().insert(Peer { addr: Some(self.addr), tls: false });
        request.extensions_mut().insert(Started(Instant::now() - self.waited));
        let response = self.console.clone().oneshot(request).await.expect("a router never fails");
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("the body is in memory").to_bytes();
        let body = String::from_utf8(bytes.to_vec()).expect("pages are UTF-8");
        let answer = Answer { status: head.status, headers: head.headers, body };
        for cookie in answer.set_cookies() {
            let (name, rest) = cookie.split_once('=').expect("a cookie has a name");
            let value = rest.split(';').next().unwrap_or_default();
            if cookie.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        answer
    }
}
