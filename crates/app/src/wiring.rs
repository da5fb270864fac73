//! The wiring of the service, one file for each mode.

mod election;
pub mod serve;

use store_redis::RedisSettings;

use crate::config::Redis;

/// The settings of a client for the Redis of the configuration.
pub(crate) fn redis_settings(config: &Redis) -> RedisSettings {
    RedisSettings {
        addr: config.addr.to_string(),
        password: config.password.expose().map(str::to_owned),
        db: config.db.into(),
        operation_timeout: config.operation_timeout,
    }
}
