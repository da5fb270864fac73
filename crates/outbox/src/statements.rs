//! SQL of the outbox, built here and run elsewhere. Each text is the same for every batch size, so that it is
//! prepared once for each connection.
//!
//! Every time is the server's `now()`, the beginning of the transaction. Plans must not depend on statistics,
//! which are taken while a queue is nearly empty. So a row is reached by the primary key, by its place in the
//! table, or by an index whose order and limit leave the planner no choice. Conditions that would let the
//! planner read a whole partial index are written so that they imply the predicate of no index (`status ||
//! ''`).

mod admin;
pub(crate) mod check;
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
pub(crate) use reap::{begin_again, early_leases, expired_leases, reap};
pub(crate) use stats::{count_dead_of_blocks, stats, stats_capped};

use std::time::Duration;

use pg::parameter::{self, Parameters};
use pg::{RawTimestamp, Statement};
use uuid::Uuid;

use crate::{BatchClaim, ClaimToken, EventTypes, Position, ReapRequest, TableName};

/// The planner settings that the statements need.
pub const PLANNER_PARAMETERS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// Returns the condition that the row `e` is of these types.
fn types_of(parameters: &mut Parameters, types: &EventTypes) -> String {
    match types {
        EventTypes::All => "true".to_owned(),
        EventTypes::Only(names) => {
            format!("e.event_type = ANY ({})", parameters.add(parameter::texts(names)))
        }
    }
}

/// Every statement on the table, with each of its optional conditions. The texts are composed, because the
/// name of the table and the conditions vary.
pub(crate) fn registry(table: &TableName) -> Vec<Statement> {
    let (at, id) = (RawTimestamp::NEG_INFINITY, Uuid::nil());
    let (types, token) = (EventTypes::Only(Vec::new()), ClaimToken(String::new()));
    let request = BatchClaim {
        token: token.clone(),
        types: types.clone(),
        after: Some(Position { available_at: at, created_at: at, event_id: id }),
        limit: 1,
        max_bytes: 1,
        max_event_bytes: 1,
        max_attempts: 1,
        passes_reaped: true,
        set_aside: Vec::new(),
        hurries: false,
    };
    let lease_timeout = Duration::ZERO;
    let reaping = ReapRequest { types: types.clone(), lease_timeout, limit: 1, except: Vec::new() };
    let mut all = vec![
        due_in(table, &types, request.after.as_ref()),
        still_held(table, &token, &[]),
        expired_leases(table, &reaping),
        reap(table, &reaping, &[]),
        early_leases(table, &reaping),
        begin_again(table, &[]),
        identity(table),
        newest_delivered(table, &types, Some(at), 1),
        newest_delivered_by_key(table, &types, Some(id), 1),
        list_delivered(table, &types, at, Some((at, id)), 1),
        list_delivered_by_key(table, &types, at, Some(id), 1),
        blocks(table),
        oldest_claim_until(table, at),
        stats_capped(table, &types, 1, true),
        count_dead_of_blocks(table, &types, 0..1),
        stats(table),
        get(table, id, 0),
        requeue(table, &[]),
        existing(table, &[]),
        cutoff(Duration::ZERO),
    ];
    for claiming in [Claiming::ByKeyIndex, Claiming::ByScan] {
        all.extend([Purpose::Take, Purpose::Look].map(|purpose| claim(table, claiming, purpose, &request)));
    }
    for locks in [LockedRows::Wait, LockedRows::Skip] {
        all.push(deliver(table, &token, &[], locks));
        all.push(release(table, &token, &[], locks));
        all.push(fail(table, &token, &[], locks));
    }
    for which in [Prunable::Delivered, Prunable::Dead] {
        let (cutoff, times) = (at, at..=at);
        all.extend([
            count_prunable(table, which, cutoff),
            prune(table, which, Chunk { from: at, cutoff, limit: 1 }),
            list_done(table, which, Some(""), &times, 1),
            list_requeueable(table, which, Some(""), &times, &[], 1),
            count_done(table, which, Some(""), &times),
            requeue_as_read(table, which, &[]),
            still_as_read(table, which, &[]),
        ]);
    }
    let all = all.into_iter().map(|bound| bound.statement().clone());
    all.chain(check::STATEMENTS.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
