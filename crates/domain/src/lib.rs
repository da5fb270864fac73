//! Intents, records and routes, and every rule about them, as values and functions from values to values.
//!
//! Nothing here reads a clock, opens a socket or waits. Workers call these rules with the data that they have
//! read, and stores write the results.
//!
//! - An intent's life: [`intent`] decodes it against the [`catalog`], [`accept`] decides about a batch,
//!   [`record`] and [`route`] are what is kept, [`outbound`] is what consumers receive.
//!   [`malformed_intent`] is an intent that breaks a rule.
//! - Routes after that: [`backoff`], [`dead_letter`], [`receipt`], and operators' changes in [`operations`],
//!   [`hold`], [`resubmit`] and [`erase`].
//! - After a loss or a change of leader: [`checkpoint`], [`republish`], [`audit`], [`step_down`].
//! - Reading: [`query`] and [`find`] are requests and their documents, [`explanation`] has the sentences,
//!   [`personal`] removes what a reader may not see.
//! - [`ports`] are the interfaces that workers require; only they are asynchronous.

pub mod accept;
pub mod audit;
pub mod backoff;
pub mod catalog;
pub mod checkpoint;
pub mod conflict;
pub mod dead_letter;
pub mod document;
pub mod entry;
pub mod erase;
pub mod explanation;
pub mod find;
pub mod hold;
pub mod intent;
pub mod json;
pub mod malformed_intent;
pub mod operations;
pub mod outbound;
pub mod outcome;
pub mod personal;
pub mod policy;
pub mod ports;
pub mod query;
pub mod receipt;
pub mod recipient;
pub mod record;
pub mod replica;
pub mod republish;
pub mod resubmit;
pub mod route;
pub mod step_down;
pub mod submission;
pub mod trace_parent;
