//! The deadline of one HTTP connection.
//!
//! The server library has a timer for the head of a request, but restarts it as soon as a response is written: it would
//! close idle connections by the limit meant for slow heads, and it has none for whole requests. So the deadline is kept
//! here: the stream reports when bytes arrive, the service reports when a request begins and ends, and the task that
//! drives the connection drops it when the deadline has passed.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the head of a request.
    pub read_header: Duration,
    /// For a whole request, from its first byte to its response.
    pub read: Duration,
    /// Between two requests.
    pub idle: Duration,
}

/// What is being waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The first byte of a further request.
    Idle,
    /// The rest of a head whose first byte came at this time.
    Head { since: Instant },
    /// The rest of the request, and its response.
    Response,
}

/// When a connection is closed. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Deadline(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    timeouts: Timeouts,
    state: Mutex<(Waiting, Instant)>,
    moved: Notify,
}

impl Deadline {
    /// For a new connection: its first head is already awaited.
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let state = Mutex::new((Waiting::Head { since: now }, now + timeouts.read_header));
        Self(Arc::new(Shared { timeouts, state, moved: Notify::new() }))
    }

    /// Bytes arrived.
    fn received(&self) {
        let now = Instant::now();
        self.step(|waiting, deadline| match waiting {
            Waiting::Idle => (Waiting::Head { since: now }, now + self.0.timeouts.read_header),
            other => (other, deadline),
        });
    }

    /// A head is complete: the request is being read and answered.
    pub(crate) fn begin_request(&self) {
        let now = Instant::now();
        self.step(|waiting, _| {
            let since = if let Waiting::Head { since } = waiting { since } else { now };
            (Waiting::Response, since + self.0.timeouts.read)
        });
    }

    /// The response is ready.
    pub(crate) fn end_request(&self) {
        let now = Instant::now();
        self.step(|_, _| (Waiting::Idle, now + self.0.timeouts.idle));
    }

    /// Returns when the deadline has passed, however often it was moved.
    pub(crate) async fn passed(&self) {
        loop {
            let moved = self.0.moved.notified();
            let deadline = self.state().1;
            tokio::select! {
                () = sleep_until(deadline) => return,
                () = moved => {}
            }
        }
    }

    fn step(&self, next: impl FnOnce(Waiting, Instant) -> (Waiting, Instant)) {
        let mut state = self.state();
        let (waiting, deadline) = *state;
        *state = next(waiting, deadline);
        drop(state);
        self.0.moved.notify_one();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, (Waiting, Instant)> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that reports to its deadline when bytes arrive.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    deadline: Deadline,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, deadline: Deadline) -> Self {
        Self { stream, deadline }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.deadline.received();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
