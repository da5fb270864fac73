//! Observation of operations: their kind, their outcome, and hashes instead of names.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::LockError;

/// The kind of an operation on a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOperation {
    /// One attempt to acquire.
    Acquire,
    /// A release, by the caller or by a guard that was dropped.
    Release,
    /// An extension, by the caller or by a guard's heartbeat.
    Extend,
    /// A lookup, by key or by lock id.
    Lookup,
    /// The deletion of expired rows.
    Purge,
    /// The raising of a fence counter.
    RaiseFence,
    /// Work under a lock.
    Work,
}

impl fmt::Display for LockOperation {
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

/// The reason that an operation had no effect without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Another client holds the lock.
    Locked,
    /// The lease ended too long ago.
    Expired,
    /// There is no row: the lock was never acquired, was released, or was taken over.
    NotFound,
}

/// The outcome of an operation.
#[derive(Debug)]
pub enum LockOutcome<'a> {
    /// The operation had its effect.
    Done,
    /// The operation had no effect, for an expected reason.
    Refused(Reason),
    /// The operation failed.
    Failed(&'a LockError),
}

/// A finished operation.
#[derive(Debug)]
pub struct LockEvent<'a> {
    /// The kind of operation.
    pub operation: LockOperation,
    /// Its outcome.
    pub outcome: LockOutcome<'a>,
    /// [`crate::hash_key`] of the key, if the operation has one.
    pub key_hash: Option<String>,
    /// [`crate::hash_key`] of the lock id, if there is one.
    pub lock_id_hash: Option<String>,
}

/// Observes every operation, on the task that performs it, so it must return at once.
///
/// A panic in it is caught; an observer cannot change the operation.
pub trait LockObserver: Send + Sync {
    /// Called when an operation has ended.
    fn observe(&self, event: &LockEvent<'_>);
}

/// An observer, or none: without one, events are not created.
#[derive(Clone, Default)]
pub(crate) struct EventSink(pub(crate) Option<Arc<dyn LockObserver>>);

impl EventSink {
    pub(crate) fn report<'a>(&self, event: impl FnOnce() -> LockEvent<'a>) {
        if let Some(observer) = &self.0 {
            // A panic has been written to standard error by the panic hook; there is nothing to add.
            drop(catch_unwind(AssertUnwindSafe(|| observer.observe(&event()))));
        }
    }
}
