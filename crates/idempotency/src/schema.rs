//! The table: its name, its columns and the SQL that creates it.

use pg::rights::RequiredRights;

/// The values of the column `state`.
pub(crate) const PENDING: &str = "pending";
pub(crate) const COMPLETED: &str = "completed";

/// Returns the SQL that creates the table `idempotency_keys` if it does not exist, in the first schema of
/// `search_path`: for the caller's migration, or for [`crate::PostgresStore::setup_schema`].
pub fn schema_sql() -> &'static str {
    include_str!("schema.sql")
}

/// Returns the rights on the table that the role needs.
pub fn required_rights() -> [RequiredRights<'static>; 1] {
    [RequiredRights { table: "idempotency_keys", rights: &["SELECT", "INSERT", "UPDATE", "DELETE"] }]
}
