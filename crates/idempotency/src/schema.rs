//! The table: its name, its columns and the SQL that creates it.

use pg::rights::Grant;

/// The values of the column `state`.
pub(crate) const PENDING: &str = "pending";
pub(crate) const COMPLETED: &str = "completed";

/// Returns the SQL that creates the table `idempotency_keys` if it does not exist, in the first schema of
/// `search_path`: for the caller's migration, or for [`crate::PostgresStore::setup_schema`].
pub fn schema_sql() -> &'static str {
    include_str!("schema.sql")
}

/// Returns the grants that the role needs.
pub fn required_grants() -> Vec<Grant> {
    vec![Grant::on_table("idempotency_keys", &["SELECT", "INSERT", "UPDATE", "DELETE"])]
}
