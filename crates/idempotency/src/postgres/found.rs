//! The state of a key in its row, and what it means for a request.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;

use super::column;
use crate::schema::{COMPLETED, PENDING};
use crate::{Answer, Claim, ClaimRequest, Fingerprint, IdempotencyError};

/// The result of one key.
#[derive(Clone, Debug)]
pub(super) enum FoundKey {
    /// The key was free and is now claimed.
    Claimed,
    Pending {
        fingerprint: String,
        free_in: Duration,
    },
    Completed {
        fingerprint: String,
        answer: Answer,
    },
    /// The key is locked, or was changed in each round.
    Busy,
}

impl FoundKey {
    /// Returns the outcome for one of several requests with the same key, of which `first` was sent.
    pub(super) fn for_request(&self, request: &ClaimRequest, first: &ClaimRequest, is_first: bool) -> Claim {
        match self {
            Self::Claimed if is_first => Claim::New,
            Self::Claimed => Claim::Pending {
                fingerprint_matches: request.fingerprint == first.fingerprint,
                free_in: first.lock_ttl.as_duration(),
            },
            found => found.for_fingerprint(&request.fingerprint),
        }
    }

    /// Returns the outcome for a request with this fingerprint.
    pub(super) fn for_fingerprint(&self, own: &Fingerprint) -> Claim {
        match self {
            Self::Claimed => Claim::New,
            Self::Pending { fingerprint, free_in } => {
                Claim::Pending { fingerprint_matches: own.as_str() == fingerprint, free_in: *free_in }
            }
            Self::Completed { fingerprint, answer } if own.as_str() == fingerprint => {
                Claim::Completed(answer.clone())
            }
            Self::Completed { .. } => Claim::Conflict,
            Self::Busy => Claim::Busy,
        }
    }
}

/// Reads a row of [`statements::claim`] or [`statements::lookup`].
pub(super) fn read(row: &Row) -> Result<FoundKey, IdempotencyError> {
    let state: Option<&str> = column(row, "state")?;
    let fingerprint = || column::<Option<String>>(row, "fingerprint").map(Option::unwrap_or_default);
    Ok(match state {
        None => FoundKey::Claimed,
        Some(PENDING) => {
            let millis: i64 = column(row, "free_in_ms")?;
            let free_in = Duration::from_millis(millis.max(0).unsigned_abs());
            FoundKey::Pending { fingerprint: fingerprint()?, free_in }
        }
        Some(COMPLETED) => {
            let status: i32 = column(row, "response_status")?;
            let bytes = |name| column::<&[u8]>(row, name).map(Bytes::copy_from_slice);
            let answer = Answer {
                status: u16::try_from(status).map_err(|_| IdempotencyError::Corrupt("response_status"))?,
                headers: bytes("response_headers")?,
                body: bytes("response_body")?,
            };
            FoundKey::Completed { fingerprint: fingerprint()?, answer }
        }
        Some(_) => return Err(IdempotencyError::Corrupt("state")),
    })
}
