//! The state that the concurrent parts of a publisher share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{ServerId, StoreError};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::deferred::Deferred;
use super::log::RouteLog;
use super::markers::Markers;
use super::permit::Permit;
use crate::batch_limit::BatchLimit;
use crate::health::{Health, Stopped};

/// The state of a channel's publisher that its chunks, its retries and its loop share.
#[derive(Debug)]
pub(super) struct PublisherState {
    pub(super) health: Health,
    pub(super) stop: CancellationToken,
    pub(super) markers: Markers,
    pub(super) deferred: Mutex<Deferred>,
    /// Notified when completions are deferred, to wake the retries.
    pub(super) deferred_added: Notify,
    /// Notified when deferred completions were retried, or when the scan is to run.
    pub(super) retried: Notify,
    /// True if the scan is to run at once, because completions of routes that are live again were dropped.
    pub(super) scan_now: AtomicBool,
    pub(super) batch_limit: Mutex<BatchLimit>,
    pub(super) log: Mutex<RouteLog>,
    /// The Redis server that has the stream of the channel; `None` before the first append.
    pub(super) server: Mutex<Option<KnownServer>>,
    /// The last permit. The lock is held while a new one is requested.
    pub(super) permit: tokio::sync::Mutex<Option<Permit>>,
}

/// A server that has responded to an append.
#[derive(Debug)]
pub(super) struct KnownServer {
    id: ServerId,
    /// The time of its first response, if it has replaced another server.
    since: Option<Instant>,
}

/// The error of routes that were read when Redis was another server than now.
#[derive(Debug)]
pub(super) struct ReadBeforeServer;

impl PublisherState {
    /// Records the server that carried out an append.
    pub(super) fn note_server(&self, id: ServerId) {
        let mut known = lock(&self.server);
        if known.as_ref().is_none_or(|known| known.id != id) {
            let since = known.is_some().then(Instant::now);
            *known = Some(KnownServer { id, since });
        }
    }

    /// Returns the server that may append routes that were read at this time, or `None` if any may, because
    /// no server is known. Returns an error if the server was replaced since: it may lack the lease of an
    /// operator who has cancelled the routes.
    pub(super) fn server_of(&self, read_at: Instant) -> Result<Option<ServerId>, ReadBeforeServer> {
        match &*lock(&self.server) {
            Some(known) if known.since > Some(read_at) => Err(ReadBeforeServer),
            known => Ok(known.as_ref().map(|known| known.id.clone())),
        }
    }

    pub(super) fn mark_healthy(&self) {
        self.health.mark_healthy();
    }

    pub(super) fn mark_failed(&self, error: &StoreError) {
        // The caller continues with other work instead of the pause.
        let _pause: Duration = self.health.mark_failed(error);
    }

    pub(super) async fn pause_after(&self, error: &StoreError) -> Result<(), Stopped> {
        self.health.pause_after(error, &self.stop).await
    }

    pub(super) async fn until_answered<V, F: Future<Output = Result<V, StoreError>>>(
        &self,
        call: impl FnMut() -> F,
    ) -> Result<V, Stopped> {
        self.health.until_answered(&self.stop, call).await
    }

    pub(super) fn deferred(&self) -> MutexGuard<'_, Deferred> {
        lock(&self.deferred)
    }

    pub(super) fn scan_now(&self) {
        self.scan_now.store(true, Ordering::Relaxed);
        self.retried.notify_one();
    }

    pub(super) fn log(&self) -> MutexGuard<'_, RouteLog> {
        lock(&self.log)
    }

    pub(super) fn batch_limit(&self) -> MutexGuard<'_, BatchLimit> {
        lock(&self.batch_limit)
    }
}

/// Locks a mutex of the state. Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
