//! Errors of a port, and the result of a conditional write.

pub use ambient::error_chain;

/// An error of a port.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The dependency cannot be reached, is too slow, or cannot serve at present. Retry later.
    #[error("could not {operation}")]
    Unavailable {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The dependency responds, but took too long for this input, or a function of the database failed with
    /// it. The call may or may not have been carried out. A smaller input may succeed.
    #[error("could not {operation}")]
    TimedOut {
        /// The operation that failed.
        operation: &'static str,
        /// The deadline that passed.
        #[source]
        source: BoxError,
    },
    /// Another transaction holds a lock on a row that the call needs. Nothing was carried out. Retry later.
    #[error("could not {operation}: another transaction holds a lock")]
    Locked {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the dependency.
        #[source]
        source: BoxError,
    },
    /// The dependency responds and rejects the input: retrying the same input fails.
    #[error("{operation} was refused")]
    Refused {
        /// The operation that failed.
        operation: &'static str,
        /// The reason for the rejection.
        #[source]
        source: BoxError,
    },
    /// A row or key has a value that this service never writes.
    #[error("{place} of {key} is corrupt: {problem}")]
    Corrupt {
        /// `table.column`, or the kind of key.
        place: &'static str,
        /// The row or key.
        key: String,
        /// The problem with the value.
        problem: String,
    },
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a conditional write.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Written, or already exactly as intended.
    Applied,
    /// Another writer was first; nothing was written.
    Conflict,
}
