//! The parts of responses: values of the domain as JSON, with times in RFC 3339 with microseconds, and `null`
//! for absent values.
//!
//! Each type is serialised as it is, and its schema in the OpenAPI document is derived from it; the comments
//! of its members are the descriptions there. Operators' commands print the same documents.

mod accepted;
mod batch;
mod holds;
mod intent_outcome;
mod lists;
mod operations;
mod receipts;

pub(crate) use accepted::{Accepted, AcceptedElement, OUTCOME_ACCEPTED, OUTCOME_DUPLICATE};
pub(crate) use batch::{ElementResult, MAX_BATCH_RECIPIENTS, MAX_INTENTS, Results};
pub(crate) use holds::ChangedHold;
pub use holds::Holds;
pub(crate) use intent_outcome::{IntentState, KeyOutcome};
pub use lists::{Actions, DeadLetters, MalformedIntents, MalformedIntentsPage, Notifications};
pub(crate) use operations::{Cancelled, Discarded, Replayed, Resent};
pub(crate) use receipts::{OUTCOME_INVALID, ReceiptResult, ReceiptResults};
