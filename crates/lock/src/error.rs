//! Errors of locks. A lock held by another client is an outcome, not an error.

use std::time::Duration;

use pg::PgError;
use tokio_postgres::error::SqlState;

use crate::telemetry::LockOperation;

/// The error of an operation on a lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// An invalid key, lock id, table name or time; nothing was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// The cancellation token fired, or the runtime is shutting down.
    #[error("{operation} was aborted")]
    Aborted {
        /// The operation that was not started or not awaited.
        operation: LockOperation,
    },
    /// Another client held the lock, or the database failed, for the whole time that the caller was willing
    /// to wait.
    #[error("the lock was not acquired within {waited:?} and {attempts} attempts")]
    AcquisitionTimeout {
        /// The number of attempts.
        attempts: u32,
        /// The time that the caller was willing to wait.
        waited: Duration,
        /// The failure of the last attempt; `None` if another client held the lock.
        #[source]
        last: Option<Box<LockError>>,
    },
    /// The lease ended, or may have, before the work did. The work was dropped where it was.
    #[error("the lock with fence {fence} was lost before the work was done")]
    Lost {
        /// The fence of the lease that was lost.
        fence: u64,
    },
    /// The fence counter has reached its maximum.
    #[error("the fence counter of this key is used up")]
    FencesUsedUp,
    /// The role lacks rights on the tables of the locks.
    #[error("permission denied: the role lacks {0}")]
    NoRights(String),
    /// A row that this crate did not write.
    #[error("the tables contain an impossible {0}")]
    Corrupt(&'static str),
    /// The database is unreachable, or rejected the statement.
    #[error(transparent)]
    Store(#[from] PgError),
}

/// The category of an error, for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorCode {
    /// The database is unavailable, or requests a retry.
    ServiceUnavailable,
    /// The user or the password is unknown to the database, or the user lacks rights on the tables.
    AuthFailed,
    /// The same call will fail again.
    InvalidArgument,
    /// The database is short of connections, memory or disk.
    RateLimited,
    /// The database cut the operation short because it took too long.
    NetworkTimeout,
    /// The lock was not acquired in time.
    AcquisitionTimeout,
    /// The caller cancelled the operation.
    Aborted,
    /// The lease ended before the work did.
    Lost,
    /// An unexpected error.
    Internal,
}

impl LockError {
    /// Returns the category of this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidArgument(_) => ErrorCode::InvalidArgument,
            Self::Aborted { .. } => ErrorCode::Aborted,
            Self::AcquisitionTimeout { .. } => ErrorCode::AcquisitionTimeout,
            Self::Lost { .. } => ErrorCode::Lost,
            Self::NoRights(_) => ErrorCode::AuthFailed,
            Self::FencesUsedUp | Self::Corrupt(_) => ErrorCode::Internal,
            // Without a SQLSTATE there was no response from the server.
            Self::Store(error) => error.sql_state().map_or(ErrorCode::ServiceUnavailable, code_of),
        }
    }

    /// True if the same call may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.code(),
            ErrorCode::ServiceUnavailable | ErrorCode::NetworkTimeout | ErrorCode::RateLimited
        )
    }
}

fn code_of(state: &SqlState) -> ErrorCode {
    let state = state.code();
    match state {
        // 25006: the server has become a standby; 25P03: it ended a transaction that was idle for too long.
        "40001" | "40P01" | "40003" | "25006" | "25P03" => ErrorCode::ServiceUnavailable,
        "57014" | "55P03" => ErrorCode::NetworkTimeout,
        "28000" | "28P01" => ErrorCode::AuthFailed,
        "23502" | "23503" | "23514" | "42P01" | "42703" | "42883" => ErrorCode::InvalidArgument,
        _ if state.starts_with("08") || state.starts_with("57P") => ErrorCode::ServiceUnavailable,
        _ if state.starts_with("22") => ErrorCode::InvalidArgument,
        _ if state.starts_with("53") => ErrorCode::RateLimited,
        _ => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_has_its_code() {
        let expected = [
            ("08006", ErrorCode::ServiceUnavailable),
            ("40P01", ErrorCode::ServiceUnavailable),
            ("57P01", ErrorCode::ServiceUnavailable),
            ("57014", ErrorCode::NetworkTimeout),
            ("28P01", ErrorCode::AuthFailed),
            ("22003", ErrorCode::InvalidArgument),
            ("42P01", ErrorCode::InvalidArgument),
            ("53300", ErrorCode::RateLimited),
            ("XX000", ErrorCode::Internal),
        ];
        for (state, code) in expected {
            assert_eq!(code_of(&SqlState::from_code(state)), code, "{state}");
        }
    }

    #[test]
    fn a_chain_names_the_operation_and_each_cause() {
        let last = LockError::from(PgError::unavailable("acquire a lock", "connection refused"));
        let error = LockError::AcquisitionTimeout {
            attempts: 3,
            waited: Duration::from_secs(5),
            last: Some(Box::new(last)),
        };
        assert_eq!(
            ambient::error_chain(&error),
            "the lock was not acquired within 5s and 3 attempts: could not acquire a lock: connection refused"
        );
    }

    #[test]
    fn a_server_that_never_answered_is_worth_another_try() {
        let error = LockError::from(PgError::unavailable("acquire a lock", "connection refused"));
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
        assert!(error.is_transient());
    }

    #[test]
    fn a_wrong_argument_is_not_worth_another_try() {
        assert!(!LockError::InvalidArgument("a key must not be empty".to_owned()).is_transient());
    }
}
