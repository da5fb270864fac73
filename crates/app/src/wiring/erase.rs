//! The wiring of erasures, for the API, the console and the command.

use std::sync::Arc;
use std::time::Duration;

use ambient::{RandomTokens, SystemClock};
use store_postgres::{PgQueries, PgStore};
use store_redis::{RedisClient, RedisEntryDeletion, RedisLeases, RedisStreamReader};
use user_directory::USERS_PREFIX;
use workers::{Eraser, ErasureSettings, ErasureStores};

use crate::config::{Outbound, UserDirectory};

/// Erases users from the tables and streams of the service.
pub(crate) type ServiceEraser =
    Eraser<PgStore, PgQueries, RedisStreamReader, RedisEntryDeletion, RedisLeases, SystemClock>;

/// The configuration on which an erasure depends.
pub(crate) struct ErasureConfig<'a> {
    pub(crate) intents_stream: &'a str,
    pub(crate) outbound: &'a Outbound,
    pub(crate) user_directory: &'a UserDirectory,
    pub(crate) dedupe_ttl: Duration,
    pub(crate) time_limit: Option<Duration>,
}

/// Creates an eraser on these stores. The tables must have the endpoint of submissions.
pub(crate) fn eraser(
    config: &ErasureConfig<'_>,
    tables: PgStore,
    queries: PgQueries,
    redis: &RedisClient,
) -> ServiceEraser {
    let outbound = config.outbound;
    let keyspace = super::keyspace(config.intents_stream, outbound, config.dedupe_ttl);
    Eraser {
        stores: ErasureStores {
            tables,
            audited: queries,
            streams: RedisStreamReader::new(redis),
            deletion: RedisEntryDeletion::new(redis),
            leases: RedisLeases::new(redis, &keyspace),
        },
        settings: ErasureSettings {
            intents_stream: config.intents_stream.to_owned(),
            outbound_streams: vec![outbound.gateway.key.clone(), outbound.mail.key.clone()],
            users_prefix: (*config.user_directory == UserDirectory::State).then_some(USERS_PREFIX),
            dedupe_ttl: config.dedupe_ttl,
            time_limit: config.time_limit,
        },
        clock: SystemClock,
        ids: Arc::new(RandomTokens),
    }
}
