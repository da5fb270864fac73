//! The wiring of the console. It is served on the API's listener, and shares the API's queries and tokens.

use std::sync::Arc;
use std::time::Duration;

use ::api::{Api, Ports as ApiPorts};
use ambient::{RandomTokens, SystemClock};
use axum::Router;
use console::{Attempts, Console, ConsoleSettings, Ports};
use domain::query::Leaderless;
use http_server::TrustedProxies;
use http_server::tokens::AccessTokens;
use idempotency::{ObservedStore, PostgresStore};
use store_postgres::{PgQueries, PgStore};
use store_redis::{RedisIntentStream, RedisLeases};
use workers::LeasedChanges;

use super::erase::ServiceEraser;
use super::leader::LockLookup;
use crate::config;
use crate::start::Backends;

/// The part of the request timeout reserved for the error page that replaces a page that took too long.
const PAGE_ANSWER_TIME: Duration = Duration::from_millis(500);

/// The ports of the console.
struct ConsolePorts;

impl Ports for ConsolePorts {
    type Queries = PgQueries;
    type Operations = LeasedChanges<PgStore, RedisLeases>;
    type Holds = PgStore;
    type Erasures = ServiceEraser;
    type Stream = RedisIntentStream;
    type Leader = LockLookup;
    type Finder = super::Search;
    type Resubmitter = super::Resubmission;
    type Activity = PgQueries;
    type Sessions = PgStore;
    type Keys = ObservedStore<PostgresStore>;
    type Clock = SystemClock;
}

/// The parts of the console that the API does not have.
pub(super) struct ConsoleParts {
    sessions: PgStore,
    tokens: AccessTokens,
    proxies: TrustedProxies,
    time_limit: Duration,
}

impl ConsoleParts {
    pub(super) fn new(stores: &Backends, tokens: &AccessTokens, api: &config::Api) -> Self {
        tracing::info!("the console is served below /console/");
        let request_timeout = api.limits.timeouts.request;
        Self {
            // If the request timeout is very short, pages get half of it.
            time_limit: request_timeout.saturating_sub(PAGE_ANSWER_TIME).max(request_timeout / 2),
            sessions: stores.postgres.clone(),
            tokens: tokens.clone(),
            proxies: api.trusted_proxies.clone(),
        }
    }

    /// The routes of the console, which reads and changes the same data as `api`.
    pub(super) fn router<P>(self, api: &Api<P>) -> Router
    where
        P: ApiPorts<
                Queries = PgQueries,
                Operations = LeasedChanges<PgStore, RedisLeases>,
                Holds = PgStore,
                Erasures = ServiceEraser,
                Stream = RedisIntentStream,
                Leader = LockLookup,
                Finder = super::Search,
                Resubmitter = super::Resubmission,
                Keys = ObservedStore<PostgresStore>,
            >,
    {
        let settings = &api.settings;
        console::router(Console::<ConsolePorts> {
            queries: api.queries.clone(),
            activity: api.queries.clone(),
            operations: api.operations.clone(),
            holds: api.holds.clone(),
            erasures: api.erasures.clone(),
            stream: api.stream.clone(),
            leader: api.leader.clone(),
            finder: api.finder.clone(),
            resubmitter: api.resubmitter.clone(),
            sessions: self.sessions,
            keys: api.keys.clone(),
            clock: SystemClock,
            tokens: self.tokens,
            ids: Arc::new(RandomTokens),
            proxies: self.proxies,
            attempts: Attempts::new(),
            leaderless: Leaderless::new(),
            settings: ConsoleSettings {
                catalog: Arc::clone(&settings.catalog),
                stream: settings.stream.clone(),
                budgets: settings.budgets,
                time_limit: self.time_limit,
            },
        })
    }
}
