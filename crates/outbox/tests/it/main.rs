//! The promises of the README, on both storages. PostgreSQL has a clock that the tests set.

mod claims;
mod contract;
mod delivered_pages;
mod model;
mod postgres;
mod relay;
mod relay_ahead;
mod relay_fixture;
mod relay_loss;
mod relay_postgres;
mod relay_rounds;
mod relay_servers;
mod support;
mod table;
