//! What the service promises to the outside, kept while servers are killed under it.
//!
//! One binary, a module a promise. Every test has a database and a Redis of its own; what happened is read from the
//! tables and the streams, as an operator would.

mod accept;
mod api;
mod api_client;
mod api_crash;
mod api_edges;
mod api_races;
mod asyncapi;
mod audit;
mod bad_input;
mod commands_dead_letters;
mod commands_leader;
mod commands_reading;
mod console;
mod console_browser;
mod console_catalogue;
mod crash;
mod dead_letters;
mod directory_load;
mod docs;
mod documents;
mod election;
mod examples;
mod hosts;
mod idle;
mod installations;
mod intake;
mod metrics;
mod openapi;
mod outage;
mod outbox;
mod outbox_page;
mod personal_data;
mod process;
mod publish;
mod receipts;
mod recovery;
mod relay;
mod relay_chaos;
mod relay_commands;
mod relay_crash;
mod relay_input;
mod replicas;
mod republish;
mod retention;
mod schemas;
mod search;
mod start;
mod state;
mod state_page;
mod tls;
mod traces;
mod users;
mod world;
