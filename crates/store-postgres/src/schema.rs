//! The columns that statements of the query builder use, and the names of all tables. `migrations/` explains
//! them.

use pg::rights::RequiredRights;
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

/// The rights that the service needs on each of its tables.
pub(crate) fn required_rights() -> Vec<RequiredRights<'static>> {
    let rights = &["SELECT", "INSERT", "UPDATE", "DELETE"];
    TABLES.iter().map(|table| RequiredRights { table, rights }).collect()
}

/// The names of the tables.
pub(crate) const TABLES: [&str; 15] = [
    "records",
    "routes",
    "dead_letters",
    "malformed_intents",
    "intake",
    "installation",
    "outbound_streams",
    "outbound_names",
    "replicas",
    "activity",
    "activity_parts",
    "operator_actions",
    "console_sessions",
    "holds",
    "held_routes",
];

/// The table of documents that contains the receipts of routes.
pub fn receipts_table() -> TableName {
    // Cannot fail: it is a lower-case word.
    TableName::parse("receipts").expect("the name of a table")
}
