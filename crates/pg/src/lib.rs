//! What every crate that talks to PostgreSQL would otherwise write for itself.
//!
//! [`Dsn`] reads a connection string and hides its password; [`PgPool`] opens connections whose every statement has
//! a deadline on both ends; [`Session`] is one of them, borrowed for one operation and thrown away if it was left in
//! a state that cannot be known; [`bind`] makes parameters whose type the server and the client agree on;
//! [`migrate()`] applies migrations under an advisory lock. Nothing here knows a table.

pub mod bind;
mod dsn;
mod error;
mod migrate;
mod pool;

pub use dsn::{Dsn, DsnError};
pub use error::PgError;
pub use migrate::{LOCK_WAIT, migrate};
pub use pool::{PgPool, PoolSettings, PostgresBinderRef, Prepared, Session};
pub use refinery;
pub use sea_query_postgres::PostgresValues;
