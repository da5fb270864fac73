//! The shared code of all crates that use PostgreSQL. It contains no table, planner setting or application
//! name: callers choose those.
//!
//! - [`Dsn`] parses a connection string and hides its password; `tls.rs` has its modes; `connect.rs` opens a
//!   connection to the first of its hosts that serves.
//! - `pooler.rs` detects a pooler between this process and the server, and whether it can be used.
//! - [`PgPool`] keeps connections whose every statement has a deadline on both ends, set in
//!   `session_settings.rs`.
//! - [`Session`] is one of them, borrowed for one operation and closed if it was left in an unknown state.
//! - [`Statement`] is a named statement with the plan that it needs, listed by [`statements!`]; [`parameter`]
//!   makes its parameters, [`Prepared`] is such a statement, ready to run, and [`check_plan`] compares its
//!   plan with its claim.
//! - [`bind`] makes the parameters of statements of the query builder.
//! - [`row`] reads columns by name; [`listen()`] receives the notifications of a channel.
//! - [`rights`] lists the rights that a role needs or lacks; [`server_version`] reads the version of the
//!   server; [`migrate()`] applies migrations under an advisory lock.

pub mod bind;
mod connect;
mod connections;
mod conninfo;
mod dsn;
mod error;
mod explain;
mod hosts;
mod listen;
mod migrate;
mod open_error;
mod options;
pub mod parameter;
mod pool;
mod pooler;
mod prepared;
mod raw_timestamp;
pub mod rights;
pub mod row;
mod run;
mod server_error;
mod server_kind;
mod session;
mod session_settings;
mod slow;
mod statement;
mod tls;
mod version;

pub use connect::OPEN_TIMEOUT;
pub use dsn::{Dsn, DsnError};
pub use error::{PgError, is_late, is_unusable_pooler};
pub use explain::{check_plan, explain_analyze};
pub use listen::{Listener, MAX_CHANNEL_BYTES, listen};
pub use migrate::{MIGRATION_LOCK_TIMEOUT, MayNotMigrate, Migration, MigrationSettings, migrate};
pub use pool::{PgPool, PoolSettings};
pub use prepared::Prepared;
pub use raw_timestamp::RawTimestamp;
pub use run::MAX_PREPARED;
pub use server_error::{DeadlinePassed, ServerError};
pub use session::{MAX_GIVEN_UP, Session};
pub use session_settings::SessionSettings;
pub use slow::{SLOW_STATEMENT, SLOW_STATEMENT_INTERVAL};
pub use statement::{BoundStatement, Statement};
pub use version::server_version;
