//! Redis: the three streams, the leases that become markers, the cached checkpoint and the leader-change
//! notice.
//!
//! None of it is authoritative. If Redis loses leases, markers or the cached checkpoint, work is repeated;
//! lost outbound entries are appended again where possible (ADR 0021). Intents that were not read yet are
//! lost with Redis. Most modules implement one port of [`domain::ports`]; `keyspace.rs` names every key, and
//! `scripts/` has every script. Nothing is retried here: a call succeeds, is rejected or is unavailable
//! within its deadline, and the workers decide.

mod audit;
mod blocking;
mod checkpoint;
mod cluster;
mod connect;
mod endpoint;
mod erase;
mod error;
mod installation;
mod intents;
mod keyspace;
mod leader_notice;
mod leases;
mod marker;
mod nodes;
mod outbound;
mod outbox;
mod permissions;
mod producer;
mod script_call;
mod sentinel;
mod server;
mod settings;
mod socket;
mod stream_state;
mod version;

pub use audit::RedisStreamReader;
pub use checkpoint::RedisCheckpoints;
pub use connect::RedisClient;
pub use endpoint::InvalidSettings;
pub use erase::RedisEntryDeletion;
pub use error::is_rejected;
pub use installation::claim_stream;
pub use intents::RedisIntentStream;
pub use keyspace::{
    Keyspace, OWN_KEYS, OldKey, checkpoint_key, hash_tag, installation as installation_key, outbox_marker,
    server_changes,
};
pub use leader_notice::LeaderNotice;
pub use leases::RedisLeases;
pub use nodes::UnusableStream;
pub use outbound::{RedisOutbound, StreamTarget};
pub use outbox::{
    NewOutboxRecord, NewestEntries, OutboxAppend, OutboxEntry, OutboxField, OutboxProgress, OutboxRecord,
    OutboxServer, RedisOutboxStreams,
};
pub use permissions::KeyUse;
pub use producer::{RedisIntentProducer, append_command};
pub use settings::{Password, RedisSettings, Topology};
pub use version::{RedisVersion, ServerMode};
