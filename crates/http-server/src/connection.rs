//! The deadline of one connection.
//!
//! The server library has a timer for the head of a request, but restarts it as soon as a response is
//! written: it would close idle connections by the limit meant for slow heads. So this module keeps the
//! deadline: the stream reports when bytes arrive, the service reports when a request begins and when its
//! response was written, and the task that drives the connection closes it when the deadline has passed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::timeouts::{STALL_TIMEOUT, Timeouts};

/// The time for which a connection without a complete head, or with a request of an unknown client, is kept
/// when there is no room for others.
const HEAD_GRACE: Duration = Duration::from_secs(1);

/// The time in which a client may close an idle connection that has to make room.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which a refused client may continue to send when there is no room for others.
const REFUSED_GRACE: Duration = Duration::from_secs(2);

/// The most requests without a known token that a connection may make; the connection is closed after the
/// response to the next one.
const MAX_UNAUTHORIZED: u32 = 10;

/// The state of a connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionActivity(Arc<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    timeouts: Timeouts,
    state: Mutex<RequestsInProgress>,
    /// Notifies the driver that the deadline is now earlier than the one it waits for.
    earlier: Notify,
    unwanted: CancellationToken,
}

/// A request whose response is not written yet, or whose body has not arrived completely.
#[derive(Debug)]
struct InProgress {
    since: Instant,
    /// Time at which the response must be written.
    deadline: Instant,
    /// Time of the refusal, if the request was refused and its client still sends.
    refused_since: Option<Instant>,
}

#[derive(Debug)]
struct RequestsInProgress {
    /// Requests in the order in which they began. The first has the earliest deadline.
    in_progress: BTreeMap<u64, InProgress>,
    begun: u64,
    /// True if a request of the connection came from a known client.
    is_known: bool,
    /// Number of requests that were refused for lack of a known token.
    unauthorized: u32,
    /// Time at which the connection was made or became idle.
    waiting_since: Instant,
    /// Time at which the incomplete head began.
    head_since: Option<Instant>,
    /// Time since which the connection has to make room for another one.
    unwanted_since: Option<Instant>,
    /// Time since which the client has not read the pending output.
    stalled_since: Option<Instant>,
    /// Time at which the driver's timer expires.
    armed: Instant,
}

impl RequestsInProgress {
    fn deadline(&self, timeouts: &Timeouts) -> Instant {
        let deadline = self.deadline_of_requests(timeouts);
        self.stalled_since.map_or(deadline, |since| deadline.min(since + STALL_TIMEOUT))
    }

    fn deadline_of_requests(&self, timeouts: &Timeouts) -> Instant {
        if let Some((_, first)) = self.in_progress.first_key_value() {
            return match self.unwanted_since {
                Some(since) if self.expendable_since().is_some() => first.deadline.min(since),
                _ => first.deadline,
            };
        }
        let first_head = self.waiting_since + timeouts.read_header;
        let deadline = match self.head_began() {
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

    /// True between two requests.
    fn is_idle(&self) -> bool {
        self.in_progress.is_empty() && self.head_since.is_none() && self.begun > 0
    }

    /// The time from which the incomplete head counts: a part of it may have arrived while another request
    /// was in progress.
    fn head_began(&self) -> Option<Instant> {
        self.head_since.map(|since| if self.begun == 0 { since } else { since.max(self.waiting_since) })
    }

    /// The time from which the requests in progress may be dropped for others: all are refused, or the client
    /// is unknown.
    fn expendable_since(&self) -> Option<Instant> {
        let requests = self.in_progress.values();
        if requests.clone().all(|request| request.refused_since.is_some()) {
            return requests
                .filter_map(|request| request.refused_since)
                .max()
                .map(|since| since + REFUSED_GRACE);
        }
        requests.map(|request| request.since + HEAD_GRACE).max().filter(|_| !self.is_known)
    }
}

impl ConnectionActivity {
    /// Creates the state of a new connection.
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let state = RequestsInProgress {
            in_progress: BTreeMap::new(),
            begun: 0,
            is_known: false,
            unauthorized: 0,
            waiting_since: now,
            head_since: None,
            unwanted_since: None,
            stalled_since: None,
            armed: now + timeouts.read_header,
        };
        Self(Arc::new(ConnectionState {
            timeouts,
            state: Mutex::new(state),
            earlier: Notify::new(),
            unwanted: CancellationToken::new(),
        }))
    }

    /// Reports the first byte of a head, even if the previous request is still in progress. Not used with
    /// HTTP/2.
    pub(crate) fn head_began(&self) {
        self.change(|state| state.head_since = state.head_since.or_else(|| Some(Instant::now())));
    }

    /// Reports that the client stopped reading, or reads again.
    pub(crate) fn set_stalled(&self, is_stalled: bool) {
        self.change(|state| state.stalled_since = is_stalled.then(Instant::now));
    }

    /// Reports that a head is complete. Returns the time of its first byte, and a guard to hold until the
    /// response is written.
    pub(crate) fn begin(&self) -> (Instant, RequestProgress) {
        self.change(|state| {
            let started = state.head_began().unwrap_or_else(Instant::now);
            state.head_since = None;
            let id = state.begun;
            state.begun += 1;
            let deadline = started + self.0.timeouts.request + self.0.timeouts.idle;
            state.in_progress.insert(id, InProgress { since: started, deadline, refused_since: None });
            (started, RequestProgress { activity: self.clone(), id })
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

    /// Reports that a client of the connection is known: it has a token, or no token is required.
    pub(crate) fn set_known(&self) {
        if !self.state().is_known {
            self.change(|state| state.is_known = true);
        }
    }

    /// Closes the connection after the responses to its requests in progress.
    pub(crate) fn retire(&self) {
        self.0.unwanted.cancel();
    }

    /// Counts a request that was refused for lack of a known token. After too many the connection is closed.
    pub(crate) fn count_unauthorized(&self) {
        let mut state = self.state();
        state.unauthorized += 1;
        let too_many = state.unauthorized > MAX_UNAUTHORIZED;
        drop(state);
        if too_many {
            self.retire();
        }
    }

    /// The rank in which the connection is closed to make room for another, lowest first, and the time from
    /// which it may be closed; `None` if never. Connections of unknown and refused clients come first, then
    /// idle ones, then those without a complete head; within a rank those that have waited longest.
    pub(crate) fn expendability(&self) -> Option<(u8, Instant)> {
        let state = self.state();
        if state.unwanted_since.is_some() {
            return None;
        }
        if !state.in_progress.is_empty() {
            return state.expendable_since().map(|since| (0, since));
        }
        let since = state.head_began().unwrap_or(state.waiting_since);
        match (state.is_known, state.is_idle()) {
            (false, true) => Some((0, since)),
            (true, true) => Some((1, since)),
            (_, false) => Some((2, since + HEAD_GRACE)),
        }
    }

    /// Starts to close the connection. A request that begins before it is closed may still be served.
    pub(crate) fn make_room(&self) {
        self.change(|state| state.unwanted_since = Some(Instant::now()));
        self.0.unwanted.cancel();
    }

    /// Returns once [`ConnectionActivity::make_room`] or [`ConnectionActivity::retire`] was called.
    pub(crate) async fn unwanted(&self) {
        self.0.unwanted.cancelled().await;
    }

    /// True if a part of a head has arrived.
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
                // Deadlines that are set from now on are not earlier than this, unless the connection has to
                // make room. So a request does not wake the driver.
                state.armed = deadline.min(now + self.0.timeouts.shortest());
                state.armed
            };
            tokio::select! {
                () = sleep_until(armed) => {}
                () = earlier => {}
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut RequestsInProgress) -> T) -> T {
        let mut state = self.state();
        let outcome = change(&mut state);
        let is_earlier = state.deadline(&self.0.timeouts) < state.armed;
        drop(state);
        if is_earlier {
            self.0.earlier.notify_one();
        }
        outcome
    }

    fn state(&self) -> MutexGuard<'_, RequestsInProgress> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in progress; ends on drop.
#[derive(Debug)]
pub(crate) struct RequestProgress {
    activity: ConnectionActivity,
    id: u64,
}

impl RequestProgress {
    /// The connection of the request.
    pub(crate) fn activity(&self) -> &ConnectionActivity {
        &self.activity
    }

    /// Reports that the request is refused while its client still sends.
    pub(crate) fn refused(&self) {
        self.activity.change(|state| {
            if let Some(request) = state.in_progress.get_mut(&self.id) {
                request.refused_since = Some(Instant::now());
            }
        });
    }
}

impl Drop for RequestProgress {
    fn drop(&mut self) {
        self.activity.end(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::yield_now;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::frames::{Fragments, Frames};
    use crate::stream::Watched;

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
        let activity = ConnectionActivity::new(Timeouts { read_header: hour, request: hour, idle: hour });
        let (mut client, server) = tokio::io::duplex(1);
        let mut server = Watched::http2(server, activity.clone(), Frames::new(Fragments::default()));
        let _request = activity.begin();
        let answer = tokio::spawn(async move { server.write_all(&[b'x'; 100]).await });
        let (begun, mut passed) = (Instant::now(), pin!(activity.passed()));
        for _byte in 0..50 {
            let pause = STALL_TIMEOUT - Duration::from_millis(1);
            assert!(timeout(pause, passed.as_mut()).await.is_err(), "after {:?}", begun.elapsed());
            assert_eq!(client.read_u8().await.expect("a byte"), b'x');
            // The writer continues before the clock advances.
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
        let activity = ConnectionActivity::new(Timeouts {
            read_header: seconds(10),
            request: seconds(30),
            idle: seconds(75),
        });
        let (wakes, mut passed) = (Arc::<Wakes>::default(), pin!(activity.passed()));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut poll = || passed.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        for _request in 0..100 {
            activity.head_began();
            drop(activity.begin());
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
            assert!(poll().is_pending());
            advance(Duration::from_millis(90)).await;
        }
        // The timer that it has waited for since the beginning.
        advance(seconds(1)).await;
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(poll().is_pending());
        // Later requests do not wake it either.
        activity.head_began();
        drop(activity.begin());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        // It ends when the connection was idle for too long, not earlier.
        let mut idle = Duration::ZERO;
        while poll().is_pending() {
            advance(seconds(1)).await;
            idle += seconds(1);
        }
        assert_eq!(idle, seconds(75));
    }
}
