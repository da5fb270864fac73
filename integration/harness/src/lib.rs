//! The harness of the tests: private servers, a migrated database for each test, a proxy that breaks
//! connections on purpose, and the service's own binary as a child process.
//!
//! Only the suites in [`contract`] contain assertions. All waiting is done by [`wait_for`], with a bound.

pub mod api_client;
mod browser;
pub mod contract;
mod database;
pub mod dead_letters;
mod intents;
pub mod memory;
pub mod outbox;
mod poll;
mod proxy;
mod service;
mod stopwatch;
pub mod world;

pub use browser::{Browser, Theme, keys};
pub use database::TestDatabase;
pub use intents::turn_ready;
pub use local_servers::{
    ClusterNode, DirectoryLoad, PgBouncer, PgBouncerOptions, Postgres, PostgresOptions, Redis, RedisCluster,
    RedisClusterOptions, RedisOptions, RedisTls, SentinelGroup, SentinelOptions, StandInDirectory, UserFault,
    postgres_program,
};
pub use poll::wait_for;
pub use proxy::{Proxy, Trigger};
pub use service::{Finished, HttpResponse, Service, ServiceBuilder, request, request_unix, service_binary};
pub use stopwatch::Stopwatch;

/// An empty Redis of the test's own.
pub async fn private_redis() -> Redis {
    Redis::start(RedisOptions { appendonly: true, ..RedisOptions::default() })
        .await
        .expect("a private Redis starts")
}
