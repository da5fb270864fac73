//! Private PostgreSQL and Redis servers from the machine's own binaries, and a stand-in user directory.
//!
//! For `notification dev` and for tests. Every server has a folder, a free loopback port and a life of its own; it never
//! touches one that already runs on the machine, and it is gone however the process that started it ends, `kill -9`
//! included. Nothing is downloaded: where a binary is missing, the error says what to install.

mod binaries;
mod directory;
mod postgres;
mod process;
mod redis;

pub use binaries::MissingBinary;
pub use directory::{Fault, Load, StandInDirectory};
pub use postgres::{Postgres, PostgresOptions};
pub use process::StartError;
pub use redis::{Redis, RedisOptions};
