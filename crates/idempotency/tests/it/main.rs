//! The promises of the README, on both stores and over HTTP. PostgreSQL has a clock that the tests set.

mod contract;
mod http;
mod http_postgres;
mod kill;
mod model;
mod observed;
mod once;
mod open_transactions;
mod postgres;
mod support;
