//! The faults of replicas, servers and the user directory.

use std::fmt;
use std::time::Duration;

use domain::route::Channel;

/// A fault and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The time at which it begins.
    pub at: Duration,
    /// The fault.
    pub kind: FaultKind,
}

/// A fault. Times are durations, clocks are set by milliseconds, shares are in a thousand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// A fault of the replica with this number.
    Replica(usize, ReplicaFault),
    /// A fault of PostgreSQL.
    Postgres(PostgresFault),
    /// A fault of Redis.
    Redis(RedisFault),
    /// A fault of the user directory.
    Directory(DirectoryFault),
}

/// A fault of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum ReplicaFault {
    /// It is killed, and started again after this time.
    Kill { down: Duration },
    /// It is stopped in order, and started again.
    Stop { down: Duration },
    /// It neither sends nor receives for this time.
    Pause { time: Duration },
    /// Its clock is wrong for this time.
    Clock { by_ms: i64, time: Duration },
}

/// A fault of PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum PostgresFault {
    /// It restarts with all its data.
    Restart { down: Duration },
    /// It fails over to a standby that lacks the last commits, from this time on.
    Failover { down: Duration, lost: Duration },
    /// It keeps every call.
    Hang { time: Duration },
    /// It takes longer for each call.
    Slow { time: Duration, by: Duration },
    /// Its responses are lost.
    LosesResponses { time: Duration, share: u64 },
    /// It cancels calls for taking too long, before or after they took effect.
    Cancels { time: Duration, share: u64 },
    /// Another transaction locks the live routes.
    Locks { time: Duration },
    /// Its clock is wrong for this time.
    Clock { by_ms: i64, time: Duration },
}

/// A fault of Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum RedisFault {
    /// It restarts with all its data.
    Restart { down: Duration },
    /// It is killed, and comes back as it was this time before.
    Crash { down: Duration, lost: Duration },
    /// It fails over to a replica that lacks the last writes, from this time on.
    Failover { down: Duration, lost: Duration },
    /// It keeps every call.
    Hang { time: Duration },
    /// It takes longer for each call.
    Slow { time: Duration, by: Duration },
    /// Its responses are lost.
    LosesResponses { time: Duration, share: u64 },
    /// It is full.
    Full { time: Duration },
    /// The stream of a channel rejects every append.
    Refuses { channel: Channel, time: Duration },
    /// Its clock is wrong for this time.
    Clock { by_ms: i64, time: Duration },
}

/// A fault of the user directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum DirectoryFault {
    /// It is down.
    Down { time: Duration },
    /// It cannot look up some of the users.
    LacksUsers { time: Duration },
}

impl FaultKind {
    /// The time until the fault has ended.
    pub(crate) fn time(self) -> Duration {
        match self {
            Self::Replica(_, fault) => match fault {
                ReplicaFault::Kill { down: time }
                | ReplicaFault::Stop { down: time }
                | ReplicaFault::Pause { time }
                | ReplicaFault::Clock { time, .. } => time,
            },
            Self::Postgres(fault) => match fault {
                PostgresFault::Restart { down: time }
                | PostgresFault::Failover { down: time, .. }
                | PostgresFault::Hang { time }
                | PostgresFault::Slow { time, .. }
                | PostgresFault::LosesResponses { time, .. }
                | PostgresFault::Cancels { time, .. }
                | PostgresFault::Locks { time }
                | PostgresFault::Clock { time, .. } => time,
            },
            Self::Redis(fault) => match fault {
                RedisFault::Restart { down: time }
                | RedisFault::Crash { down: time, .. }
                | RedisFault::Failover { down: time, .. }
                | RedisFault::Hang { time }
                | RedisFault::Slow { time, .. }
                | RedisFault::LosesResponses { time, .. }
                | RedisFault::Full { time }
                | RedisFault::Refuses { time, .. }
                | RedisFault::Clock { time, .. } => time,
            },
            Self::Directory(DirectoryFault::Down { time } | DirectoryFault::LacksUsers { time }) => time,
        }
    }

    /// The time before the fault at which the data is copied that a server will have after it.
    pub(crate) fn lost(self) -> Option<Duration> {
        match self {
            Self::Postgres(PostgresFault::Failover { lost, .. })
            | Self::Redis(RedisFault::Crash { lost, .. } | RedisFault::Failover { lost, .. }) => Some(lost),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} ms {:?}", self.at.as_millis(), self.kind)
    }
}
