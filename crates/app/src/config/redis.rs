//! The connection to Redis.

use std::time::Duration;

use super::redis_addr::RedisAddr;
use super::secret::Secret;
use super::section::section;

section! {
    /// The Redis with the streams, the leases and the cached checkpoint.
    #[derive(Debug, Clone)]
    pub struct Redis {
        /// The address of the server.
        pub addr: RedisAddr = NOTIFICATION_REDIS_MASTER_ADDR,
        /// The password of the default user.
        pub password: Secret = NOTIFICATION_REDIS_PASSWORD,
        /// The number of the logical database.
        pub db: u16 = NOTIFICATION_REDIS_DB,
        /// Replicas, of which only the form is checked.
        pub replicas: Vec<RedisAddr> = NOTIFICATION_REDIS_REPLICA_ADDRS,
        /// The deadline of one call.
        pub operation_timeout: Duration = NOTIFICATION_REDIS_OPERATION_TIMEOUT,
    }
}
