//! A case: a process is killed at a boundary, with a fault of a store, perhaps a second one during the
//! recovery.
//!
//! Its number determines the boundary, the fault, the second boundary and the times. What happens between two
//! processes at the same time, it does not determine: the servers and the processes are real.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, select_all};
use harness::world::{PUSH, key};
use harness::{Trigger, wait_for};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

use crate::boundary::{Boundary, Protocol, Way, boundaries};
use crate::check::Expected;
use crate::clients::{Acknowledger, BY_HTTP, Clients, Stage};
use crate::fault::{FAULTS, Fault, PostgresFault, RedisFault};
use crate::site::{BOUND, Site};

/// The time within which a second boundary is reached, or is not.
const SECOND_BOUND: Duration = Duration::from_secs(8);
/// The time within which everything has settled after the last fault: an outage, a term, leases and retries.
const SETTLE_BOUND: Duration = Duration::from_secs(90);

/// The pause between two looks at the promises.
const PAUSE: Duration = Duration::from_millis(200);

/// A case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The number, which determines the rest.
    pub number: u64,
    pub(crate) boundary: Boundary,
    pub(crate) fault: Fault,
    second: Option<Boundary>,
    outage: Duration,
    /// True if the fault begins before the kill.
    fault_first: bool,
}

impl Case {
    /// Returns the case of a number. Each boundary meets each fault once with a single kill and once with two
    /// kills, in an order that has all of them early.
    pub fn of(number: u64) -> Self {
        let boundaries = boundaries();
        let cells = (boundaries.len() * FAULTS.len()) as u64;
        // Coprime to the number of cells, so that every cell comes once.
        let cell = (number / 2 * 1_009) % cells;
        let at = |index: u64| usize::try_from(index).unwrap_or_default();
        let boundary = boundaries[at(cell % boundaries.len() as u64)];
        let mut dice = StdRng::seed_from_u64(number);
        let may_follow = |other: &&Boundary| {
            other.protocol == boundary.protocol
                || matches!(
                    other.protocol,
                    Protocol::Accept | Protocol::Publish | Protocol::Complete | Protocol::Elect
                ) && boundary.protocol != Protocol::Relay
        };
        let following: Vec<&Boundary> = boundaries.iter().filter(may_follow).collect();
        let second = following.choose(&mut dice).map(|second| **second);
        Self {
            number,
            boundary,
            fault: FAULTS[at(cell / boundaries.len() as u64)],
            second: second.filter(|_| number % 2 == 1),
            outage: Duration::from_millis(dice.random_range(300..2_500)),
            fault_first: dice.random(),
        }
    }

    /// The settings of the replicas that differ from those of other tests.
    pub(crate) fn settings(&self) -> Vec<(&'static str, &'static str)> {
        let of_protocol = match self.boundary.protocol {
            Protocol::Retain => Some(("NOTIFICATION_CLEANUP_INTERVAL", "1s")),
            Protocol::Replay => Some(("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1")),
            _ => None,
        };
        let of_api =
            [("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "12s"), ("NOTIFICATION_API_REQUEST_TIMEOUT", "2s")];
        of_api.into_iter().chain(of_protocol).collect()
    }

    /// Runs the case, on a [`tokio::task::LocalSet`]. Returns the number of processes that were killed.
    /// Panics if a promise is broken, or if something does not happen in time.
    pub async fn run(&self) -> u32 {
        let mut site = Site::new(self).await;
        let mut clients = Clients::new(&site);
        self.warm_up(&mut site, &mut clients).await;

        let armed = site.arm(&self.boundary);
        site.start_killed();
        let work = spawn_local(clients.clone().work(self.boundary.protocol, 0));
        if self.boundary.way == Way::Campaign {
            let leader = site.leader().await;
            site.kill(leader).await;
            site.start(leader);
        }
        let index = first(armed).await;
        site.disarm();
        if self.fault_first {
            self.fault.begin(&mut site).await;
            site.kill(index).await;
        } else {
            site.kill(index).await;
            self.fault.begin(&mut site).await;
        }
        clients.set_stage(Stage::Kept);

        let is_killed_again = self.recover(&mut site, index).await;
        self.settle(&site, &clients, work).await;
        site.close().await;
        1 + u32::from(is_killed_again)
    }

    /// Starts the killed process again, kills the one that reaches the second boundary, and ends the fault.
    /// Returns true if one reached it.
    async fn recover(&self, site: &mut Site, killed: usize) -> bool {
        let ends_at = Instant::now() + self.outage;
        let mut second = self.second.map(|second| first(site.arm(&second)).boxed_local());
        site.start(killed);
        kill_again(site, &mut second, self.outage).await;
        sleep_until(ends_at).await;
        self.fault.end(site).await;
        kill_again(site, &mut second, SECOND_BOUND).await;
        site.disarm();
        site.ready().await;
        self.second.is_some() && second.is_none()
    }

    /// Lets the clients finish, and checks the promises.
    async fn settle(&self, site: &Site, clients: &Clients, work: JoinHandle<()>) {
        work.await.expect("the clients get what they ask for");
        clients.send(200..202).await;
        let lost = match self.fault {
            Fault::Postgres(PostgresFault::LostTail) => Some(Acknowledger::Postgres),
            Fault::Redis(RedisFault::LostTail) => Some(Acknowledger::Redis),
            _ => None,
        };
        let postgres_lost = lost == Some(Acknowledger::Postgres);
        if postgres_lost
            && matches!(self.boundary.protocol, Protocol::Replay | Protocol::Hold | Protocol::Resend)
        {
            // Operators see that their changes are gone.
            clients.clone().work(self.boundary.protocol, 1).await;
        }
        let resent = match self.boundary.protocol {
            Protocol::Resend => [0, 1].map(key).into(),
            _ => [].into(),
        };
        let expected = Expected {
            keys: clients.promised(lost),
            resent,
            may_resend_twice: postgres_lost || self.fault == Fault::ReplicaClocks,
            postgres_lost,
        };
        let mut last = Ok(());
        let settling = async {
            loop {
                last = expected.check(&site.world).await;
                if last.is_ok() {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        if timeout(SETTLE_BOUND, settling).await.is_err() {
            panic!("{}", last.err().unwrap_or_default());
        }
        site.world.check_tables().await;
        if !postgres_lost {
            site.world.check_audit().await;
        }
        // What comes late would be there now.
        assert_eq!(expected.check(&site.world).await, Ok(()), "a promise is broken after all was well");
    }

    /// Brings the site to the state in which the clients begin: each stream has entries, each script is in
    /// Redis, and one replica leads.
    async fn warm_up(&self, site: &mut Site, clients: &mut Clients) {
        clients.send(0..2).await;
        site.world.settled(2).await;
        match self.boundary.protocol {
            Protocol::Relay => {
                clients.insert_events([BY_HTTP]).await;
                site.world.settled(3).await;
            }
            Protocol::Replay => self.make_dead_letters(site, clients).await,
            Protocol::Resend => clients.note_time().await,
            _ => {}
        }
        if self.fault.needs_standby() {
            site.add_standby().await;
        }
        if self.fault.needs_replica() {
            site.add_replica().await;
        }
        if self.fault.loses_tail() {
            site.cut_replication().await;
            clients.set_stage(Stage::InLostTail);
        }
        if self.boundary.way == Way::Scan {
            // Accepted without Redis, and left by replicas that are killed: routes wait until a scan finds
            // them.
            site.processes.iter().for_each(|process| process.redis.cut());
            clients.submit(BY_HTTP..BY_HTTP + 2).await;
            for index in 0..site.processes.len() {
                site.kill(index).await;
            }
            site.processes.iter().for_each(|process| process.redis.heal());
        }
    }

    /// Makes dead letters of two client events.
    async fn make_dead_letters(&self, site: &Site, clients: &Clients) {
        let ask = async |words: &[&str]| site.world.redis.ask::<()>(words).await.expect("Redis responds");
        ask(&["RENAME", PUSH, "kept"]).await;
        ask(&["SET", PUSH, "not a stream"]).await;
        clients.send([2]).await;
        wait_for("there are dead letters", BOUND, async || {
            let letters = site.world.number("SELECT count(*) FROM dead_letters").await;
            (letters == 2).then_some(())
        })
        .await;
        ask(&["DEL", PUSH]).await;
        ask(&["RENAME", "kept", PUSH]).await;
        wait_for("the mail is published", BOUND, async || {
            let live =
                site.world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await;
            (live == 0).then_some(())
        })
        .await;
    }
}

/// Waits until a process reaches its boundary, and returns its index.
async fn first(armed: Vec<(usize, Trigger)>) -> usize {
    let reached =
        armed.into_iter().map(|(index, trigger)| trigger.reached(BOUND).map(move |()| index).boxed());
    select_all(reached).await.0
}

/// Kills the process that reaches the second boundary within this time, once.
async fn kill_again(site: &mut Site, second: &mut Option<LocalBoxFuture<'_, usize>>, within: Duration) {
    let Some(reached) = second else { return };
    if let Ok(index) = timeout(within, reached).await {
        site.kill(index).await;
        site.start(index);
        *second = None;
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "case {}: killed at {}; {}", self.number, self.boundary, self.fault)?;
        write!(
            formatter,
            " for {} ms, {}",
            self.outage.as_millis(),
            if self.fault_first { "first" } else { "then" }
        )?;
        match &self.second {
            Some(second) => write!(formatter, "; again at {second}, if it is reached"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_boundary_meets_each_fault_once_with_one_kill_and_once_with_two() {
        let (boundaries, cells) = (boundaries(), boundaries().len() * FAULTS.len());
        for kills in [0, 1] {
            let met: BTreeSet<(usize, usize)> = (0..cells as u64)
                .map(|number| Case::of(2 * number + kills))
                .map(|case| {
                    assert_eq!(case.second.is_some(), kills == 1);
                    let boundary = boundaries.iter().position(|boundary| *boundary == case.boundary);
                    let fault = FAULTS.iter().position(|fault| *fault == case.fault);
                    (boundary.expect("it is listed"), fault.expect("it is listed"))
                })
                .collect();
            assert_eq!(met.len(), cells);
        }
    }
}
