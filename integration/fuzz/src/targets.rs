//! The targets, by what they parse.

mod bodies;
mod catalogue;
mod configuration;
mod cursors;
mod documents;
mod dsn;
mod entries;
mod events;
mod http1;
mod http2;
mod json;
mod listener;
mod queries;
mod state_http;
mod texts;
mod tokens;

use crate::Target;

/// Every target.
pub const TARGETS: [&Target; 15] = [
    &entries::TARGET,
    &bodies::TARGET,
    &events::TARGET,
    &json::TARGET,
    &catalogue::TARGET,
    &tokens::TARGET,
    &documents::TARGET,
    &queries::TARGET,
    &cursors::TARGET,
    &dsn::TARGET,
    &configuration::TARGET,
    &texts::TARGET,
    &http1::TARGET,
    &http2::TARGET,
    &state_http::TARGET,
];
