//! Runs the request behind an idempotency key once, and replays its first response to repeats.
//!
//! **The promise.** For each key of an owner at most one claim is live at a time, by the clock of the store
//! alone. A request with a stored response is not processed again until the retention TTL ends, and its
//! repeats get that response byte for byte. While it is processed, repeats are rejected with a request to
//! wait. If the store cannot determine whether a request was processed, it is not processed. A claim whose
//! holder crashed is free once its lock TTL has passed.
//!
//! **What it cannot promise** is that a handler that crashed has had no effect: its repeat runs it again. A
//! handler whose effect is in the same PostgreSQL stores its response in the transaction of that effect
//! ([`complete_in`]): a crash leaves both or neither. If a request takes no time before that transaction, it
//! needs no claim: [`complete_free_in`] takes the free key and stores the response in one step, and
//! concurrent repeats wait for the transaction.
//!
//! [`Store`] has the operations, on many keys at once; [`PostgresStore`] and `MemoryStore` (feature `memory`)
//! implement them, [`ObservedStore`] reports their outcomes. [`Idempotency`] runs one handler with them;
//! [`IdempotencyLayer`] does that for every request of an axum or tower service.
//!
//! It deliberately lacks: waiting for another attempt, automatic extension of a claim, and a sweeping
//! task. Call [`Store::sweep`] now and then, on one replica.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use axum::{Router, routing::post};
//! # async fn run(pool: pg::PgPool) -> Result<(), idempotency::IdempotencyError> {
//! use idempotency::{Idempotency, IdempotencyLayer, IdempotencySettings, LayerOptions, Owner, PostgresStore};
//!
//! let store = Arc::new(PostgresStore::new(pool));
//! store.setup_schema().await?;
//! let idempotency = Idempotency::new(store, IdempotencySettings::default())?;
//! let owner = |request: &axum::http::request::Parts| request.extensions.get::<Owner>().cloned();
//! let layer = IdempotencyLayer::new(idempotency, LayerOptions::default(), owner);
//! let app: Router = Router::new().route("/orders", post(async || "created")).layer(layer);
//! # Ok(())
//! # }
//! ```

mod layer;
mod once;
mod store;

mod abandoner;
mod answer;
mod buffer;
mod error;
mod fingerprint;
mod key;
#[cfg(feature = "memory")]
mod memory;
mod observed;
mod postgres;
mod problem;
mod schema;
pub mod statements;
mod ttl;

pub use abandoner::{Abandoner, MAX_ABANDONED};
pub use answer::IDEMPOTENCY_REPLAYED;
pub use error::IdempotencyError;
pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use key::{IDEMPOTENCY_KEY, Key, MAX_KEY_BYTES, MAX_OWNER_BYTES, Owner, Token};
pub use layer::{DEFAULT_MAX_BODY_BYTES, IdempotencyLayer, IdempotencyService, LayerOptions};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use observed::{KeyEvent, KeyObserver, KeyOperation, ObservedOutcome, ObservedStore};
pub use once::{
    DEFAULT_HANDLER_TIMEOUT, DEFAULT_MAX_CONCURRENT, DEFAULT_MAX_RESPONSE_BYTES, DEFAULT_STORE_TIMEOUT,
    Idempotency, IdempotencySettings, KeyedRequest, Run, is_final,
};
pub use postgres::{
    MAX_CLAIM_BATCH, MAX_CLAIM_ROUNDS, PostgresStore, SINGLE_LOCK_TIMEOUT, complete_free_in, complete_in,
};
pub use problem::{Problem, RETRY_PAUSE};
pub use schema::{required_grants, schema_sql};
pub use statements::PLANNER_PARAMETERS;
pub use store::{
    Answer, Claim, ClaimId, ClaimRequest, CompletionRequest, FreeCompletion, Guarded, KeyLookup, Store,
};
pub use ttl::{
    DEFAULT_LOCK_TTL, DEFAULT_RETENTION_TTL, LockTtl, MAX_LOCK_TTL, MAX_RETENTION_TTL, RetentionTtl,
};
