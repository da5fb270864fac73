//! The promises of the README, against a real PostgreSQL.

mod contract;
mod model;
mod postgres;
mod query_expressions;
mod query_model;
mod query_support;
mod setup;
mod support;
