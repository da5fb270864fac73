//! The bundle of the ports that accept intents.

use ambient::{Clock, Tokens};
use domain::ports::{
    AcceptanceStore, CheckpointCache, CheckpointStore, Election, IdempotencyStore, IntentStream,
    UserDirectory,
};

/// The types of the ports of the workers that accept intents.
pub trait Ports: Send + Sync + 'static {
    /// The election of the replica that reads the stream.
    type Election: Election;
    /// The intents stream.
    type Intents: IntentStream;
    /// The store that commits acceptance, with its checkpoint or with the responses of callers.
    type Store: AcceptanceStore + CheckpointStore + IdempotencyStore;
    /// The cached checkpoint.
    type Cache: CheckpointCache;
    /// The user directory.
    type Directory: UserDirectory;
    /// The clock.
    type Clock: Clock;
    /// The random tokens.
    type Tokens: Tokens;
}
