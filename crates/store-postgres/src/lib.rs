//! The durable state in PostgreSQL: records, routes and their outcomes.
//!
//! A file for each table (`records`, `checkpoint`, `routes`, `dead_letters`, `malformed_intents`,
//! `installation`, `holds` with `held_routes`, `replicas` with `activity` and `step_down`, `receipts`,
//! `operator_actions`, `sessions` of the console, `idempotency_keys` of submissions) and for each transaction
//! or comparison over several of them (`accept`, `retention`, `republish`, `resubmit`, `operations`, `erase`,
//! `queries`, `audit`); together they implement the stores of [`domain::ports`] on [`PgStore`], and the
//! queries on [`PgQueries`], which has a pool of its own and may read from `read_replicas`. Each statement
//! stands next to the plan that it needs; those in SQL are listed in `statements.rs`, built ones use the
//! columns of `schema.rs`. Rows are read by name in `codec.rs`. Every change of a route is guarded by the
//! version it was decided on. The rules for a route's next state are in `domain`, not here.

mod accept;
mod audit;
mod checkpoint;
mod codec;
mod dead_letters;
mod erase;
mod error;
mod holds;
mod idempotency_keys;
mod installation;
mod malformed_intents;
mod migrations;
mod operations;
mod operator_actions;
mod queries;
mod read_replicas;
mod receipts;
mod records;
mod replicas;
mod republish;
mod resubmit;
mod retention;
mod routes;
mod schema;
mod session;
mod sessions;
mod statements;
mod step_down;

pub use installation::Installation;
pub use migrations::migrate;
pub use queries::PgQueries;
pub use read_replicas::ReadReplicas;
pub use schema::{receipts_table, required_grants, users_grants};
pub use session::{QUERY_SESSION, SESSION};

use pg::{PgPool, Session, rights};

use crate::error::store_error;
use crate::idempotency_keys::Endpoint;
use domain::ports::StoreError;

/// The service's tables.
#[derive(Clone, Debug)]
pub struct PgStore {
    pool: PgPool,
    /// The pool for the plans of changes, which may read many rows.
    plans: PgPool,
    endpoint: Endpoint,
}

impl PgStore {
    /// A store on `pool`, whose `search_path` selects the schema.
    pub fn new(pool: PgPool) -> Self {
        Self { plans: pool.clone(), pool, endpoint: Endpoint("") }
    }

    /// Sets the HTTP endpoint of submissions, which is part of the owner of their idempotency keys, for
    /// example `POST /v1/intents`.
    pub fn with_endpoint(self, endpoint: &'static str) -> Self {
        Self { endpoint: Endpoint(endpoint), ..self }
    }

    /// Adds a separate pool for the plans of operators' changes, whose sessions have the settings
    /// [`QUERY_SESSION`]: however many are requested, they take no connection from the traffic.
    pub fn with_plans(self, plans: PgPool) -> Self {
        Self { plans, ..self }
    }

    /// Prepares every statement of the service, so that a schema that is too old, or a missing right, is
    /// reported at the start and not at the first intent. A newer schema passes if every statement can be
    /// prepared on it.
    ///
    /// `with_users` adds the rights on the users' documents.
    pub async fn check_needs(&self, with_users: bool) -> Result<(), StoreError> {
        let session = self.session("check the schema").await?.checking();
        let named = [statements::of_store(), statements::of_queries()].concat();
        session.prepare_all(&named).await.map_err(store_error)?;
        let mut required = required_grants();
        if with_users {
            required.extend(users_grants());
        }
        let missing = rights::missing(&session, &required).await.map_err(store_error)?;
        if missing.is_empty() {
            return Ok(());
        }
        let source = format!(
            "permission denied: the role lacks {}; `notification migrate --print-grants` prints all that it needs",
            rights::list(&missing)
        );
        Err(StoreError::Unavailable { operation: "check the schema", source: source.into() })
    }

    async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.pool.session(operation).await.map_err(store_error)
    }
}
