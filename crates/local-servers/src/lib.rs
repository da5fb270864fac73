//! Private PostgreSQL, PgBouncer and Redis servers from the machine's own binaries, and a stand-in user
//! directory.
//!
//! For `notification dev` and for tests. Every server has its own folder and a free loopback port, and does
//! not interfere with servers that already run on the machine. It is stopped and removed however the process
//! that started it ends, `kill -9` included. Nothing is downloaded: if a binary is missing, the error names
//! the package to install.

mod binaries;
mod cluster;
mod directory;
mod pgbouncer;
mod postgres;
mod process;
mod redis;
mod sentinel;

pub use binaries::{MissingBinary, postgres as postgres_program};
pub use cluster::{ClusterNode, RedisCluster, RedisClusterOptions};
pub use directory::{DirectoryLoad, StandInDirectory, UserFault};
pub use pgbouncer::{PgBouncer, PgBouncerOptions};
pub use postgres::{Postgres, PostgresOptions};
pub use process::{StartError, free_port};
pub use redis::{Redis, RedisOptions, RedisTls};
pub use sentinel::{SentinelGroup, SentinelOptions};
