//! The registry of named statements: the start prepares each of them, and a test compares their plans with
//! their claims.

use pg::Statement;

use crate::{checkpoint, dead_letters, malformed_intents, records, routes};

/// The statements that run with the settings [`crate::SESSION`].
pub(crate) fn of_store() -> Vec<Statement> {
    let lists = [
        checkpoint::STATEMENTS,
        dead_letters::STATEMENTS,
        malformed_intents::STATEMENTS,
        records::STATEMENTS,
        routes::STATEMENTS,
        routes::complete::STATEMENTS,
        routes::due::STATEMENTS,
    ];
    lists.concat()
}

#[cfg(test)]
mod tests;
