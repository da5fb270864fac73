//! The HTTP listener that every HTTP interface of the service shares.
//!
//! [`serve`] accepts a bounded number of connections, reads each request completely, up to a bounded size, and passes it to
//! an [`axum::Router`]. A connection that exceeds one of its [`Timeouts`] is closed. On a stop, idle connections are closed
//! at once and requests in flight get [`DRAIN_TIMEOUT`].
//!
//! What it deliberately lacks: routes, error bodies and authentication. The caller brings the router, and the response to a
//! body that is too large, because the interfaces of the service differ in the format of their errors.

mod connection;
mod listener;

pub use connection::Timeouts;
pub use listener::{DRAIN_TIMEOUT, Settings, bind, serve};
