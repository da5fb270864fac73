//! The listener as clients meet it, over real sockets.

mod bodies;
mod drain;
mod guard;
mod limits;
mod support;
mod timeouts;
mod tls;
mod unix;
