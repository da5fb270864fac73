//! The plan of one simulation: replicas, intents, faults and operations. A seed determines it.

use std::fmt;
use std::time::Duration;

use domain::route::Channel;

use crate::dice::Dice;
use crate::faults::{DirectoryFault, Fault, FaultKind, PostgresFault, RedisFault, ReplicaFault};

/// The time before the first fault, in which the streams get their first entries.
const FAULTS_BEGIN: Duration = Duration::from_secs(8);
/// The time in which faults begin.
const FAULTS_LAST: Duration = Duration::from_secs(40);
/// The time after the last fault in which clients reconnect and repeat their requests.
const RECONNECT: Duration = Duration::from_secs(3);
/// The time between faults of both stores that count as overlapping.
const OVERLAP: Duration = Duration::from_secs(3);
/// The most faults of one plan.
const MAX_FAULTS: u64 = 5;
/// The most operations that a plan draws.
const MAX_OPERATIONS: u64 = 3;
/// The time before and after a fault begins in which operations are beside it.
const BESIDE: Duration = Duration::from_secs(3);
/// The most replicas.
const MAX_REPLICAS: u64 = 4;

/// The plan of one simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The seed that determines everything that the plan does not name: delays, jitter, retries.
    pub seed: u64,
    /// The error of the clock of each replica at the beginning, in milliseconds.
    pub replicas: Vec<i64>,
    /// The intents, in the order of their times.
    pub intents: Vec<PlannedIntent>,
    /// The faults, in the order of their times.
    pub faults: Vec<Fault>,
    /// The operations of operators.
    pub operations: Vec<PlannedOperation>,
}

/// An operation that an operator begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedOperation {
    /// The time of its first request.
    pub at: Duration,
    /// The operation.
    pub kind: Operation,
}

/// An operation of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum Operation {
    /// The routes of a channel are held for this time, and then released.
    Hold { channel: Channel, time: Duration },
    /// The live routes of a channel are cancelled.
    Cancel { channel: Channel },
    /// All dead letters are replayed.
    Replay,
    /// The client event of the first recipient of the intent with this number is sent again.
    Resend { intent: usize },
}

impl Operation {
    /// The time until the operation is complete, if no store fails.
    fn time(self) -> Duration {
        match self {
            Self::Hold { time, .. } => time,
            Self::Cancel { .. } | Self::Replay | Self::Resend { .. } => Duration::ZERO,
        }
    }
}

/// An intent that a producer sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedIntent {
    /// The time of its first request.
    pub at: Duration,
    /// The number of the intent, which is also its key.
    pub number: usize,
    /// The way in.
    pub way: Way,
    /// The number of its recipients.
    pub recipients: u64,
    /// True if its payload breaks a rule.
    pub is_malformed: bool,
    /// True if the producer sends it a second time, although the first request succeeded.
    pub is_repeated: bool,
}

/// A way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// An entry of the intents stream.
    Stream,
    /// The HTTP API.
    Http,
    /// A row of an outbox, which a relay moves to the stream.
    Outbox,
}

impl Plan {
    /// The plan of this seed.
    pub fn of(seed: u64) -> Self {
        let dice = Dice::new(seed, "plan");
        let replicas = dice.between(1, MAX_REPLICAS);
        let skew = |_| match dice.between(0, 3) {
            0 => 0,
            1 => dice.signed_ms(3_000),
            _ => dice.signed_ms(20_000),
        };
        let replicas: Vec<i64> = (0..replicas).map(skew).collect();
        let mut faults = Vec::new();
        // In a third of all plans, faults of both stores overlap.
        if dice.between(0, 2) == 0 {
            let at = dice.millis(FAULTS_BEGIN.as_millis() as u64, FAULTS_LAST.as_millis() as u64);
            let apart = dice.millis(0, OVERLAP.as_millis() as u64);
            let (first, second) = match dice.between(0, 1) {
                0 => (postgres_fault(&dice), redis_fault(&dice)),
                _ => (redis_fault(&dice), postgres_fault(&dice)),
            };
            faults.extend([Fault { at, kind: first }, Fault { at: at + apart, kind: second }]);
        }
        for _ in 0..dice.between(1, MAX_FAULTS) {
            let at = dice.millis(FAULTS_BEGIN.as_millis() as u64, FAULTS_LAST.as_millis() as u64);
            let kind = match dice.between(0, 9) {
                0..=2 => postgres_fault(&dice),
                3..=5 => redis_fault(&dice),
                6 if dice.permille(400) => {
                    FaultKind::Directory(DirectoryFault::Down { time: dice.millis(100, 5_000) })
                }
                6 => FaultKind::Directory(DirectoryFault::LacksUsers { time: dice.millis(1_000, 10_000) }),
                _ => replica_fault(&dice, replicas.len()),
            };
            faults.push(Fault { at, kind });
        }
        faults.sort_by_key(|fault| fault.at);
        let intents = intents(&dice);
        let operations = operations(&Dice::new(seed, "operations"), &faults, intents.len());
        Self { seed, replicas, intents, faults, operations }
    }

    /// The time at which every fault has ended, and every intent was sent.
    pub(crate) fn calm_begins(&self) -> Duration {
        let faults = self.faults.iter().map(|fault| fault.at + fault.kind.time());
        let intents = self.intents.iter().map(|intent| intent.at);
        let operations = self.operations.iter().map(|operation| operation.at + operation.kind.time());
        faults.chain(intents).chain(operations).max().unwrap_or_default() + RECONNECT
    }

    /// True if PostgreSQL loses records that it had committed.
    pub(crate) fn loses_records(&self) -> bool {
        let failover =
            |fault: &Fault| matches!(fault.kind, FaultKind::Postgres(PostgresFault::Failover { .. }));
        self.faults.iter().any(failover)
    }

    /// The time by which Redis' clock is set forward and back in all.
    pub(crate) fn redis_clock_steps(&self) -> Duration {
        let steps = self.faults.iter().map(|fault| match fault.kind {
            FaultKind::Redis(RedisFault::Clock { by_ms, .. }) => by_ms.unsigned_abs(),
            _ => 0,
        });
        Duration::from_millis(steps.sum())
    }

    /// The time for which Redis is out of reach at most: outages may follow each other.
    pub(crate) fn longest_redis_outage(&self) -> Duration {
        let outages = self.faults.iter().map(|fault| match fault.kind {
            FaultKind::Redis(
                RedisFault::Full { .. } | RedisFault::Refuses { .. } | RedisFault::Clock { .. },
            ) => Duration::ZERO,
            FaultKind::Redis(_) => fault.kind.time(),
            _ => Duration::ZERO,
        });
        outages.sum()
    }

    /// The longest time in which no replica runs.
    pub(crate) fn longest_without_replicas(&self) -> Duration {
        let is_down = |replica: usize, at: Duration| {
            self.faults.iter().any(|fault| {
                let is_of_replica = matches!(fault.kind, FaultKind::Replica(of, kind)
                    if of == replica && !matches!(kind, ReplicaFault::Clock { .. }));
                is_of_replica && fault.at <= at && at < fault.at + fault.kind.time()
            })
        };
        let (mut at, mut since, mut longest) = (Duration::ZERO, None, Duration::ZERO);
        while at <= self.calm_begins() {
            match (0..self.replicas.len()).all(|replica| is_down(replica, at)) {
                true => longest = longest.max(at - *since.get_or_insert(at)),
                false => since = None,
            }
            at += Duration::from_millis(100);
        }
        longest
    }

    /// True if the streams are compared, which is repeated a minute later.
    pub(crate) fn replaces_redis(&self) -> bool {
        let replaces = |fault: &Fault| match fault.kind {
            FaultKind::Redis(fault) => {
                matches!(
                    fault,
                    RedisFault::Restart { .. } | RedisFault::Crash { .. } | RedisFault::Failover { .. }
                )
            }
            _ => false,
        };
        self.faults.iter().any(replaces)
    }

    /// True if routes are cancelled.
    pub(crate) fn cancels(&self) -> bool {
        self.operations.iter().any(|operation| matches!(operation.kind, Operation::Cancel { .. }))
    }

    /// True if Redis loses what it had acknowledged.
    pub(crate) fn loses_entries(&self) -> bool {
        let loses = |fault: &Fault| {
            matches!(fault.kind, FaultKind::Redis(RedisFault::Crash { .. } | RedisFault::Failover { .. }))
        };
        self.faults.iter().any(loses)
    }

    /// True if attempts fail because of a fault, which count.
    pub(crate) fn fails_attempts(&self) -> bool {
        let refuses = |fault: &Fault| matches!(fault.kind, FaultKind::Redis(RedisFault::Refuses { .. }));
        self.faults.iter().any(refuses)
    }

    /// True if a fault of PostgreSQL and one of Redis overlap, or follow each other within three seconds.
    pub fn has_overlapping_stores(&self) -> bool {
        let of_postgres = self.faults.iter().filter(|fault| matches!(fault.kind, FaultKind::Postgres(_)));
        let overlap = |one: &Fault, other: &Fault| {
            one.at <= other.at + other.kind.time() + OVERLAP && other.at <= one.at + one.kind.time() + OVERLAP
        };
        let mut pairs = of_postgres.flat_map(|one| self.faults.iter().map(move |other| (one, other)));
        pairs.any(|(one, other)| matches!(other.kind, FaultKind::Redis(_)) && overlap(one, other))
    }

    /// The kinds of the faults with their times, one on each line.
    pub fn describe(&self) -> String {
        let faults = self.faults.iter().map(|fault| format!("  {fault}\n"));
        let operations = self.operations.iter().map(|operation| format!("  {operation}\n"));
        let replicas = self.replicas.len();
        format!(
            "seed {}: {replicas} replicas with clocks {:?} ms, {} intents\n{}",
            self.seed,
            self.replicas,
            self.intents.len(),
            faults.chain(operations).collect::<String>()
        )
    }
}

impl fmt::Display for PlannedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} ms an operator: {:?}", self.at.as_millis(), self.kind)
    }
}

/// Operations in every second plan, mostly beside a fault. No channel is held twice, and no intent is sent
/// again twice.
fn operations(dice: &Dice, faults: &[Fault], intents: usize) -> Vec<PlannedOperation> {
    let mut operations: Vec<PlannedOperation> = Vec::new();
    if dice.permille(500) {
        return operations;
    }
    for _ in 0..dice.between(1, MAX_OPERATIONS) {
        let beside = dice.one(faults).filter(|_| dice.permille(700));
        let at = match beside {
            Some(fault) => fault.at.saturating_sub(BESIDE) + dice.millis(0, (BESIDE * 2).as_millis() as u64),
            None => dice.millis(FAULTS_BEGIN.as_millis() as u64, FAULTS_LAST.as_millis() as u64),
        };
        let channel = if dice.permille(500) { Channel::Push } else { Channel::Email };
        let kind = match dice.between(0, 9) {
            0..=3 => Operation::Hold { channel, time: dice.millis(500, 15_000) },
            4..=6 => Operation::Cancel { channel },
            7 => Operation::Replay,
            _ => Operation::Resend { intent: usize::try_from(dice.between(0, intents as u64)).unwrap_or(0) },
        };
        let is_repeated = operations.iter().any(|earlier| match (earlier.kind, kind) {
            (Operation::Hold { channel: one, .. }, Operation::Hold { channel: other, .. }) => one == other,
            (Operation::Resend { intent: one }, Operation::Resend { intent: other }) => one == other,
            _ => false,
        });
        if let (Operation::Hold { .. }, true) = (kind, dice.permille(500)) {
            // What is held can be cancelled.
            operations.push(PlannedOperation { at: at + BESIDE, kind: Operation::Cancel { channel } });
        }
        if !is_repeated {
            operations.push(PlannedOperation { at, kind });
        }
    }
    operations.sort_by_key(|operation| operation.at);
    operations
}

/// A few intents before the first fault, and the others in bursts beside the faults.
fn intents(dice: &Dice) -> Vec<PlannedIntent> {
    let mut intents = Vec::new();
    let mut at = Duration::from_millis(500);
    while at < FAULTS_LAST + Duration::from_secs(8) {
        let burst = if dice.permille(200) { dice.between(2, 8) } else { 1 };
        for _ in 0..burst {
            let number = intents.len();
            let way = match dice.between(0, 5) {
                // The streams get their first entries before anything fails.
                _ if number < 4 => Way::Stream,
                0 | 1 => Way::Http,
                2 => Way::Outbox,
                _ => Way::Stream,
            };
            let is_malformed = way == Way::Stream && number >= 4 && dice.permille(60);
            intents.push(PlannedIntent {
                at,
                number,
                way,
                recipients: dice.between(1, 2),
                is_malformed,
                is_repeated: dice.permille(100),
            });
        }
        at += dice.millis(100, 3_500);
    }
    intents
}

/// The duration of an outage: mostly short, rarely longer than the markers of the publishers.
fn down(dice: &Dice) -> Duration {
    match dice.between(0, 9) {
        0..=5 => dice.millis(20, 2_500),
        6..=8 => dice.millis(2_500, 12_000),
        _ => dice.millis(12_000, 50_000),
    }
}

/// The error that a clock gets when it is set: mostly seconds, rarely an hour.
fn clock_step(dice: &Dice) -> i64 {
    if dice.permille(800) { dice.signed_ms(15_000) } else { dice.signed_ms(3_600_000) }
}

/// The time from which a server lacks what it acknowledged.
fn lost(dice: &Dice) -> Duration {
    dice.millis(10, 2_500)
}

fn postgres_fault(dice: &Dice) -> FaultKind {
    let time = down(dice);
    FaultKind::Postgres(match dice.between(0, 10) {
        0 | 1 => PostgresFault::Restart { down: time },
        2 | 3 => PostgresFault::Failover { down: time, lost: lost(dice) },
        4 => PostgresFault::Hang { time },
        5 => PostgresFault::Slow { time, by: dice.millis(20, 4_000) },
        6 | 7 => PostgresFault::LosesResponses { time, share: dice.between(50, 700) },
        8 => PostgresFault::Cancels { time, share: dice.between(50, 600) },
        9 => PostgresFault::Locks { time },
        _ => PostgresFault::Clock { by_ms: clock_step(dice), time },
    })
}

fn redis_fault(dice: &Dice) -> FaultKind {
    let time = down(dice);
    FaultKind::Redis(match dice.between(0, 11) {
        0 | 1 => RedisFault::Restart { down: time },
        2 | 3 => RedisFault::Crash { down: time, lost: lost(dice) },
        4 | 5 => RedisFault::Failover { down: time, lost: lost(dice) },
        6 => RedisFault::Hang { time },
        7 => RedisFault::Slow { time, by: dice.millis(20, 900) },
        8 | 9 => RedisFault::LosesResponses { time, share: dice.between(50, 700) },
        10 => match dice.between(0, 2) {
            0 => RedisFault::Full { time },
            1 => RedisFault::Refuses { channel: Channel::Push, time },
            _ => RedisFault::Refuses { channel: Channel::Email, time },
        },
        _ => RedisFault::Clock { by_ms: dice.signed_ms(15_000), time },
    })
}

fn replica_fault(dice: &Dice, replicas: usize) -> FaultKind {
    let replica = usize::try_from(dice.between(0, replicas as u64 - 1)).unwrap_or(0);
    let fault = match dice.between(0, 7) {
        0..=3 => ReplicaFault::Kill { down: down(dice) },
        4 => ReplicaFault::Stop { down: down(dice) },
        5 | 6 => ReplicaFault::Pause { time: down(dice) },
        _ => ReplicaFault::Clock { by_ms: dice.signed_ms(15_000), time: down(dice) },
    };
    FaultKind::Replica(replica, fault)
}
