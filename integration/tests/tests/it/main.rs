//! What the service promises to the outside, kept while servers are killed under it.
//!
//! One binary, a module a promise. Every test has a database and a Redis of its own; what happened is read from the
//! tables and the streams, as an operator would.

mod accept;
mod bad_input;
mod crash;
mod docs;
mod election;
mod idle;
mod outage;
mod process;
mod replicas;
mod retention;
mod world;
