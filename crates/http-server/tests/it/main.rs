//! Tests of the listener with real sockets.

mod bodies;
mod drain;
mod guard;
mod limits;
mod support;
mod timeouts;
mod tls;
mod unix;
