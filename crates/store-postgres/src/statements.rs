//! The registry of named statements: the start prepares each of them, and a test compares their plans with
//! their claims.

use idempotency::statements::{complete, complete_free};
use pg::Statement;

use crate::{
    audit, checkpoint, dead_letters, erase, holds, installation, malformed_intents, operations,
    operator_actions, queries, read_replicas, receipts, records, replicas, republish, resubmit, retention,
    routes, sessions, step_down,
};

/// The statements that run with the settings [`crate::SESSION`], with those of other crates that join the
/// transactions of this one.
pub(crate) fn of_store() -> Vec<Statement> {
    let lists = [
        checkpoint::STATEMENTS,
        dead_letters::STATEMENTS,
        erase::STATEMENTS,
        erase::contents::STATEMENTS,
        holds::STATEMENTS,
        resubmit::STATEMENTS,
        installation::STATEMENTS,
        malformed_intents::STATEMENTS,
        malformed_intents::retention::STATEMENTS,
        operator_actions::STATEMENTS,
        operations::statements::STATEMENTS,
        receipts::STATEMENTS,
        records::STATEMENTS,
        replicas::STATEMENTS,
        republish::STATEMENTS,
        retention::STATEMENTS,
        routes::STATEMENTS,
        routes::complete::STATEMENTS,
        routes::due::STATEMENTS,
        routes::failures::STATEMENTS,
        sessions::STATEMENTS,
        step_down::STATEMENTS,
    ];
    let of_keys = [complete(&[]), complete_free(&[])].map(|bound| bound.statement().clone());
    [lists.concat(), of_keys.into(), state::statements_in(&receipts::TABLE)].concat()
}

/// The statements that run with the settings [`crate::QUERY_SESSION`].
pub(crate) fn of_queries() -> Vec<Statement> {
    let texts = [
        audit::entries::STATEMENTS,
        audit::orphans::STATEMENTS,
        audit::records::STATEMENTS,
        erase::naming::STATEMENTS,
        operations::targets::statements::STATEMENTS,
        read_replicas::STATEMENTS,
    ];
    [texts.concat(), queries::statements()].concat()
}

#[cfg(test)]
mod tests;
