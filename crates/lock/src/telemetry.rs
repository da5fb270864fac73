//! What an observer gets of each operation: its kind, its result, and hashes instead of names.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::LockError;

/// What is done to a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// One attempt.
    Acquire,
    /// By the caller or by a guard that was dropped.
    Release,
    /// By the caller or by a guard's heartbeat.
    Extend,
    /// By key or by lock id.
    Lookup,
    /// The deletion of expired rows.
    Purge,
    /// The raising of a fence counter.
    RaiseFence,
    /// Work under a lock.
    Work,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::Lookup => "lookup",
            Self::Purge => "purge",
            Self::RaiseFence => "raise fence",
            Self::Work => "work under a lock",
        })
    }
}

/// Why an operation had no effect, though nothing went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Another client holds the lock.
    Locked,
    /// The lease ended too long ago.
    Expired,
    /// No row: never acquired, released, or taken over.
    NotFound,
}

/// How an operation ended.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// It had its effect.
    Done,
    /// It had none, for a reason that was to be expected.
    Refused(Reason),
    /// It failed.
    Failed(&'a LockError),
}

/// One operation that has ended.
#[derive(Debug)]
pub struct Event<'a> {
    /// What was done.
    pub operation: Operation,
    /// How it ended.
    pub outcome: Outcome<'a>,
    /// [`crate::hash_key`] of the key, where the operation was given one.
    pub key_hash: Option<String>,
    /// [`crate::hash_key`] of the lock id, where there is one.
    pub lock_id_hash: Option<String>,
}

/// Observes every operation, on the task that performs it, so it must return at once.
///
/// A panic in it is caught; nothing it does changes the operation.
pub trait Observer: Send + Sync {
    /// One operation has ended.
    fn observe(&self, event: &Event<'_>);
}

/// An observer, or none: then events are not even made.
#[derive(Clone, Default)]
pub(crate) struct Telemetry(pub(crate) Option<Arc<dyn Observer>>);

impl Telemetry {
    pub(crate) fn report<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.0 {
            // A panic has been written to standard error by the panic hook; there is nothing to add.
            drop(catch_unwind(AssertUnwindSafe(|| observer.observe(&event()))));
        }
    }
}
