//! Tests of the README's promises, against a real PostgreSQL.

mod contract;
mod http;
mod interrupt;
mod model;
mod postgres;
mod query_drawn;
mod query_expressions;
mod query_json;
mod query_model;
mod query_plans;
mod query_relations;
mod query_semantics;
mod query_support;
mod servers;
mod setup;
mod support;
