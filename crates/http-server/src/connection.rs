//! The deadline of one connection.
//!
//! The server library has a timer for the head of a request, but restarts it as soon as an answer is written: it would
//! close idle connections by the limit meant for slow heads. So the deadline is kept here: the stream reports when bytes
//! arrive, the service reports when a request begins and when its answer was written, and the task that drives the
//! connection closes it when the deadline has passed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long a connection without a complete head is left alone when there is no room for others.
const HEAD_GRACE: Duration = Duration::from_secs(1);

/// How long a client may take to close an idle connection that has to make room.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client may take nothing of an answer that is there for it. Answers that are not taken keep room from other requests. With
/// HTTP/2 that is seen of the connection as a whole, not of one stream.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the head of a request; for the first one, from the connection on.
    pub read_header: Duration,
    /// For a request, from its first byte to its answer. With HTTP/2 from the end of its head.
    pub request: Duration,
    /// Between two requests, and to take an answer, unless the client takes nothing for ten seconds.
    pub idle: Duration,
}

impl Timeouts {
    /// No request or pause that begins now has to end earlier.
    fn shortest(&self) -> Duration {
        self.read_header.min(self.request).min(self.idle).min(STALL_TIMEOUT)
    }
}

/// What a connection is doing. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    timeouts: Timeouts,
    state: Mutex<State>,
    /// Tells the driver that the deadline is earlier than what it waits for.
    earlier: Notify,
    unwanted: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// When the answer to each request must have been written. The first is the earliest.
    in_progress: BTreeMap<u64, Instant>,
    begun: u64,
    /// When the connection was made, or became idle.
    waiting_since: Instant,
    /// When the head that is incomplete began.
    head_since: Option<Instant>,
    /// Since when it has to make room for another connection.
    unwanted_since: Option<Instant>,
    /// Since when the client has not taken what is to be written.
    stalled_since: Option<Instant>,
    /// What the driver waits for.
    armed: Instant,
}

impl State {
    fn deadline(&self, timeouts: &Timeouts) -> Instant {
        let deadline = self.deadline_of_requests(timeouts);
        self.stalled_since.map_or(deadline, |since| deadline.min(since + STALL_TIMEOUT))
    }

    fn deadline_of_requests(&self, timeouts: &Timeouts) -> Instant {
        if let Some((_, deadline)) = self.in_progress.first_key_value() {
            return *deadline;
        }
        let first_head = self.waiting_since + timeouts.read_header;
        let deadline = match self.head_since {
            Some(since) if self.begun == 0 => first_head.min(since + timeouts.request),
            Some(since) => since + timeouts.read_header.min(timeouts.request),
            None if self.begun == 0 => first_head,
            None => self.waiting_since + timeouts.idle,
        };
        match self.unwanted_since {
            Some(since) if self.is_idle() => deadline.min(since + CLOSE_TIMEOUT),
            Some(since) => deadline.min(since),
            None => deadline,
        }
    }

    /// Whether it is between two requests.
    fn is_idle(&self) -> bool {
        self.in_progress.is_empty() && self.head_since.is_none() && self.begun > 0
    }
}

impl Activity {
    /// For a new connection.
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let state = State {
            in_progress: BTreeMap::new(),
            begun: 0,
            waiting_since: now,
            head_since: None,
            unwanted_since: None,
            stalled_since: None,
            armed: now + timeouts.read_header,
        };
        Self(Arc::new(Shared {
            timeouts,
            state: Mutex::new(state),
            earlier: Notify::new(),
            unwanted: CancellationToken::new(),
        }))
    }

    /// Bytes arrived. With HTTP/2 they may be anything, and are not reported.
    fn received(&self) {
        self.change(|state| {
            if state.in_progress.is_empty() && state.head_since.is_none() {
                state.head_since = Some(Instant::now());
            }
        });
    }

    /// The client takes nothing, or something again.
    fn set_stalled(&self, is_stalled: bool) {
        self.change(|state| state.stalled_since = is_stalled.then(Instant::now));
    }

    /// A head is complete. Gives the time of its first byte, and what lasts until the answer was written.
    pub(crate) fn begin(&self) -> (Instant, Progress) {
        self.change(|state| {
            let started = state.head_since.take().unwrap_or_else(Instant::now);
            let id = state.begun;
            state.begun += 1;
            state.in_progress.insert(id, started + self.0.timeouts.request + self.0.timeouts.idle);
            (started, Progress { activity: self.clone(), id })
        })
    }

    fn end(&self, id: u64) {
        self.change(|state| {
            state.in_progress.remove(&id);
            if state.in_progress.is_empty() {
                state.waiting_since = Instant::now();
            }
        });
    }

    /// How readily the connection is closed to make room for another: the least first, `None` not at all. Idle ones come
    /// before those without a complete head, and those that wait longest before others.
    pub(crate) fn expendability(&self, now: Instant) -> Option<(bool, Instant)> {
        let state = self.state();
        if !state.in_progress.is_empty() || state.unwanted_since.is_some() {
            return None;
        }
        let since = state.head_since.unwrap_or(state.waiting_since);
        let is_idle = state.is_idle();
        (is_idle || since + HEAD_GRACE <= now).then_some((!is_idle, since))
    }

    /// Asks for the end of the connection, unless a request begins before it comes to that.
    pub(crate) fn make_room(&self) {
        self.change(|state| state.unwanted_since = Some(Instant::now()));
        self.0.unwanted.cancel();
    }

    /// Returns once [`Activity::make_room`] was called.
    pub(crate) async fn unwanted(&self) {
        self.0.unwanted.cancelled().await;
    }

    /// Whether a part of a head has arrived.
    pub(crate) fn is_in_head(&self) -> bool {
        self.state().head_since.is_some()
    }

    /// Returns when the deadline has passed, however often it was moved.
    pub(crate) async fn passed(&self) {
        loop {
            let earlier = self.0.earlier.notified();
            let now = Instant::now();
            let armed = {
                let mut state = self.state();
                let deadline = state.deadline(&self.0.timeouts);
                if deadline <= now {
                    return;
                }
                // No deadline that is set from now on is earlier than that, unless there must be room. So a request wakes nobody.
                state.armed = deadline.min(now + self.0.timeouts.shortest());
                state.armed
            };
            tokio::select! {
                () = sleep_until(armed) => {}
                () = earlier => {}
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let outcome = change(&mut state);
        let is_earlier = state.deadline(&self.0.timeouts) < state.armed;
        drop(state);
        if is_earlier {
            self.0.earlier.notify_one();
        }
        outcome
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    activity: Activity,
    id: u64,
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.activity.end(self.id);
    }
}

/// A stream that reports when bytes arrive, and when none can be written.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    activity: Activity,
    is_stalled: bool,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity, is_stalled: false }
    }

    fn wrote(&mut self, outcome: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if outcome.is_pending() != self.is_stalled {
            self.is_stalled = outcome.is_pending();
            self.activity.set_stalled(self.is_stalled);
        }
        outcome
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
            self.activity.received();
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
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::yield_now;
    use tokio::time::{advance, timeout};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not() {
        let hour = Duration::from_secs(3_600);
        let activity = Activity::new(Timeouts { read_header: hour, request: hour, idle: hour });
        let (mut client, server) = tokio::io::duplex(1);
        let mut server = Watched::new(server, activity.clone());
        let _request = activity.begin();
        let answer = tokio::spawn(async move { server.write_all(&[b'x'; 100]).await });
        let (begun, mut passed) = (Instant::now(), pin!(activity.passed()));
        for _byte in 0..50 {
            let pause = STALL_TIMEOUT - Duration::from_millis(1);
            assert!(timeout(pause, passed.as_mut()).await.is_err(), "after {:?}", begun.elapsed());
            assert_eq!(client.read_u8().await.expect("a byte"), b'x');
            // The writer goes on before the time does.
            yield_now().await;
        }
        let pause = Instant::now();
        passed.await;
        assert_eq!(pause.elapsed(), STALL_TIMEOUT);
        answer.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_wake_the_task_that_waits_for_the_deadline() {
        let seconds = Duration::from_secs;
        let activity =
            Activity::new(Timeouts { read_header: seconds(10), request: seconds(30), idle: seconds(75) });
        let (wakes, mut passed) = (Arc::<Wakes>::default(), pin!(activity.passed()));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut poll = || passed.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        for _request in 0..100 {
            activity.received();
            drop(activity.begin());
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
            assert!(poll().is_pending());
            advance(Duration::from_millis(90)).await;
        }
        // The timer that it waited for all the time.
        advance(seconds(1)).await;
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(poll().is_pending());
        // Neither do requests after it.
        activity.received();
        drop(activity.begin());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        // And it ends when the connection was idle for too long, not earlier.
        let mut idle = Duration::ZERO;
        while poll().is_pending() {
            advance(seconds(1)).await;
            idle += seconds(1);
        }
        assert_eq!(idle, seconds(75));
    }
}
