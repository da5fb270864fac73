//! The HTTP API: accepts intents, returns their outcomes, records consumers' receipts, and applies operators'
//! changes.
//!
//! [`router`] has a route for each operation of the API's contract. A handler parses a request into values of
//! the domain, calls a port, and renders the result; it does not depend on a store. The listener, tokens,
//! limits and the format of errors are in `http-server`.
//!
//! `intents.rs` and `batch.rs` accept intents, `intent_outcome.rs`, `notifications.rs`, `search.rs`,
//! `dead_letters.rs`, `find.rs`, `malformed_intents.rs` and `status.rs` read, `changes.rs` replays, discards,
//! cancels and resends, `holds.rs` holds and releases, `resubmit.rs` resubmits malformed intents, `erase.rs`
//! erases a person, `receipts.rs` records consumers' reports, `actions.rs` lists actions and `activity.rs`
//! the recent activity. `params.rs` reads query strings, `view.rs` renders values. `openapi.rs` describes all
//! of it in the document that `GET /openapi.json` returns.

mod actions;
mod activity;
mod at_most;
mod batch;
mod dead_letters;
mod erase;
mod find;
mod holds;
mod intent_outcome;
mod intents;
mod malformed_intents;
mod notifications;
mod openapi;
mod operations;
mod operator_request;
mod params;
mod ports;
mod problems;
mod receipts;
mod resubmit;
mod search;
mod status;
pub mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::middleware::from_fn;
use axum::routing::{get, post};
use bytes::Bytes;
use http_server::BodyLimit;
use http_server::tokens::TokenGuard;

pub use batch::is_undecided;
pub use intents::{INTENTS_ENDPOINT, accepted_response};
pub use openapi::document;
pub use ports::{Api, ApiSettings, Ports, ReceiptCounter};

/// Builds the routes of the API. `guard` checks tokens.
pub fn router<P: Ports>(api: Api<P>, guard: &TokenGuard) -> Router {
    let batch_limit = axum::Extension(BodyLimit(api.settings.max_batch_body_bytes));
    let document = Bytes::from(openapi::document(&api.settings).to_string());
    let operator = |routes| guard.protect(routes, problems::operators_only);
    let producer = |routes| guard.protect(routes, problems::producers_only);
    let reporter = |routes| guard.protect(routes, problems::reporters_only);
    let viewer = |routes| guard.protect(routes, problems::viewers_only);
    let reader = |routes| guard.protect(routes, problems::readers_only);
    let router = Router::new()
        .route("/v1/intents", producer(post(intents::send::<P>)))
        .route("/v1/intents:batch", producer(post(batch::send::<P>).layer(batch_limit)))
        .route("/v1/intents/{idempotency_key}", reader(get(intent_outcome::show::<P>)))
        .route("/v1/notifications", reader(get(notifications::list::<P>)))
        .route("/v1/notifications:query", viewer(post(search::search::<P>)))
        .route("/v1/notifications/{notification_id}", reader(get(notifications::show::<P>)))
        .route("/v1/dead-letters", viewer(get(dead_letters::list::<P>)))
        .route("/v1/dead-letters:replay", operator(post(operations::replay::<P>)))
        .route("/v1/dead-letters:discard", operator(post(operations::discard::<P>)))
        .route("/v1/routes:cancel", operator(post(operations::cancel::<P>)))
        .route("/v1/routes:resend", operator(post(operations::resend::<P>)))
        .route("/v1/actions", viewer(get(actions::list::<P>)))
        .route("/v1/activity", viewer(get(activity::show::<P>)))
        .route("/v1/find", viewer(get(find::find::<P>)))
        .route("/v1/holds", viewer(get(holds::list::<P>)))
        .route("/v1/holds:hold", operator(post(holds::hold::<P>)))
        .route("/v1/holds:release", operator(post(holds::release::<P>)))
        .route("/v1/malformed-intents", reader(get(malformed_intents::list::<P>)))
        .route("/v1/malformed-intents:resubmit", operator(post(resubmit::resubmit::<P>)))
        .route("/v1/malformed-intents/{stream_entry_id}", reader(get(malformed_intents::show::<P>)))
        .route("/v1/users:erase", operator(post(erase::erase::<P>)))
        .route("/v1/receipts", reporter(post(receipts::record::<P>).layer(batch_limit)))
        .route("/v1/status", viewer(get(status::show::<P>)))
        .route("/openapi.json", get(move |query: RawQuery| openapi::show(query, document)));
    let router = router.layer(from_fn(http_server::data_age::add));
    http_server::problem::with_fallbacks(router.with_state(Arc::new(api)))
}
