//! The promises of the README, against a real PostgreSQL.

mod http;
mod contract;
mod postgres;
mod query_expressions;
mod query_support;
mod setup;
mod support;
