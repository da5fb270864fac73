//! The tables: the only place where a column is spelled. `migrations/` explains each of them.

use pg::bind;
use sea_query::{Expr, ExprTrait, Func, Iden, InsertStatement, Query, SelectStatement};

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
    RouteId,
    Channel,
    RecipientRef,
    Status,
    AttemptCount,
    MaxAttempts,
    NextAttemptAt,
    ResolvedEmail,
    ResolvedLocale,
    LastErrorClassification,
    LastErrorMessage,
    LastErrorAt,
    CreatedAt,
    UpdatedAt,
    PublishedAt,
    DeadLetteredAt,
    SkippedAt,
    PublishedEntryId,
}

#[derive(Iden, Clone, Copy)]
pub(crate) enum DeadLetters {
    Table,
    NotificationId,
    RouteId,
    Channel,
    RecipientRef,
    FinalAttemptCount,
    MaxAttempts,
    FailureClassification,
    FailureMessage,
    RecoveryHint,
    CreatedAt,
}

#[derive(Iden, Clone, Copy)]
pub(crate) enum MalformedIntents {
    Table,
    Stream,
    StreamEntryId,
    FieldsFingerprint,
    NotificationType,
    Producer,
    IdempotencyKey,
    FailureCode,
    FailureMessage,
    RawFields,
    RecordedAt,
}

#[derive(Iden, Clone, Copy)]
pub(crate) enum Intake {
    Table,
    Stream,
    Fence,
    LastEntryId,
    UpdatedAt,
}

/// A batch of parameters that takes part in a statement as a table.
#[derive(Iden, Clone, Copy)]
pub(crate) enum Given {
    Table,
    NotificationId,
    RouteId,
    Producer,
    IdempotencyKey,
    ExpectedUpdatedAt,
    Status,
    AttemptCount,
    NextAttemptAt,
    Classification,
    Message,
    EntryId,
    RecoveryHint,
    TableName,
}

/// The tables in which the role may not do everything that the service does.
pub(crate) fn tables_without_rights() -> SelectStatement {
    let tables = [
        Records::Table.to_string(),
        Routes::Table.to_string(),
        DeadLetters::Table.to_string(),
        MalformedIntents::Table.to_string(),
        Intake::Table.to_string(),
    ];
    let given = Query::select().expr_as(unnest(bind::texts(tables)), Given::TableName).take();
    let missing = ["SELECT", "INSERT", "UPDATE", "DELETE"]
        .into_iter()
        .map(|right| Expr::cust(format!("NOT has_table_privilege(table_name, '{right}')")))
        .reduce(Expr::or);
    Query::select()
        .column(Given::TableName)
        .from_subquery(given, Given::Table)
        .and_where_option(missing)
        .take()
}

/// Any element of an array parameter, for `column = ANY(array)`: one text for every length.
pub(crate) fn any(array: Expr) -> Expr {
    Expr::expr(Func::cust("ANY").arg(array))
}

/// The elements of an array parameter as rows. Several in one `SELECT` advance together.
pub(crate) fn unnest(array: Expr) -> Expr {
    Expr::expr(Func::cust("UNNEST").arg(array))
}

/// `INSERT INTO table (columns) SELECT values`.
pub(crate) fn insert_rows<T: Iden + Copy + 'static, const N: usize>(
    table: T,
    pairs: [(T, Expr); N],
) -> InsertStatement {
    let mut insert = Query::insert();
    insert.into_table(table).columns(pairs.iter().map(|(column, _)| *column));
    let mut select = Query::select();
    select.exprs(pairs.into_iter().map(|(_, value)| value));
    // Cannot fail: columns and expressions come in pairs.
    insert.select_from(select).expect("as many expressions as columns");
    insert
}
