//! Freshly accepted routes on their way to the publishers of this replica, in memory.
//!
//! Losing what is in here loses nothing: every route is a committed row that becomes due one lease TTL after its
//! acceptance, and the due scan of any replica finds it then. So the queue is bounded, and a channel that does not move
//! does not hold up the others: what it cannot take is left to the scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::accept::Acceptance;
use domain::route::{Channel, LiveRoute};
use tokio::sync::mpsc;

/// The most parcels that wait for one channel.
const PARCELS: usize = 16;
/// The most routes and bytes in one parcel.
pub(crate) const PARCEL_ROUTES: usize = 256;
const PARCEL_BYTES: usize = 512 * 1024;
/// How long acceptance waits in all for a channel that moves, before it leaves the rest of a batch to the scan. Behind a
/// backlog that is a long wait, so it is well above the time of a few chunks.
const PATIENCE: Duration = Duration::from_secs(2);

/// Routes of one channel and when they were known to be so in SQL.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) routes: Vec<LiveRoute>,
    pub(crate) read_at: Instant,
}

/// The side of acceptance.
#[derive(Debug)]
pub struct Handover {
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    channel: Channel,
    sender: mpsc::Sender<Parcel>,
    stalled: Stalled,
}

/// The side of one channel's publisher.
#[derive(Debug)]
pub struct Inbox {
    pub(crate) parcels: mpsc::Receiver<Parcel>,
    pub(crate) stalled: Stalled,
}

/// Whether a channel moves. While it does not, acceptance does not wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalled(Arc<AtomicBool>);

impl Stalled {
    pub(crate) fn set(&self, stalled: bool) {
        self.0.store(stalled, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A hand-over for `channels`, with an inbox for each.
pub fn handover<const N: usize>(channels: [Channel; N]) -> (Handover, [Inbox; N]) {
    let mut lanes = Vec::with_capacity(N);
    let inboxes = channels.map(|channel| {
        let (sender, parcels) = mpsc::channel(PARCELS);
        let stalled = Stalled::default();
        lanes.push(Lane { channel, sender, stalled: stalled.clone() });
        Inbox { parcels, stalled }
    });
    (Handover { lanes }, inboxes)
}

impl Handover {
    /// Offers the live routes of `acceptances`, which were committed at `read_at`, and returns how many were left to
    /// the scan.
    pub(crate) async fn offer<'a>(
        &self,
        acceptances: impl Iterator<Item = &'a Acceptance> + Clone,
        read_at: Instant,
    ) -> usize {
        let offers = self.lanes.iter().map(|lane| {
            let routes = acceptances.clone().flat_map(Acceptance::live_routes);
            lane.offer(parcels(routes.filter(|route| route.channel == lane.channel), read_at))
        });
        futures_util::future::join_all(offers).await.into_iter().sum()
    }
}

#[cfg(test)]
impl Handover {
    /// Puts a parcel straight into a lane.
    pub(crate) fn give(&self, channel: Channel, parcel: Parcel) {
        let lane = self.lanes.iter().find(|lane| lane.channel == channel).expect("there is such a lane");
        lane.sender.try_send(parcel).expect("the lane has room");
    }
}

impl Lane {
    async fn offer(&self, parcels: Vec<Parcel>) -> usize {
        let deadline = Instant::now() + PATIENCE;
        let mut left = 0;
        for parcel in parcels {
            let routes = parcel.routes.len();
            let patience = if self.stalled.get() {
                Duration::ZERO
            } else {
                deadline.saturating_duration_since(Instant::now())
            };
            let taken = self.sender.send_timeout(parcel, patience).await.is_ok();
            left += if taken { 0 } else { routes };
        }
        left
    }
}

fn parcels(routes: impl Iterator<Item = LiveRoute>, read_at: Instant) -> Vec<Parcel> {
    let mut parcels: Vec<Parcel> = Vec::new();
    let mut bytes = 0;
    for route in routes {
        let size = route.content.payload_json.len();
        match parcels.last_mut() {
            Some(last) if last.routes.len() < PARCEL_ROUTES && bytes + size <= PARCEL_BYTES => {
                bytes += size;
                last.routes.push(route);
            }
            _ => {
                bytes = size;
                parcels.push(Parcel { routes: vec![route], read_at });
            }
        }
    }
    parcels
}
