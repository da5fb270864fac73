//! A statement with its parameters, ready to be run once or repeatedly.

use tokio_postgres::Statement;

use crate::statement::BoundStatement;

/// A statement with its parameters.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) bound: BoundStatement,
    /// The statement as the server prepared it. `None` behind a pooler, where its name may refer to another
    /// statement.
    pub(crate) statement: Option<Statement>,
}
