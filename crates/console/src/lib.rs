//! The operators' console: pages that the service renders, on ports.
//!
//! [`router`] has every path below `/console/`. Pages work without JavaScript; the script only refreshes them
//! and saves steps. A handler reads values through ports and passes them to a pure function that renders them
//! with [`maud`], which escapes everything that a producer controls.
//!
//! Only the sign-in and the assets below `/console/` are reachable without a viewer's or an operator's
//! session, and no form is accepted without its token: `session.rs` checks both in front of every page, so
//! that no handler can forget it. What only an operator may do is behind the type `Operator`. `headers.rs`
//! adds the headers of every response, and `deadline.rs` responds with a page if a handler takes too long or
//! panics. `layout.rs` is the frame of a page, `widgets.rs` contains the shared parts of pages, `params.rs`
//! reads the address.

mod assets;
mod attempts;
mod chart;
mod deadline;
mod error;
mod forms;
mod headers;
mod layout;
mod markdown;
mod operator;
mod pages;
mod params;
mod ports;
mod session;
mod sign_in;
mod widgets;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;
use axum::routing::{any, get};

pub use attempts::Attempts;
pub use ports::{Console, ConsoleSettings, Ports};

/// Builds the routes below `/console/`. They do not have a fallback, so that they can be merged with the
/// other routes of the listener.
pub fn router<P: Ports>(console: Console<P>) -> Router {
    let (proxies, time_limit) = (console.proxies.clone(), console.settings.time_limit);
    let console = Arc::new(console);
    let pages = Router::new()
        .merge(pages::overview::routes())
        .merge(pages::notifications::routes())
        .merge(pages::operations::routes())
        .merge(pages::dead_letters::routes())
        .merge(pages::find::routes())
        .merge(pages::holds::routes())
        .merge(pages::erase::routes())
        .merge(pages::actions::routes())
        .merge(pages::malformed_intents::routes())
        .merge(pages::catalogue::routes())
        .merge(pages::runbook::routes())
        .merge(sign_in::sign_out_routes())
        .route("/console/{*path}", any(error::not_found))
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(from_fn(http_server::data_age::add))
        .layer(from_fn_with_state(Arc::clone(&console), session::require_session::<P>));
    let open = Router::new()
        .route("/console", get(|| async { Redirect::permanent("/console/") }))
        .route("/console/assets/{name}", get(assets::show))
        .merge(sign_in::routes())
        .method_not_allowed_fallback(error::method_not_allowed);
    pages
        .merge(open)
        .layer(from_fn_with_state(time_limit, deadline::guard))
        .layer(from_fn(layout::frame))
        .layer(from_fn_with_state(proxies, headers::add))
        .with_state(console)
}
