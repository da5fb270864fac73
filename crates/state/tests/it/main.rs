//! The promises of the README, against a real PostgreSQL.

mod http;
mod query_expressions;
mod query_support;
