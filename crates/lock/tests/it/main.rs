//! The promises of the lock, on a real PostgreSQL whose clock the tests set.

mod abort;
mod contention;
mod errors;
mod expiration;
mod fences;
mod held;
mod lifecycle;
mod lookup;
mod model;
mod ownership;
mod sessions;
mod setup;
mod support;
mod takeover;
mod telemetry;
