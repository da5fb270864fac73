//! The deadline of one HTTP connection.
//!
//! The server library has a timer for the head of a request, but starts it anew as soon as an answer is written: it
//! would close idle connections by the limit meant for slow heads, and it has none for whole requests. So the
//! deadline is kept here: the stream tells when bytes come in, the service tells when a request begins and ends, and
//! whoever drives the connection drops it when the deadline has passed.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::config::HttpTimeouts;

/// What is being waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The first byte of a further request.
    Idle,
    /// The rest of a head whose first byte came at this time.
    Head { since: Instant },
    /// The rest of the request, and its answer.
    Answer,
}

/// When a connection is given up; shared by all who see it move.
#[derive(Debug, Clone)]
pub(super) struct Deadline(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    timeouts: HttpTimeouts,
    state: Mutex<(Waiting, Instant)>,
    moved: Notify,
}

impl Deadline {
    /// For a new connection: its first head is already awaited.
    pub(super) fn new(timeouts: HttpTimeouts) -> Self {
        let now = Instant::now();
        let state = Mutex::new((Waiting::Head { since: now }, now + timeouts.read_header));
        Self(Arc::new(Shared { timeouts, state, moved: Notify::new() }))
    }

    /// Bytes came in.
    fn received(&self) {
        let now = Instant::now();
        self.step(|waiting, deadline| match waiting {
            Waiting::Idle => (Waiting::Head { since: now }, now + self.0.timeouts.read_header),
            other => (other, deadline),
        });
    }

    /// A head is complete: the request is being read and answered.
    pub(super) fn begin_request(&self) {
        let now = Instant::now();
        self.step(|waiting, _| {
            let since = if let Waiting::Head { since } = waiting { since } else { now };
            (Waiting::Answer, since + self.0.timeouts.read)
        });
    }

    /// The answer is there.
    pub(super) fn end_request(&self) {
        let now = Instant::now();
        self.step(|_, _| (Waiting::Idle, now + self.0.timeouts.idle));
    }

    /// Returns when the deadline has passed, however often it was moved.
    pub(super) async fn passed(&self) {
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

/// A stream that tells its deadline when bytes come in.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    deadline: Deadline,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, deadline: Deadline) -> Self {
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
