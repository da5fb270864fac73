//! Detection of responses that an HTTP/2 client does not read.
//!
//! A client may keep the window of a stream closed, so that nothing of a response can be written although the
//! connection works. The server library waits for the window without a limit. So each stream runs in its own
//! future, which ends once nothing of its response was written for [`STALL_TIMEOUT`]; dropping that future
//! resets the stream. The task of the stream and the body of its response share a [`Stall`].

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::sparse_log::SparseLog;
use crate::timeouts::STALL_TIMEOUT;

tokio::task_local! {
    static STALL: Stall;
}

/// The progress of writing the response on one stream. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stall(Arc<Mutex<StallState>>);

#[derive(Debug, Default)]
struct StallState {
    /// Time since which nothing was written, while there is something to write.
    since: Option<Instant>,
    /// Number of pieces that the server library has taken and not written.
    unwritten: usize,
    /// Waker of the stream, which waits until there are none.
    waker: Option<Waker>,
}

impl Stall {
    /// The state of the current task's stream; `None` with HTTP/1.1.
    pub(crate) fn of_this_stream() -> Option<Self> {
        STALL.try_with(Clone::clone).ok()
    }

    /// Records that there is a response, or that more of it can be written.
    pub(crate) fn advanced(&self) {
        self.state().since = Some(Instant::now());
    }

    /// Records that the server library took a piece.
    pub(crate) fn taken(&self) {
        let mut state = self.state();
        state.unwritten += 1;
        state.since = Some(Instant::now());
    }

    /// Records that the server library wrote a piece, or dropped it.
    pub(crate) fn written(&self) {
        let mut state = self.state();
        state.unwritten -= 1;
        state.since = Some(Instant::now());
        if let Some(waker) = state.waker.take().filter(|_| state.unwritten == 0) {
            waker.wake();
        }
    }

    /// Ready once every piece is written. Until then the stream does not end, so that its task continues to
    /// watch it.
    pub(crate) fn poll_written(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.unwritten == 0 {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// True if every piece is written.
    pub(crate) fn is_written(&self) -> bool {
        self.state().unwritten == 0
    }

    fn state(&self) -> std::sync::MutexGuard<'_, StallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executor for the streams of HTTP/2 connections.
#[derive(Debug, Clone)]
pub(crate) struct StreamExecutor(Arc<SparseLog>);

impl StreamExecutor {
    /// Creates an executor that counts reset streams in `log`.
    pub(crate) fn new(log: Arc<SparseLog>) -> Self {
        Self(log)
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (stall, log) = (Stall::default(), Arc::clone(&self.0));
        let running = Some(Box::pin(STALL.scope(stall.clone(), stream)));
        tokio::spawn(WatchedStream { running, stall, timer: None, log });
    }
}

/// A stream until it ends or stalls.
struct WatchedStream<F: Future> {
    running: Option<Pin<Box<TaskLocalFuture<Stall, F>>>>,
    stall: Stall,
    timer: Option<Pin<Box<Sleep>>>,
    log: Arc<SparseLog>,
}

impl<F: Future<Output = ()>> Future for WatchedStream<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(running) = self.running.as_mut() else { return Poll::Ready(()) };
        if running.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            // Only this task sets the first time; others move it later, which the timer detects when it
            // expires.
            let Some(since) = self.stall.state().since else { return Poll::Pending };
            let end = since + STALL_TIMEOUT;
            if end <= Instant::now() {
                if let Some(count) = self.log.admit() {
                    tracing::warn!(count, "clients stopped reading their responses; ended the responses");
                }
                self.running = None;
                return Poll::Ready(());
            }
            match &mut self.timer {
                Some(timer) => {
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    timer.as_mut().reset(end);
                }
                None => self.timer = Some(Box::pin(sleep_until(end))),
            }
        }
    }
}
