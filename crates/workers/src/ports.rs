//! The bundle of the ports that accept and publish intents.

use ambient::{Clock, Jitter, Tokens};
use domain::ports::{
    AcceptanceStore, CheckpointCache, CheckpointStore, Election, HoldStore, IdempotencyStore, IntentStream,
    LeaseStore, Outbound, OutboundInspection, RouteStore, UserDirectory,
};

/// The types of the ports of the workers that accept intents and publish their routes.
pub trait Ports: Send + Sync + 'static {
    /// The election of the replica that reads the stream.
    type Election: Election;
    /// The intents stream.
    type Intents: IntentStream;
    /// The store of acceptance, with its checkpoint and the responses to callers, of routes and of holds.
    type Store: AcceptanceStore + CheckpointStore + HoldStore + IdempotencyStore + RouteStore;
    /// The cached checkpoint.
    type Cache: CheckpointCache;
    /// The user directory.
    type Directory: UserDirectory;
    /// The store of leases and markers.
    type Leases: LeaseStore;
    /// The outbound streams.
    type Outbound: Outbound + OutboundInspection;
    /// The clock.
    type Clock: Clock;
    /// The jitter of retries.
    type Jitter: Jitter;
    /// The random tokens.
    type Tokens: Tokens;
}
