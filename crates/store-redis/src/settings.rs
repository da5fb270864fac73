//! Configuration of the connection to Redis.

use std::fmt;
use std::time::Duration;

/// The address of Redis, the login, and the time limit of a call.
#[derive(Clone)]
pub struct RedisSettings {
    /// `host:port`, or `rediss://host:port` for TLS.
    pub addr: String,
    /// The password of the default user.
    pub password: Option<String>,
    /// The number of the database.
    pub db: i64,
    /// The longest that one call may take, including connecting.
    pub operation_timeout: Duration,
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("addr", &self.addr)
            .field("password", &self.password.as_ref().map(|_| "****"))
            .field("db", &self.db)
            .field("operation_timeout", &self.operation_timeout)
            .finish()
    }
}
