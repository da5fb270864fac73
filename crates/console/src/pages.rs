//! The pages. Each consists of a handler that reads ports and a pure function that renders the values.

pub(crate) mod actions;
pub(crate) mod catalogue;
pub(crate) mod dead_letters;
pub(crate) mod erase;
pub(crate) mod find;
pub(crate) mod holds;
pub(crate) mod malformed_intents;
mod notification;
pub(crate) mod notifications;
pub(crate) mod operations;
pub(crate) mod overview;
mod parts;
pub(crate) mod runbook;
