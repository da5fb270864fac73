//! Errors of a port, and the result of a conditional write.

pub use ambient::error_chain;

/// An error of a port.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The dependency cannot be reached, is too slow, or cannot serve at present. Try again later.
    #[error("could not {operation}")]
    Unavailable {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
    /// The dependency answers but took too long for this input; the call may or may not have been carried
    /// out. A smaller input may succeed.
    #[error("could not {operation} in time")]
    TimedOut {
        /// What was being done.
        operation: &'static str,
        /// Which deadline passed.
        #[source]
        source: BoxError,
    },
    /// Another transaction holds a lock on something that the call needs. Nothing was carried out; try again
    /// later.
    #[error("could not {operation}: another transaction holds a lock")]
    Locked {
        /// What was being done.
        operation: &'static str,
        /// The error of the dependency.
        #[source]
        source: BoxError,
    },
    /// The dependency answers and refuses the input: retrying the same input fails.
    #[error("{operation} was refused")]
    Refused {
        /// What was being done.
        operation: &'static str,
        /// Why it was refused.
        #[source]
        source: BoxError,
    },
    /// A row or key has a value that this service never writes.
    #[error("{place} of {key} is corrupt: {problem}")]
    Corrupt {
        /// `table.column`, or the kind of key.
        place: &'static str,
        /// Which row.
        key: String,
        /// What is wrong with it.
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
