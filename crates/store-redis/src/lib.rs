//! Transport and hints: the three streams, the leases that become receipts, and the bookmark, in Redis.
//!
//! Nothing here is the truth. Whatever Redis forgets costs a duplicate at most, and PostgreSQL says where to go on. Each
//! module implements one port of [`domain::ports`]; `keyspace.rs` names every key. There is no retry here: a call is
//! answered, refused or unavailable within its deadline, and the workers decide.

mod connect;
mod hints;
mod keyspace;
mod lease;
mod offset;
mod streams;

pub use connect::{InvalidSettings, RedisClient, RedisSettings};
pub use hints::RedisHints;
pub use keyspace::{OWN_KEYS, route_lease, stream_offset};
pub use lease::RedisLeases;
pub use offset::RedisOffsets;
pub use streams::{RedisIntentStream, RedisOutbound, StreamTarget};
