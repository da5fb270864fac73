//! The columns that statements of the query builder use, and the names of all tables. `migrations/` explains
//! them.

use pg::rights::Grant;
use sea_query::Iden;
use state::TableName;

#[derive(Iden, Clone, Copy)]
pub(crate) enum Records {
    Table,
    NotificationId,
    NotificationType,
    Producer,
    AudienceKind,
    RecipientUserIds,
    PayloadJson,
    IdempotencyKey,
    RequestFingerprint,
    RequestId,
    TraceId,
    OccurredAt,
    AcceptedAt,
    UpdatedAt,
    IdempotencyExpiresAt,
}

#[derive(Iden, Clone, Copy)]
pub(crate) enum Routes {
    Table,
    NotificationId,
    Channel,
    NextAttemptAt,
    CreatedAt,
}

#[derive(Iden, Clone, Copy)]
pub(crate) enum Replicas {
    Table,
    Replica,
    Version,
    StartedAt,
    SeenAt,
    StoppedAt,
    LeaderOf,
    Workers,
}

const WRITE: &[&str] = &["SELECT", "INSERT", "UPDATE"];
const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// The tables, each with the rights that the statements need.
const TABLES: [(&str, &[&str]); 16] = [
    ("refinery_schema_history", &["SELECT"]),
    ("records", ALL),
    ("routes", ALL),
    ("dead_letters", ALL),
    ("malformed_intents", ALL),
    ("intake", WRITE),
    ("installation", WRITE),
    ("outbound_streams", WRITE),
    ("outbound_names", WRITE),
    ("replicas", ALL),
    ("activity", ALL),
    ("activity_parts", ALL),
    ("operator_actions", ALL),
    ("console_sessions", ALL),
    ("holds", ALL),
    ("held_routes", ALL),
];

/// The grants that a role needs to serve the schema without owning it: for the statements of this crate, and
/// for the idempotency keys and receipts that join its transactions. Those of the locks are in their own
/// crate.
pub fn required_grants() -> Vec<Grant> {
    let tables = TABLES.map(|(table, rights)| Grant::on_table(table, rights));
    let mut grants = tables.to_vec();
    grants.push(Grant::on_function_of_text("payload_document"));
    grants.extend(idempotency::required_grants());
    grants.extend(state::required_grants(&receipts_table()));
    grants
}

/// The grants that a role needs besides if users are documents of the schema.
pub fn users_grants() -> Vec<Grant> {
    state::required_grants(&TableName::default())
}

/// The table of documents that contains the receipts of routes.
pub fn receipts_table() -> TableName {
    // Cannot fail: it is a lower-case word.
    TableName::parse("receipts").expect("the name of a table")
}
