//! Servers, and the calls of processes to them.
//!
//! A call travels to the server, takes effect there at one moment, and its response travels back. A server
//! that stops loses every call that is on its way, in either direction: the caller does not know whether it
//! took effect. A killed process sends nothing more and receives nothing, but a request that it has sent may
//! still arrive. A paused process neither sends nor receives until it continues.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use lock::Gate;
use memory_stores::Link;
use pg::PgError;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::dice::Dice;
use crate::process::Process;
use crate::trace::Trace;

/// The share of messages, in a thousand, that take longer than others.
const SLOW_MESSAGES: u64 = 30;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server as its clients see it.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    /// The time after which a client gives up a call.
    timeout: Duration,
    state: Mutex<ServerState>,
    changed: Notify,
}

#[derive(Debug)]
struct ServerState {
    /// Changes when the server stops.
    generation: u64,
    is_up: bool,
    hangs: bool,
    /// The additional time of each call.
    slowness: Duration,
    /// The share of responses, in a thousand, that are lost.
    lost_responses: u64,
    /// The share of calls, in a thousand, that the server cancels for taking too long.
    cancelled: u64,
}

/// The reason why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallFailure {
    /// The server is down, or it stopped before it responded.
    Disconnected,
    /// No response arrived in time.
    NoResponse,
    /// The server cancelled the call.
    Cancelled,
}

impl CallFailure {
    fn text(self) -> &'static str {
        match self {
            Self::Disconnected => "the connection is closed",
            Self::NoResponse => "no response in time",
            Self::Cancelled => "cancelled after its timeout",
        }
    }

    pub(crate) fn store_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Disconnected | Self::NoResponse => {
                StoreError::Unavailable { operation, source: self.text().into() }
            }
            Self::Cancelled => StoreError::TimedOut { operation, source: self.text().into() },
        }
    }

    pub(crate) fn pg_error(self, operation: &'static str) -> PgError {
        match self {
            Self::Disconnected | Self::NoResponse => {
                PgError::Unavailable { operation, source: self.text().into() }
            }
            Self::Cancelled => PgError::TimedOut { operation, source: self.text().into() },
        }
    }
}

impl Server {
    pub(crate) fn new(name: &'static str, timeout: Duration) -> Self {
        let state = ServerState {
            generation: 0,
            is_up: true,
            hangs: false,
            slowness: Duration::ZERO,
            lost_responses: 0,
            cancelled: 0,
        };
        Self { name, timeout, state: Mutex::new(state), changed: Notify::new() }
    }

    fn change(&self, change: impl FnOnce(&mut ServerState)) {
        change(&mut lock(&self.state));
        self.changed.notify_waiters();
    }

    /// Stops the server: every call on its way is lost.
    pub(crate) fn stop(&self) {
        self.change(|state| (state.generation, state.is_up) = (state.generation + 1, false));
    }

    pub(crate) fn start(&self) {
        self.change(|state| state.is_up = true);
    }

    /// Makes the server keep every call until it no longer hangs.
    pub(crate) fn set_hanging(&self, hangs: bool) {
        self.change(|state| state.hangs = hangs);
    }

    pub(crate) fn set_slowness(&self, slowness: Duration) {
        self.change(|state| state.slowness = slowness);
    }

    pub(crate) fn set_lost_responses(&self, permille: u64) {
        self.change(|state| state.lost_responses = permille);
    }

    pub(crate) fn set_cancelled(&self, permille: u64) {
        self.change(|state| state.cancelled = permille);
    }

    fn generation(&self) -> u64 {
        lock(&self.state).generation
    }

    /// Waits until the server of this generation has stopped.
    async fn stopped(&self, generation: u64) {
        loop {
            let changed = self.changed.notified();
            if self.generation() != generation {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the server takes a message, and returns its generation.
    async fn takes(&self, deadline: Instant) -> Result<u64, CallFailure> {
        loop {
            let changed = self.changed.notified();
            let (generation, is_up, hangs) = {
                let state = lock(&self.state);
                (state.generation, state.is_up, state.hangs)
            };
            match (is_up, hangs) {
                (false, _) => return Err(CallFailure::Disconnected),
                (true, false) => return Ok(generation),
                (true, true) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = sleep_until(deadline) => return Err(CallFailure::NoResponse),
                },
            }
        }
    }
}

/// The connections of one process to one server. Clones share the dice.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    process: Process,
    server: Arc<Server>,
    dice: Dice,
    trace: Trace,
}

/// A call that has reached the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    generation: u64,
    deadline: Instant,
}

impl Connection {
    pub(crate) fn new(process: &Process, server: &Arc<Server>, seed: u64, trace: &Trace) -> Self {
        let dice = Dice::new(seed, (process.name(), server.name));
        Self { process: process.clone(), server: Arc::clone(server), dice, trace: trace.clone() }
    }

    fn travel_time(&self) -> Duration {
        if self.dice.permille(SLOW_MESSAGES) { self.dice.millis(2, 25) } else { Duration::from_millis(1) }
    }

    /// Sends a request, and waits until the server carries it out.
    pub(crate) async fn request(&self) -> Result<Arrived, CallFailure> {
        self.process.runs().await;
        let deadline = Instant::now() + self.server.timeout;
        let (slowness, cancelled) = {
            let state = lock(&self.server.state);
            (state.slowness, state.cancelled)
        };
        sleep(self.travel_time() + slowness).await;
        let generation = self.server.takes(deadline).await?;
        if cancelled > 0 && self.dice.permille(cancelled) {
            return Err(CallFailure::Cancelled);
        }
        Ok(Arrived { generation, deadline })
    }

    /// Waits until the response of a request that was carried out is received.
    pub(crate) async fn response(&self, arrived: Arrived) -> Result<(), CallFailure> {
        let Arrived { generation, deadline } = arrived;
        let (lost, cancelled) = {
            let state = lock(&self.server.state);
            (state.lost_responses, state.cancelled)
        };
        if cancelled > 0 && self.dice.permille(cancelled) {
            return Err(CallFailure::Cancelled);
        }
        if lost > 0 && self.dice.permille(lost) {
            sleep_until(deadline).await;
            self.process.runs().await;
            return Err(CallFailure::NoResponse);
        }
        tokio::select! {
            biased;
            () = self.server.stopped(generation) => {}
            () = sleep(self.travel_time()) => {}
        }
        let taken = self.server.takes(deadline).await;
        self.process.runs().await;
        match taken? {
            current if current == generation => Ok(()),
            _ => Err(CallFailure::Disconnected),
        }
    }

    /// Runs a call whose effect is `run`.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        run: impl FnOnce() -> T,
    ) -> Result<T, CallFailure> {
        let outcome = async {
            let arrived = self.request().await?;
            let value = run();
            self.response(arrived).await.map(|()| value)
        }
        .await;
        self.note(operation, &[], outcome.as_ref().err().copied());
        outcome
    }

    fn note(&self, operation: &'static str, elements: &[String], failure: Option<CallFailure>) {
        self.trace.call(
            self.process.name(),
            self.server.name,
            operation,
            elements,
            failure.map(CallFailure::text),
        );
    }
}

impl Link for Connection {
    async fn call<T: Send>(
        &self,
        operation: &'static str,
        elements: Vec<String>,
        response: impl Future<Output = Result<T, StoreError>> + Send,
        _: impl FnOnce(&T) -> bool + Send,
    ) -> Result<T, StoreError> {
        let outcome = async {
            let arrived = self.request().await?;
            let value = tokio::select! {
                biased;
                () = self.server.stopped(arrived.generation) => return Err(CallFailure::Disconnected),
                value = response => value,
            };
            // A call may wait at the server, such as a read that blocks.
            let deadline = arrived.deadline.max(Instant::now() + self.server.timeout);
            self.response(Arrived { deadline, ..arrived }).await.map(|()| value)
        }
        .await;
        self.note(operation, &elements, outcome.as_ref().err().copied());
        outcome.unwrap_or_else(|failure| Err(failure.store_error(operation)))
    }
}

/// The way from a process to the locks of the database.
#[derive(Debug)]
pub(crate) struct LockGate(pub(crate) Connection);

impl Gate for LockGate {
    fn request<'a>(
        &'a self,
        operation: &'static str,
    ) -> Pin<Box<dyn Future<Output = Result<u64, PgError>> + Send + 'a>> {
        let Self(connection) = self;
        Box::pin(async move {
            let arrived = connection.request().await;
            arrived.map(|arrived| arrived.generation).map_err(|failure| {
                connection.note(operation, &[], Some(failure));
                failure.pg_error(operation)
            })
        })
    }

    fn is_running(&self) -> bool {
        let Self(connection) = self;
        !connection.process.is_killed()
    }

    fn response<'a>(
        &'a self,
        operation: &'static str,
        generation: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), PgError>> + Send + 'a>> {
        let Self(connection) = self;
        Box::pin(async move {
            let deadline = Instant::now() + connection.server.timeout;
            let response = connection.response(Arrived { generation, deadline }).await;
            connection.note(operation, &[], response.err());
            response.map_err(|failure| failure.pg_error(operation))
        })
    }
}

#[cfg(test)]
mod tests;
