//! Checks that a relay can work with a table, and that its indexes make it fast.

use pg::Session;
use pg::parameter::{self, Parameter};
use pg::rights::{self, Grant};

use crate::row_id::column;
use crate::schema::{COLUMNS, INDEXES, TableIndex};
use crate::statements::check::{FUNCTION_RIGHT, INDEXES_OF, MISSING_COLUMNS, TABLE_EXISTS};
use crate::{OutboxError, TableName, statements};

/// The grants that a relay and [`crate::Administration`] need. A relay that compares delivered events with
/// its publisher also calls `pg_control_system()`, which every role may unless that was revoked.
pub fn relay_grants(table: &TableName) -> Vec<Grant> {
    let grant = Grant::on_table(table.table(), &["SELECT", "UPDATE", "DELETE"]);
    vec![match table.schema() {
        Some(schema) => grant.in_schema(schema),
        None => grant,
    }]
}

/// A table that a relay can work with.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// The statements that create the missing indexes, without which the relay is slow. They block no
    /// producer. Empty if no index is missing.
    pub missing_indexes: Vec<String>,
    pub(crate) indexes: Indexes,
}

/// The presence of the indexes that decide how a statement is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Indexes {
    pub(crate) key_order: bool,
    pub(crate) dead: bool,
    pub(crate) delivered: bool,
}

/// The function whose result distinguishes the outbox from those of other clusters.
const IDENTITY_FUNCTION: &str = "pg_control_system()";

/// Checks that the role may read the identity of the outbox, which a relay needs to compare delivered events
/// with its publisher.
pub(crate) async fn check_identity(session: &Session) -> Result<(), OutboxError> {
    let rows = session.query_once(FUNCTION_RIGHT.bind([parameter::text(IDENTITY_FUNCTION)])).await?;
    match rows.first().map(|row| column::<bool>(row, "found")).transpose()? {
        Some(true) => Ok(()),
        _ => Err(OutboxError::NoFunctionRight(IDENTITY_FUNCTION)),
    }
}

/// The name as a text parameter that the server resolves to the table.
fn name(table: &TableName) -> Parameter {
    parameter::text(table.quoted())
}

pub(crate) async fn check(session: &Session, table: &TableName) -> Result<Checked, OutboxError> {
    let rows = session.query_once(TABLE_EXISTS.bind([name(table)])).await?;
    if !rows.first().map(|row| column::<bool>(row, "found")).transpose()?.unwrap_or(false) {
        return Err(OutboxError::NoTable(table.to_string()));
    }
    let columns = missing_columns(session, table).await?;
    if !columns.is_empty() {
        return Err(OutboxError::NoColumns { table: table.to_string(), columns: columns.join(", ") });
    }
    let missing = rights::missing(session, &relay_grants(table)).await?;
    if !missing.is_empty() {
        return Err(OutboxError::NoRights(rights::list(&missing)));
    }
    session.prepare_all(&statements::registry(table)).await?;
    let found = found_indexes(session, table).await?;
    let missing = INDEXES.iter().filter(|index| !found.iter().any(|found| found.is_valid(index)));
    let statement = |index: &TableIndex| {
        let create = index.create(table, "CONCURRENTLY ");
        // An index whose creation failed blocks a second attempt under its name.
        let in_the_way = found.iter().any(|found| found.name == index.name(table) && !found.valid);
        if in_the_way {
            format!("DROP INDEX CONCURRENTLY {}; {create}", index.qualified_name(table))
        } else {
            create
        }
    };
    Ok(Checked { missing_indexes: missing.map(statement).collect(), indexes: decisive(&found) })
}

/// Returns which of the indexes exist that decide how a statement is written.
pub(crate) async fn indexes(session: &Session, table: &TableName) -> Result<Indexes, OutboxError> {
    Ok(decisive(&found_indexes(session, table).await?))
}

fn decisive(found: &[FoundIndex]) -> Indexes {
    let is_there = |index: &TableIndex| found.iter().any(|found| found.is_valid(index));
    Indexes {
        key_order: is_there(&TableIndex::KEY_ORDER),
        dead: is_there(&TableIndex::DEAD),
        delivered: is_there(&TableIndex::DELIVERED),
    }
}

/// An index of the table, with its columns as the server writes them.
struct FoundIndex {
    name: String,
    columns: Vec<String>,
    predicate: String,
    valid: bool,
}

impl FoundIndex {
    /// True if it can replace `index`, whatever its name.
    fn is_valid(&self, index: &TableIndex) -> bool {
        self.valid
            && self
                .columns
                .iter()
                .map(String::as_str)
                .take(index.needed.len())
                .eq(index.needed.iter().copied())
            && index.statuses.iter().all(|status| self.predicate.contains(&format!("'{status}'")))
    }
}

async fn found_indexes(session: &Session, table: &TableName) -> Result<Vec<FoundIndex>, OutboxError> {
    let rows = session.query_once(INDEXES_OF.bind([name(table)])).await?;
    let read = |row| {
        Ok(FoundIndex {
            name: column(row, "name")?,
            columns: column(row, "columns")?,
            predicate: column(row, "predicate")?,
            valid: column(row, "valid")?,
        })
    };
    rows.iter().map(read).collect()
}

/// The columns that are missing or have another type.
async fn missing_columns(session: &Session, table: &TableName) -> Result<Vec<String>, OutboxError> {
    let names = parameter::texts(COLUMNS.iter().map(|(name, _)| *name));
    let rows = session.query_once(MISSING_COLUMNS.bind([name(table), names])).await?;
    let mut missing = Vec::new();
    for (row, (name, expected)) in rows.iter().zip(COLUMNS) {
        match column::<Option<String>>(row, "found")? {
            Some(found) if found == *expected => {}
            Some(found) => missing.push(format!("{name} as {expected} (it is {found})")),
            None => missing.push((*name).to_owned()),
        }
    }
    Ok(missing)
}
