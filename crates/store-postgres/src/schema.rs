//! The tables: the only place where a column is spelled. `migrations/` explains each of them.

use sea_query::{Expr, Func, Iden, InsertStatement, Query};

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
pub(crate) fn insert_rows<T: Iden + Copy + 'static, const N: usize>(table: T, pairs: [(T, Expr); N]) -> InsertStatement {
    let mut insert = Query::insert();
    insert.into_table(table).columns(pairs.iter().map(|(column, _)| *column));
    let mut select = Query::select();
    select.exprs(pairs.into_iter().map(|(_, value)| value));
    // Cannot fail: columns and expressions come in pairs.
    insert.select_from(select).expect("as many expressions as columns");
    insert
}
