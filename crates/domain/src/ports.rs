//! The interfaces that the workers require of the outside world, in domain types only, one module for each
//! noun.
//!
//! A port is shaped by the worker that calls it. It receives and returns batches, with an outcome for each
//! element. Expected outcomes are values; `Err` is for events outside the contract. Every implementation puts
//! a deadline on every call. A call that exceeds it returns [`StoreError::Unavailable`] or
//! [`StoreError::TimedOut`] and may or may not have been carried out.
//!
//! Ports use the values of the domain; no rule of the domain uses a port. The values that appear in a port
//! are exported here as well, so that an implementation needs one import.

mod accept;
mod audit;
mod checkpoints;
mod directory;
mod election;
mod erase;
mod error;
mod find;
mod holds;
mod idempotency;
mod leases;
mod operations;
mod outbound;
mod queries;
mod receipts;
mod replicas;
mod republish;
mod resubmit;
mod retention;
mod routes;
mod sessions;
mod step_down;
mod streams;
mod submissions;

pub use accept::{AcceptanceBatch, AcceptanceStore, CheckpointMove};
pub use audit::{AuditStore, AuditedPage, ChildTable, OrphanPage, StreamEntry, StreamReader};
pub use checkpoints::{CheckpointCache, CheckpointStore};
pub use directory::UserDirectory;
pub use election::{Election, Term, TermEnd};
pub use erase::{EntryDeletion, ErasedChunk, ErasureStore, Erasures, FoundAction, FoundMalformed};
pub use error::{BoxError, StoreError, Swap, error_chain};
pub use find::Finder;
pub use holds::{HoldChanges, HoldStore};
pub use idempotency::{
    AbandonOutcome, IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken, KeyCondition, ResponseToStore,
};
pub use leases::{Leasable, LeaseOutcome, LeaseStore, LeaseToken};
pub use operations::{ChangeOutcome, ChunkReport, Operations, apply_change, apply_to_chunk};
pub use outbound::{Append, Appends, Outbound};
pub use queries::{LeaderLookup, Queries, StreamQueries};
pub use receipts::ReceiptStore;
pub use replicas::{Activity, ActivityQueries, BlockedReport, ReplicaReport, ReplicaStore, WorkerReport};
pub use republish::{
    FoundEntries, MAX_FOUND_ENTRIES, ObservedStream, OutboundInspection, PublishedEntry, PublishedPage,
    RepublishStore, SavedStream,
};
pub use resubmit::{ResubmitStore, Resubmitter};
pub use retention::{Cutoff, Expired, KeySweep, Removal, RetentionStore};
pub use routes::{Completion, DueCursor, DueOrder, DuePage, FailureCounts, RouteStore, RowLocks};
pub use sessions::{SessionHash, SessionStore, SessionSweep, TokenHash};
pub use step_down::StepDownStore;
pub use streams::{IntentProducer, IntentStream, ReadLimit, StreamRead};
pub use submissions::Submissions;

pub use crate::accept::{Fate, Known, ProcessedTrace};
pub use crate::checkpoint::{Fence, FenceWrite, StreamState};
pub use crate::malformed_intent::MalformedKey;
pub use crate::operations::OperatorActionId;
pub use crate::recipient::{Lookup, User};
pub use crate::record::RecordCursor;
pub use crate::republish::{Acknowledged, OutboundState, ServerId};
pub use crate::route::{Failed, Published};
