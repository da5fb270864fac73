//! Dispatch sends newly accepted routes in memory to the publishers of this replica.
//!
//! Losing the queues loses no route: every route is a committed row that becomes due one lease TTL after its
//! acceptance, and the due scan of any replica finds it then. So the queues are bounded, and a blocked
//! channel does not delay the others: routes that do not fit are left to the scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::outcome::Acceptance;
use domain::route::{Channel, LiveRoute};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The most batches that are queued for one channel.
const QUEUED_BATCHES_MAX: usize = 16;
/// The most routes and bytes in one batch.
pub(crate) const BATCH_ROUTES: usize = 256;
const BATCH_BYTES: usize = 512 * 1024;
/// The longest total time that acceptance waits for a channel without room, before it leaves the rest of a
/// batch to the scan. During a backlog a queue empties slowly, so this is well above the time of a few
/// chunks.
const DISPATCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Routes of one channel.
#[derive(Debug)]
pub(crate) struct RouteBatch {
    pub(crate) routes: Vec<LiveRoute>,
    /// The time at which PostgreSQL had them in this state.
    pub(crate) read_at: Instant,
    /// A time before which no replica with a correct clock sees any of them as due. It is past if they were
    /// due when they were read.
    pub(crate) due_at: Instant,
}

/// The sending side, for acceptance. Clones share the queues.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    queues: Vec<ChannelQueue>,
}

#[derive(Clone, Debug)]
struct ChannelQueue {
    channel: Channel,
    sender: mpsc::Sender<RouteBatch>,
    backpressure: Backpressure,
}

/// The receiving side, for the publisher of one channel.
#[derive(Debug)]
pub struct Receiver {
    pub(crate) batches: mpsc::Receiver<RouteBatch>,
    pub(crate) backpressure: Backpressure,
}

/// A flag that is set while a channel is blocked. While it is set, acceptance does not wait for the channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backpressure(Arc<AtomicBool>);

impl Backpressure {
    pub(crate) fn set(&self, blocked: bool) {
        self.0.store(blocked, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Creates a dispatcher to `channels`, with a receiver for each.
pub fn dispatch<const N: usize>(channels: [Channel; N]) -> (Dispatcher, [Receiver; N]) {
    let mut queues = Vec::with_capacity(N);
    let receivers = channels.map(|channel| {
        let (sender, batches) = mpsc::channel(QUEUED_BATCHES_MAX);
        let backpressure = Backpressure::default();
        queues.push(ChannelQueue { channel, sender, backpressure: backpressure.clone() });
        Receiver { batches, backpressure }
    });
    (Dispatcher { queues }, receivers)
}

impl Dispatcher {
    /// Sends the live routes of `acceptances`, which have just been committed and are due at `due_at`, to
    /// their channels. Returns the number of routes that were left to the scan.
    pub(crate) async fn send<'a>(
        &self,
        acceptances: impl Iterator<Item = &'a Acceptance> + Clone,
        due_at: Instant,
    ) -> usize {
        let read_at = Instant::now();
        let empty = || RouteBatch { routes: Vec::new(), read_at, due_at };
        let sent = self.queues.iter().map(|queue| {
            let routes = acceptances.clone().flat_map(Acceptance::live_routes);
            queue.send(batches(routes.filter(|route| route.channel == queue.channel), empty))
        });
        futures_util::future::join_all(sent).await.into_iter().sum()
    }

    /// True if a channel is blocked, so that its newly accepted routes will be left to the scan.
    pub(crate) fn is_blocked(&self) -> bool {
        self.queues.iter().any(|queue| queue.backpressure.is_set())
    }
}

#[cfg(test)]
impl Dispatcher {
    /// Puts a batch directly into a queue.
    pub(crate) fn give(&self, channel: Channel, batch: RouteBatch) {
        let queue = self.queues.iter().find(|queue| queue.channel == channel).expect("there is such a queue");
        queue.sender.try_send(batch).expect("the queue has room");
    }
}

impl ChannelQueue {
    async fn send(&self, batches: Vec<RouteBatch>) -> usize {
        let deadline = Instant::now() + DISPATCH_TIMEOUT;
        let mut left = 0;
        for batch in batches {
            let routes = batch.routes.len();
            let wait = if self.backpressure.is_set() {
                Duration::ZERO
            } else {
                deadline.saturating_duration_since(Instant::now())
            };
            let taken = self.sender.send_timeout(batch, wait).await.is_ok();
            left += if taken { 0 } else { routes };
        }
        left
    }
}

fn batches(routes: impl Iterator<Item = LiveRoute>, empty: impl Fn() -> RouteBatch) -> Vec<RouteBatch> {
    let mut batches: Vec<RouteBatch> = Vec::new();
    let mut bytes = 0;
    for route in routes {
        let size = route.content.payload_json.len();
        match batches.last_mut() {
            Some(last) if last.routes.len() < BATCH_ROUTES && bytes + size <= BATCH_BYTES => {
                bytes += size;
                last.routes.push(route);
            }
            _ => {
                bytes = size;
                batches.push(RouteBatch { routes: vec![route], ..empty() });
            }
        }
    }
    batches
}
