//! The workers' port for elections, implemented with the crate `election` and leader-change notices through
//! Redis.

use std::time::Duration;

use domain::ports::{self, Fence, StoreError, TermEnd};
use election::{Leadership, Notice};
use lock::{ErrorCode, LockError};
use store_redis::LeaderNotice;

/// Implements the workers' election for a leadership.
#[derive(Debug)]
pub(super) struct LeadershipElection<N>(pub(super) Leadership<N>);

impl<N: Notice + Clone> ports::Election for LeadershipElection<N> {
    type Term = LeadershipTerm<N>;

    async fn campaign(&self) -> Result<Option<LeadershipTerm<N>>, StoreError> {
        let term = self.0.campaign().await.map_err(|error| store_error("campaign for leadership", error))?;
        Ok(term.map(LeadershipTerm))
    }

    async fn leader_change(&self) {
        self.0.leader_change().await;
    }

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        self.0.raise_fence(floor).await.map_err(|error| store_error("raise the fence", error))
    }
}

/// Implements the workers' term for a term of a leadership.
#[derive(Debug)]
pub(super) struct LeadershipTerm<N>(election::RenewedTerm<N>);

impl<N: Notice + Clone> ports::Term for LeadershipTerm<N> {
    fn fence(&self) -> Fence {
        self.0.fence()
    }

    async fn over(&self) -> TermEnd {
        self.0.lost().await;
        TermEnd::Lost
    }

    async fn step_down(self) {
        self.0.step_down().await;
    }
}

/// Leader-change notices through Redis.
#[derive(Clone, Debug)]
pub(super) struct RedisNotice(pub(super) LeaderNotice);

impl Notice for RedisNotice {
    type Error = StoreError;

    async fn announce(&self) -> Result<(), StoreError> {
        self.0.announce().await
    }

    async fn wait(&self, at_most: Duration) -> Result<(), StoreError> {
        self.0.wait(at_most).await
    }
}

pub(super) fn store_error(operation: &'static str, error: LockError) -> StoreError {
    match error.code() {
        ErrorCode::InvalidArgument => StoreError::Refused { operation, source: error.into() },
        _ => StoreError::Unavailable { operation, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use ::election::NoNotice;
    use harness::TestDatabase;
    use harness::contract::election::ElectionFixture;
    use harness::contract::leader::LeaderFixture;
    use lock::{LockManager, TableNames};
    use pg::{Dsn, PgPool, PoolSettings, SessionSettings};

    use super::super::leader::{LockLookup, intake_leadership};
    use super::*;

    const STREAM: &str = "notification:intents";

    struct World {
        database: TestDatabase,
        locks: LockManager,
    }

    impl World {
        async fn new() -> Self {
            let database = TestDatabase::new().await;
            let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
            let settings = PoolSettings {
                max_connections: 4,
                operation_timeout: Duration::from_secs(20),
                session: SessionSettings::default(),
            };
            let pool = PgPool::new(&dsn, settings).expect("a pool");
            Self { database, locks: LockManager::new(pool, TableNames::default()) }
        }
    }

    impl ElectionFixture for World {
        fn candidate(&self) -> impl ports::Election {
            LeadershipElection(Leadership::new(
                self.locks.clone(),
                &intake_leadership(STREAM),
                "replica",
                NoNotice,
            ))
        }

        async fn end_term(&self) {
            // The lock then looks as if it had expired a minute ago.
            let expire = "UPDATE locks SET acquired_at_ms = acquired_at_ms - 100000, \
                expires_at_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 60000";
            let ended = self.database.client().await.execute(expire, &[]).await;
            assert_eq!(ended.expect("the statement is right"), 1);
        }
    }

    impl LeaderFixture for World {
        fn lookup(&self) -> impl ports::LeaderLookup {
            LockLookup::new(self.locks.clone(), STREAM)
        }
    }

    mod leader {
        harness::leader_contract!(super::World::new().await);
    }

    mod contract {
        harness::election_contract!(super::World::new().await);
    }
}
