//! SQL of the outbox, built here and run elsewhere. Each text is the same for every batch size, so that it is
//! prepared once for each connection.
//!
//! Every time is the server's `now()`, the beginning of the transaction. Plans must not depend on statistics,
//! which are taken while a queue is nearly empty. So a row is reached by the primary key, by its place in the
//! table, or by an index whose order and limit leave the planner no choice. Conditions that would let the
//! planner read a whole partial index are written so that they imply the predicate of no index (`status ||
//! ''`).

mod admin;
mod claim;
mod delivered;
mod mark;
mod reap;
mod stats;

pub(crate) use admin::{
    Chunk, Prunable, count_done, count_prunable, cutoff, existing, get, list_done, list_requeueable, prune,
    requeue,
};
pub(crate) use claim::{Claiming, Purpose, claim, claim_begin, due_in};
pub(crate) use delivered::{
    blocks, identity, list_delivered, list_delivered_by_key, newest_delivered, newest_delivered_by_key,
    oldest_claim_until, requeue_as_read, still_as_read,
};
pub(crate) use mark::{LockedRows, deliver, fail, mark_begin, release, still_held};
pub(crate) use reap::{begin_again, expired_leases, reap};
pub(crate) use stats::{count_dead_of_blocks, stats, stats_capped};

use pg::bind;
use sea_query::Expr;

use crate::EventTypes;

/// The planner settings that the statements need.
pub const PLANNER_PARAMETERS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// The parameters of a statement that is being built.
#[derive(Debug, Default)]
struct Parameters(Vec<Expr>);

impl Parameters {
    /// Adds a parameter and returns its placeholder.
    fn add(&mut self, value: Expr) -> String {
        self.0.push(value);
        format!("${}", self.0.len())
    }

    /// Returns the condition that the row `e` is of these types.
    fn types(&mut self, types: &EventTypes) -> String {
        match types {
            EventTypes::All => "true".to_owned(),
            EventTypes::Only(names) => format!("e.event_type = ANY({})", self.add(bind::texts(names))),
        }
    }
}

#[cfg(test)]
mod tests;
