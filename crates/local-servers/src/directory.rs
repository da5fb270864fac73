//! A stand-in user directory, whose response for each user is configured by the test.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::process::{StartError, io_error};

/// A fault in the responses for one user.
#[derive(Clone, Debug)]
pub enum UserFault {
    /// No response.
    Hang,
    /// A late response.
    Slow(Duration),
    /// This status and body, as JSON.
    Answer(u16, String),
    /// A response about another user.
    WrongUser,
}

/// Behaviour of the directory under all requests together. The default responds to each of them at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryLoad {
    /// The time that a response takes. A refusal takes no time.
    pub latency: Duration,
    /// The largest number of requests served at a time; the others are refused with status 503.
    pub at_most: usize,
    /// The interval of refusals: every request whose number is a multiple of this is refused with status 503;
    /// 0 refuses none.
    pub refuse_every: usize,
}

impl Default for DirectoryLoad {
    fn default() -> Self {
        Self { latency: Duration::ZERO, at_most: usize::MAX, refuse_every: 0 }
    }
}

/// A running stand-in. It stops when dropped.
#[derive(Debug)]
pub struct StandInDirectory {
    shared: SharedUsers,
    addr: SocketAddr,
    server: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug, Default)]
struct SharedUsers(Arc<Mutex<KnownUsers>>);

#[derive(Debug, Default)]
struct KnownUsers {
    /// True if users that were not set exist.
    everybody_exists: bool,
    known: HashMap<String, Option<(String, String)>>,
    faults: HashMap<String, UserFault>,
    requests: HashMap<String, usize>,
    load: DirectoryLoad,
    /// The number of requests so far, served or refused.
    arrived: usize,
    serving: usize,
    refusals: usize,
}

impl SharedUsers {
    /// No code panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, KnownUsers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StandInDirectory {
    /// Starts on a free port. Every user exists, as `<id>@example.com` with language `en`, unless configured
    /// otherwise.
    pub async fn start() -> Result<Self, StartError> {
        let shared = SharedUsers::default();
        shared.lock().everybody_exists = true;
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(io_error("start the stand-in user directory"))?;
        let addr = listener.local_addr().map_err(io_error("start the stand-in user directory"))?;
        let server = Some(serve(listener, shared.clone()));
        Ok(Self { shared, addr, server })
    }

    /// Returns the value for `NOTIFICATION_USER_SERVICE_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets whether users exist that were not set.
    pub fn set_everybody_exists(&self, exists: bool) {
        self.shared.lock().everybody_exists = exists;
    }

    /// Sets a user that exists.
    pub fn set_user(&self, id: &str, email: &str, preferred_language: &str) {
        self.shared
            .lock()
            .known
            .insert(id.to_owned(), Some((email.to_owned(), preferred_language.to_owned())));
    }

    /// Makes a user unknown.
    pub fn remove_user(&self, id: &str) {
        self.shared.lock().known.insert(id.to_owned(), None);
    }

    /// Adds a fault to all following responses about this user.
    pub fn set_fault(&self, id: &str, fault: UserFault) {
        self.shared.lock().faults.insert(id.to_owned(), fault);
    }

    /// Sets the load for all following responses.
    pub fn set_load(&self, load: DirectoryLoad) {
        self.shared.lock().load = load;
    }

    /// Clears the faults of all users.
    pub fn clear_faults(&self) {
        let mut users = self.shared.lock();
        users.faults.clear();
        users.load = DirectoryLoad::default();
    }

    /// Returns the number of requests refused because of the load.
    pub fn refusals(&self) -> usize {
        self.shared.lock().refusals
    }

    /// Returns the number of lookups of this user.
    pub fn requests_for(&self, id: &str) -> usize {
        self.shared.lock().requests.get(id).copied().unwrap_or(0)
    }

    /// Returns the number of lookups.
    pub fn requests(&self) -> usize {
        self.shared.lock().requests.values().sum()
    }

    /// Closes all connections, and refuses new ones from now on.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            // The abort ends the task.
            drop(server.await);
        }
    }

    /// Serves again, on the same port.
    pub async fn start_again(&mut self) -> Result<(), StartError> {
        let listener =
            TcpListener::bind(self.addr).await.map_err(io_error("start the stand-in user directory"))?;
        self.server = Some(serve(listener, self.shared.clone()));
        Ok(())
    }
}

impl Drop for StandInDirectory {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

fn serve(listener: TcpListener, shared: SharedUsers) -> JoinHandle<()> {
    let router = Router::new().route("/api/v1/internal/users/{user_id}", get(look_up)).with_state(shared);
    tokio::spawn(async move {
        // Aborted with the task that holds them: `axum::serve` would let open connections continue to
        // respond.
        let mut connections = JoinSet::new();
        // Serves until it is aborted; an error ends it, and clients are refused.
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(router.clone());
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client may disconnect at any time.
            connections.spawn(async { drop(connection.await) });
        }
    })
}

/// A request that is being served; dropped with it, also if the client disconnects.
struct Serving(SharedUsers);

impl Serving {
    /// Admits a request; `None` if it is refused.
    fn admit(shared: &SharedUsers) -> Option<Self> {
        let mut users = shared.lock();
        users.arrived += 1;
        let chosen = users.load.refuse_every > 0 && users.arrived.is_multiple_of(users.load.refuse_every);
        if chosen || users.serving >= users.load.at_most {
            users.refusals += 1;
            return None;
        }
        users.serving += 1;
        Some(Self(shared.clone()))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.lock().serving -= 1;
    }
}

async fn look_up(State(shared): State<SharedUsers>, Path(id): Path<String>) -> Response {
    *shared.lock().requests.entry(id.clone()).or_default() += 1;
    let Some(_serving) = Serving::admit(&shared) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let latency = shared.lock().load.latency;
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let (fault, user) = {
        let users = shared.lock();
        let default = users.everybody_exists.then(|| (format!("{id}@example.com"), "en".to_owned()));
        (users.faults.get(&id).cloned(), users.known.get(&id).cloned().unwrap_or(default))
    };
    let mut shown_id = id.clone();
    match fault {
        None => {}
        Some(UserFault::Hang) => std::future::pending().await,
        Some(UserFault::Slow(time)) => tokio::time::sleep(time).await,
        Some(UserFault::WrongUser) => shown_id = format!("not-{id}"),
        Some(UserFault::Answer(status, body)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return (status, [(CONTENT_TYPE, "application/json")], body).into_response();
        }
    }
    match user {
        Some((email, language)) => {
            Json(json!({"user": {"user_id": shown_id, "email": email, "preferred_language": language}}))
                .into_response()
        }
        None => {
            let error = json!({"error": {"code": "subject_not_found", "message": "there is no such user"}});
            (StatusCode::NOT_FOUND, Json(error)).into_response()
        }
    }
}
