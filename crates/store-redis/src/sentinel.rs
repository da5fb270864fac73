//! Finding the primary by Sentinels.
//!
//! The client library's own support opens its connections itself: without the limits of `socket.rs`, and to
//! one Sentinel after the other, so that one that hangs delays the others. Here each connect asks all
//! Sentinels at once, and a server that most of them name and that calls itself the primary is used (ADR
//! 0066). Nothing is subscribed to: a call that fails drops its connection, and the next one asks again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::ports::{BoxError, error_chain};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::TimedOut;
use crate::socket::{Connection, Connector, ServerAddr};

/// The largest response of a Sentinel or of a server that is asked for its role, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// The pause before the Sentinels are asked again if the server that they named is not the primary.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// The time for a majority of the Sentinels to name the same server. After it, each server that one of them
/// names is connected to.
const MAJORITY_TIMEOUT: Duration = Duration::from_millis(100);

/// The Sentinels of a primary.
pub(crate) struct Sentinels {
    addrs: Vec<ServerAddr>,
    /// The name under which the Sentinels know the primary.
    master: String,
    to_sentinel: Connector,
    to_server: Connector,
    /// The last primary that was connected to.
    primary: Mutex<Option<ServerAddr>>,
}

/// No primary was found, with a reason for each Sentinel and each server that they named.
#[derive(Debug, thiserror::Error)]
#[error("no Sentinel led to the primary {master}: {reasons}")]
struct NoPrimary {
    master: String,
    reasons: String,
}

/// A server is not the primary, although a Sentinel said so: the failover is not over.
#[derive(Debug, thiserror::Error)]
#[error("it is not the primary, although a Sentinel says so")]
struct NotPrimary;

/// The servers from which no response has arrived yet, and the reasons of the others for not being used.
#[derive(Default)]
struct Search {
    asked: Vec<ServerAddr>,
    reasons: Vec<(ServerAddr, String)>,
    /// True if a server was named that is not the primary.
    is_early: bool,
}

impl Search {
    /// Returns false if the server was connected to before.
    fn begin(&mut self, server: &ServerAddr) -> bool {
        let is_new = !self.asked.contains(server) && self.reasons.iter().all(|(known, _)| known != server);
        if is_new {
            self.asked.push(server.clone());
        }
        is_new
    }

    fn failed(&mut self, server: ServerAddr, error: &BoxError) {
        self.is_early |= error.is::<NotPrimary>();
        self.reasons.push((server, error_chain(&**error)));
    }

    /// The reasons as text, also of what has not responded within `limit`.
    fn describe(mut self, sentinels: &[ServerAddr], limit: Duration) -> String {
        for server in self.asked {
            if self.reasons.iter().all(|(known, _)| *known != server) {
                self.reasons.push((server, TimedOut(limit).to_string()));
            }
        }
        let reasons = self.reasons.iter().map(|(server, reason)| {
            let kind = if sentinels.contains(server) { "Sentinel" } else { "server" };
            format!("{kind} {server}: {reason}")
        });
        reasons.collect::<Vec<_>>().join("; ")
    }
}

impl Sentinels {
    pub(crate) fn new(
        addrs: Vec<ServerAddr>,
        master: String,
        to_sentinel: Connector,
        to_server: Connector,
    ) -> Self {
        Self { addrs, master, to_sentinel, to_server, primary: Mutex::default() }
    }

    /// Connects to the primary. Asks again until the deadline while the server that the Sentinels name is not
    /// the primary.
    pub(crate) async fn connect(&self, deadline: Instant) -> Result<Connection, BoxError> {
        let begun = Instant::now();
        loop {
            let mut search = Search::default();
            let found = timeout_at(deadline, self.search(&mut search)).await;
            if let Ok(Some((server, connection))) = found {
                self.found(server);
                return Ok(connection);
            }
            if found.is_err() || !search.is_early || Instant::now() + ASK_INTERVAL >= deadline {
                let reasons = search.describe(&self.addrs, begun.elapsed());
                return Err(NoPrimary { master: self.master.clone(), reasons }.into());
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    /// Asks all Sentinels, and connects to the server that most of them name, or after a pause to each that
    /// one of them names. Returns the first that is the primary.
    async fn search(&self, search: &mut Search) -> Option<(ServerAddr, Connection)> {
        search.asked.clone_from(&self.addrs);
        let mut answers: FuturesUnordered<_> =
            self.addrs.iter().map(async |sentinel| (sentinel, self.ask(sentinel).await)).collect();
        let mut attempts = FuturesUnordered::new();
        // The servers that are not connected to yet, with the number of Sentinels that name them.
        let mut named: HashMap<ServerAddr, usize> = HashMap::new();
        let (mut pause, mut is_over) = (pin!(sleep(MAJORITY_TIMEOUT)), false);
        loop {
            tokio::select! {
                Some((sentinel, answer)) = answers.next() => match answer {
                    Ok(server) => {
                        search.asked.retain(|asked| asked != sentinel);
                        *named.entry(server).or_default() += 1;
                    }
                    Err(error) => search.failed(sentinel.clone(), &error),
                },
                Some((server, attempt)) = attempts.next() => match attempt {
                    Ok(connection) => return Some((server, connection)),
                    Err(error) => search.failed(server, &error),
                },
                () = &mut pause, if !is_over && !answers.is_empty() => is_over = true,
                else => return None,
            }
            let is_all = is_over || answers.is_empty();
            for (server, _) in named.extract_if(|_, votes| is_all || *votes * 2 > self.addrs.len()) {
                if search.begin(&server) {
                    attempts.push(async move {
                        let attempt = self.connect_to(&server).await;
                        (server, attempt)
                    });
                }
            }
        }
    }

    /// Asks a Sentinel for the address of the primary.
    async fn ask(&self, sentinel: &ServerAddr) -> Result<ServerAddr, BoxError> {
        let mut connection = self.to_sentinel.connect(sentinel).await?;
        connection.allow(MAX_RESPONSE_BYTES);
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let response: Option<(String, u16)> = match command.query_async(&mut connection.commands).await {
            Err(error) if error.to_string().contains("unknown command") => {
                return Err("it is not a Sentinel".into());
            }
            response => response?,
        };
        let (host, port) = response.ok_or_else(|| format!("it does not know a primary {}", self.master))?;
        Ok(ServerAddr { host, port })
    }

    /// Connects to a server that must be the primary.
    async fn connect_to(&self, server: &ServerAddr) -> Result<Connection, BoxError> {
        let mut connection = self.to_server.connect(server).await?;
        connection.allow(MAX_RESPONSE_BYTES);
        let info: String =
            redis::cmd("INFO").arg("replication").query_async(&mut connection.commands).await?;
        connection.allow(usize::MAX);
        match info.lines().any(|line| line.trim_end() == "role:master") {
            true => Ok(connection),
            false => Err(NotPrimary.into()),
        }
    }

    /// The last primary that was connected to.
    pub(crate) fn primary(&self) -> Option<ServerAddr> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs the address of the primary if it is another one than before.
    fn found(&self, server: ServerAddr) {
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if primary.as_ref() == Some(&server) {
            return;
        }
        let redis_addr = server.to_string();
        match primary.replace(server) {
            None => tracing::info!(redis_addr, master = self.master, "found the primary of Redis"),
            Some(former) => tracing::info!(
                redis_addr,
                former_redis_addr = former.to_string(),
                master = self.master,
                "the primary of Redis has changed"
            ),
        }
    }
}
