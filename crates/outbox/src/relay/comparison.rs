//! Comparison of DELIVERED events with the publisher's entries after the publisher's server was replaced.
//!
//! An acknowledgement is only valid on the server that gave it: the next server may lack the newest events. A
//! record on the server itself contains the time until which it has every event, and a server restored to an
//! older state has an older record. So no event is claimed for a server before a comparison with it has begun
//! and its beginning is recorded. Lost events become PENDING again.
//!
//! An event may be marked after the comparison looked for it, so there are several rounds. The rounds end
//! after the first one that meets two conditions: when it began, every claim from before the comparison had
//! ended; and when it ended, no lost event was locked by another transaction.
//!
//! | crash after | remaining state | next step |
//! |---|---|---|
//! | another server took over | the record of an earlier server, or none | Each relay begins a comparison. |
//! | the beginning was recorded | its time | The next relay compares from that time on. |
//! | events made PENDING | PENDING events, and the time | Published; the next comparison skips them. |
//! | a round | the time before which no lost event is left | The next relay compares from that time on. |
//! | the last round | the record of a complete comparison | No comparison until another server takes over. |

mod begin;
mod extent;
mod record;
mod round;
mod tally;

use std::time::Duration;

use pg::RawTimestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::extent::{Extent, settled_by_others};
use self::round::{Round, Step};
use self::tally::HeldEvents;
use super::engine::Relay;
use super::loop_state::LoopState;
use super::pass::Outage;
use crate::{
    EventTypes, NewestCursor, Progress, Publisher, RecordWrite, RelayObserver, Server, ServerNumber,
    ServerRecord, Storage,
};

/// The number of events listed together.
const PAGE_EVENTS: u32 = 1_000;
/// The time that claims wait for the first round, so that lost events are published before new ones.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(10);
/// The pause between two rounds.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The pause before a failed step is repeated while events are claimed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The largest number of rounds, however long a claim or a lost event is held.
const MAX_ROUNDS: u32 = 30;
/// The pause between two steps while events are also claimed.
const PAGE_PAUSE: Duration = Duration::from_millis(10);

/// A relay's state of comparisons.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    /// The identity of the outbox, once read.
    outbox: Option<String>,
    /// The unfinished comparison.
    current: Option<Comparison>,
    /// The position at which the search for the newest event continues.
    search: Option<NewestCursor>,
    /// The total number of rounds begun.
    rounds: u64,
    /// The time at which this relay wrote its last record of a complete comparison.
    recorded_at: Option<Instant>,
    /// The newest record of a complete comparison that this relay has read or written: its server and the
    /// time that it covers.
    newest_record: Option<(ServerNumber, RawTimestamp)>,
}

impl Comparing {
    /// Returns the time until an unfinished comparison continues.
    pub(super) fn continues_in(&self) -> Option<Duration> {
        self.current.as_ref().map(Comparison::continues_in)
    }
}

/// An unfinished comparison.
#[derive(Debug)]
struct Comparison {
    server: ServerNumber,
    id: u64,
    /// The time at which it began.
    begun: RawTimestamp,
    /// The events that the round compares.
    extent: Extent,
    /// The time in the record, as last seen by this relay.
    recorded: RawTimestamp,
    /// True if no event was DELIVERED when it began; then only an earlier claim can have lost events.
    had_nothing: bool,
    round: Option<Round>,
    /// The number of complete rounds.
    rounds: u32,
    held: HeldEvents,
    limit: u32,
    /// The time of the next step.
    continues_at: Instant,
    claims_wait_until: Instant,
}

impl Comparison {
    fn continues_in(&self) -> Duration {
        self.continues_at.saturating_duration_since(Instant::now())
    }

    fn claims_wait(&self) -> bool {
        self.rounds == 0 && Instant::now() < self.claims_wait_until
    }

    /// Returns the time in the server's record, if the record belongs to this comparison.
    fn recorded_on(&self, server: &Server, types: &EventTypes) -> Option<RawTimestamp> {
        match server.record(types)? {
            &ServerRecord { is_own: true, progress: Progress::Unfinished { since, comparison }, .. }
                if self.server == server.id && self.id == comparison =>
            {
                Some(since)
            }
            _ => None,
        }
    }

    /// Adopts the time in the record. An earlier time was written by a relay that has more to compare: the
    /// rounds then restart.
    fn see(&mut self, recorded: RawTimestamp) {
        if recorded < self.recorded {
            self.extent.extend_to(recorded);
            (self.round, self.rounds) = (None, 0);
        }
        self.recorded = recorded;
    }
}

/// The action that a server and its record require.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    /// No action: the server was compared.
    Settled,
    /// Continue this relay's comparison, from this time on.
    Continue(RawTimestamp),
    /// Begin a comparison that this relay has not begun.
    Begin {
        /// True if the server was restored in place.
        restored: bool,
    },
}

impl Comparing {
    fn demand(&self, server: &Server, types: &EventTypes) -> Demand {
        let own = server.record(types).filter(|record| record.is_own);
        match own.map(|record| record.progress) {
            Some(Progress::Settled(until)) if self.is_older(server.id, until) => {
                Demand::Begin { restored: true }
            }
            Some(Progress::Settled(_)) => Demand::Settled,
            Some(Progress::Unfinished { .. }) => {
                let recorded = self.current.as_ref().and_then(|current| current.recorded_on(server, types));
                recorded.map_or(Demand::Begin { restored: false }, Demand::Continue)
            }
            None => match settled_by_others(server, types) {
                Some(until) if self.is_older(server.id, until) => Demand::Begin { restored: true },
                Some(_) => Demand::Settled,
                None => Demand::Begin { restored: false },
            },
        }
    }

    /// True if the record of this server is older than one that this relay has seen: the server was restored
    /// in place.
    fn is_older(&self, server: ServerNumber, until: RawTimestamp) -> bool {
        self.newest_record.is_some_and(|(seen_on, newest)| seen_on == server && until < newest)
    }

    /// Remembers the record that all is settled.
    fn see_record(&mut self, server: &Server, types: &EventTypes) {
        let own = server.record(types).filter(|record| record.is_own);
        if let Some(&ServerRecord { progress: Progress::Settled(until), .. }) = own {
            self.newest_record = Some((server.id, until));
        }
    }
}

impl<S: Storage, P: Publisher, O: RelayObserver> Relay<S, P, O> {
    /// Begins a comparison if the server was not compared. Continues an unfinished one: to the end of its
    /// first round while claims wait for it, and then by one step per pass. Refreshes the record of a server
    /// that was compared.
    pub(super) async fn compare(&self, work: &mut LoopState, stop: &CancellationToken) -> Result<(), Outage> {
        if self.settings.republish_window.is_zero() {
            return Ok(());
        }
        while !stop.is_cancelled() {
            let (outbox, types) = (self.outbox_name(work).await?, &self.compared);
            let server = self.publisher.server(&outbox).await?;
            let demand = work.comparing.demand(&server, types);
            if work.comparing.recorded_at.is_none() && work.comparing.current.is_none() {
                let look = stop.run_until_cancelled(self.lacks_marker(&server));
                let Some(lost) = look.await else { break };
                if let Some(lost) = lost? {
                    self.begin(work, &outbox, &server, Some(lost), stop).await?;
                    continue;
                }
            }
            match demand {
                Demand::Begin { restored } => {
                    let lost = if restored { self.of_markers(&server).await? } else { None };
                    self.begin(work, &outbox, &server, lost, stop).await?;
                }
                Demand::Settled => {
                    // Another relay may have ended the comparison.
                    self.report_partly(work.comparing.current.take());
                    work.comparing.see_record(&server, types);
                    if self.refresh(work, &outbox, &server).await? == RecordWrite::Written {
                        break;
                    }
                }
                Demand::Continue(recorded) => {
                    let Some(comparison) = &mut work.comparing.current else { continue };
                    comparison.see(recorded);
                    if comparison.continues_in() > Duration::ZERO {
                        break;
                    }
                    // A stop ends the step at any point: the next relay compares again from the recorded
                    // time.
                    let step = self.step(comparison, &mut work.comparing.rounds, &outbox);
                    match stop.run_until_cancelled(step).await {
                        Some(Ok(Step::Ended(until))) => self.ended(work, &server, until),
                        Some(Ok(Step::More)) if !comparison.claims_wait() => {
                            let after_pause = Instant::now() + PAGE_PAUSE;
                            comparison.continues_at = comparison.continues_at.max(after_pause);
                        }
                        // Claimable events do not wait for events that cannot be compared.
                        Some(Err(outage)) if !comparison.claims_wait() => {
                            comparison.continues_at = Instant::now() + RETRY_INTERVAL;
                            tracing::warn!(
                                relay = self.settings.relay_id.as_str(),
                                error = ambient::error_chain(&outage),
                                "delivered outbox events cannot be compared; trying again"
                            );
                        }
                        Some(step) => drop(step?),
                        None => {}
                    }
                }
            }
        }
        Ok(())
    }

    async fn outbox_name(&self, work: &mut LoopState) -> Result<String, Outage> {
        if let Some(outbox) = &work.comparing.outbox {
            return Ok(outbox.clone());
        }
        let name = self.storage.identity().await?;
        Ok(work.comparing.outbox.insert(name).clone())
    }
}

fn earlier(time: RawTimestamp, by: Duration) -> RawTimestamp {
    let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
    RawTimestamp::from_server_micros(time.as_server_micros().saturating_sub(by))
}

fn shown(time: RawTimestamp) -> String {
    time.timestamp().map_or_else(|| "beyond all times".to_owned(), |time| time.to_string())
}
