//! The grants with which a role that owns nothing can run each mode of the binary.
//!
//! The lists are those of the crates that own the statements; the start checks the same lists.

use lock::TableNames;
use pg::rights::{Grant, grant_sql};

/// The grants for `serve` and every command on the service's schema.
pub(crate) fn of_service() -> Vec<Grant> {
    let mut grants = store_postgres::required_grants();
    grants.extend(store_postgres::users_grants());
    grants.extend(TableNames::default().required_grants());
    grants
}

/// The statements that grant a role what `serve` and every command need.
pub(crate) fn service_sql(schema: &str, role: &str) -> String {
    grant_sql(&of_service(), schema, role)
}

/// The statements that grant a role what a relay and `notification outbox` need on a producer's table.
pub(crate) fn relay_sql(table: &outbox::TableName, schema: &str, role: &str) -> String {
    let schema = table.schema().unwrap_or(schema);
    format!(
        "{}-- A relay also calls pg_control_system(), which every role may unless that was revoked.\n",
        grant_sql(&outbox::relay_grants(table), schema, role)
    )
}

/// The statements that grant a role what the state store needs on a table that exists.
pub(crate) fn state_sql(table: &state::TableName, schema: &str, role: &str) -> String {
    format!(
        "-- The table exists once the state store was started with a role that owns the schema, or may create in it.\n{}",
        grant_sql(&state::required_grants(table), schema, role)
    )
}
