//! SQL of the keys, built here and run elsewhere. Each text is the same for every batch size, so that it is
//! prepared once for each connection.
//!
//! Every statement that waits for rows locks them in the order of the primary key, by bytes, so that
//! concurrent batches never deadlock. All times are the server's `now()`, the beginning of the transaction.
//! So a statement that waited for a row compares with a time before the wait, which frees no key too early.

use pg::bind;
use pg::sql::unnest;
use sea_query::{
    CommonTableExpression, DeleteStatement, Expr, ExprTrait, Iden, InsertStatement, IntoIden, LockBehavior,
    LockType, OnConflict, Order, Query, SelectStatement, SubQueryStatement, TableRef, UnionType,
    UpdateStatement, WithClause,
};
use tokio_postgres::types::ToSql;

mod held;

pub use self::held::complete;
pub(crate) use self::held::{abandon, extend};
use crate::schema::{COMPLETED, IdempotencyKeys as Keys, PENDING};
use crate::{ClaimRequest, CompletionRequest, FreeCompletion, KeyLookup};

/// The planner settings that these statements need: each row is reached by an index, with a plan that does
/// not depend on statistics, which are taken while the table is nearly empty.
pub const PLANNER_PARAMETERS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// The parameters of a statement as rows, one for each element.
#[derive(Iden, Clone, Copy)]
pub(crate) enum Given {
    Table,
    Position,
    Scope,
    Key,
    Token,
    Fingerprint,
    TtlMs,
    Status,
    Headers,
    Body,
}

const PRIMARY_KEY: [Keys; 2] = [Keys::Scope, Keys::Key];
/// The columns outside the primary key.
const CONTENT: [Keys; 8] = [
    Keys::State,
    Keys::Token,
    Keys::Fingerprint,
    Keys::ResponseStatus,
    Keys::ResponseHeaders,
    Keys::ResponseBody,
    Keys::ExpiresAt,
    Keys::CreatedAt,
];

/// The steps of a statement.
#[derive(Iden, Clone, Copy)]
enum ClaimStep {
    Claimed,
    Locked,
    Deleted,
}

/// The names of the columns that a statement computes.
#[derive(Iden, Clone, Copy)]
enum ClaimColumn {
    FreeInMs,
    IsAhead,
}

fn now() -> Expr {
    Expr::cust("now()")
}

fn from_now(ttl_ms: Expr) -> Expr {
    Expr::cust_with_exprs("now() + $1 * interval '1 millisecond'", [ttl_ms])
}

/// Returns an expression compared and sorted by bytes, like the columns.
fn by_bytes<S: ToSql + AsRef<str>>(texts: impl Iterator<Item = S>) -> Expr {
    Expr::cust_with_exprs("$1 COLLATE \"C\"", [unnest(bind::texts(texts))])
}

/// Returns the condition that a row's key is among the parameters.
fn is_given() -> Expr {
    Expr::col((Keys::Table, Keys::Scope))
        .equals((Given::Table, Given::Scope))
        .and(Expr::col((Keys::Table, Keys::Key)).equals((Given::Table, Given::Key)))
}

fn is_live() -> Expr {
    Expr::col((Keys::Table, Keys::ExpiresAt)).gte(now())
}

/// Returns the condition that a claim was made by a clock that was ahead of the server's present one, by more
/// than clocks of replicas may differ.
fn is_ahead() -> Expr {
    Expr::col((Keys::Table, Keys::State))
        .eq(bind::text(PENDING))
        .and(Expr::cust("idempotency_keys.created_at > now() + interval '1 second'"))
}

/// Restarts claims made by a clock that was ahead: they begin now and end when their holders expect it, not
/// when the clock has caught up. Skips claims that another transaction has locked: another request restarts
/// them too, or the holder ends its claim.
pub(crate) fn begin_again<'a>(keys: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> UpdateStatement {
    let given = Query::select()
        .expr_as(by_bytes(keys.clone().map(|(owner, _)| owner)), Given::Scope)
        .expr_as(by_bytes(keys.map(|(_, key)| key)), Given::Key)
        .take();
    let ahead = Query::select()
        .column((Given::Table, sea_query::Asterisk))
        .from_subquery(given, Given::Table)
        .inner_join(Keys::Table, is_given())
        .and_where(is_ahead())
        .lock_with_tables_behavior(LockType::Update, [Keys::Table], LockBehavior::SkipLocked)
        .take();
    let column = |column: Keys| Expr::col((Keys::Table, column));
    Query::update()
        .table(Keys::Table)
        .value(Keys::ExpiresAt, now().add(column(Keys::ExpiresAt).sub(column(Keys::CreatedAt))))
        .value(Keys::CreatedAt, now())
        .from(TableRef::SubQuery(ahead.into(), Given::Table.into_iden()))
        .and_where(is_given())
        .take()
}

fn step(name: impl IntoIden, query: impl Into<SubQueryStatement>) -> CommonTableExpression {
    CommonTableExpression::new().table_name(name).query(query).to_owned()
}

/// The durability of a claim's commit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ClaimCommit {
    /// The claim waits until its commit is on disk.
    #[default]
    Synchronous,
    /// The claim does not wait: a crash of the server may lose the most recent claims.
    Asynchronous,
}

/// Claims the free keys, and reads the others. The keys of `requests` are distinct.
///
/// Returns a row for each key that was claimed, with only owner and key, and a row for each key that was live
/// when the statement began. There is no row for a key that another transaction changed meanwhile: the caller
/// tries again. A live key is only read, whatever other transactions do with it.
pub(crate) fn claim(requests: &[&ClaimRequest], commit: ClaimCommit) -> SelectStatement {
    let given = Query::select()
        .expr_as(by_bytes(requests.iter().map(|request| request.id.owner.as_str())), Given::Scope)
        .expr_as(by_bytes(requests.iter().map(|request| request.id.key.as_str())), Given::Key)
        .expr_as(by_bytes(requests.iter().map(|request| request.id.token.to_text())), Given::Token)
        .expr_as(by_bytes(requests.iter().map(|request| request.fingerprint.as_str())), Given::Fingerprint)
        .expr_as(
            unnest(bind::bigints(requests.iter().map(|request| request.lock_ttl.as_millis()))),
            Given::TtlMs,
        )
        .take();
    let claimed = Query::select()
        .columns([(ClaimStep::Claimed, Keys::Scope), (ClaimStep::Claimed, Keys::Key)])
        .expr_as(Expr::cust("NULL::text"), Keys::State)
        .expr_as(Expr::cust("NULL::text"), Keys::Fingerprint)
        .expr_as(Expr::cust("NULL::bigint"), ClaimColumn::FreeInMs)
        .expr_as(Expr::cust("NULL::boolean"), ClaimColumn::IsAhead)
        .expr_as(Expr::cust("NULL::int"), Keys::ResponseStatus)
        .expr_as(Expr::cust("NULL::bytea"), Keys::ResponseHeaders)
        .expr_as(Expr::cust("NULL::bytea"), Keys::ResponseBody)
        .from(ClaimStep::Claimed)
        .conditions(
            commit == ClaimCommit::Asynchronous,
            // Evaluated once for the statement, before its rows; the setting ends with the transaction.
            |claimed| {
                let set = "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";
                claimed.and_where(Expr::cust(set));
            },
            |_| {},
        )
        .take();
    let mut statement = claimed;
    statement.union(UnionType::All, live()).with_cte(
        WithClause::new()
            .cte(step(Given::Table, given))
            .cte(step(ClaimStep::Claimed, insert_free()))
            .to_owned(),
    );
    statement.take()
}

/// Reads the given keys that are claimed or completed, by the primary key.
fn live() -> SelectStatement {
    Query::select()
        .columns([
            (Keys::Table, Keys::Scope),
            (Keys::Table, Keys::Key),
            (Keys::Table, Keys::State),
            (Keys::Table, Keys::Fingerprint),
        ])
        .expr_as(
            Expr::cust("ceil(extract(epoch FROM idempotency_keys.expires_at - now()) * 1000)::bigint"),
            ClaimColumn::FreeInMs,
        )
        .expr_as(is_ahead(), ClaimColumn::IsAhead)
        .columns([
            (Keys::Table, Keys::ResponseStatus),
            (Keys::Table, Keys::ResponseHeaders),
            (Keys::Table, Keys::ResponseBody),
        ])
        .from(Given::Table)
        .inner_join(Keys::Table, is_given())
        .and_where(is_live())
        .take()
}

/// Reads the keys that are claimed or completed, by the primary key; no row for a free key.
pub(crate) fn lookup(keys: &[KeyLookup]) -> SelectStatement {
    let given = Query::select()
        .expr_as(by_bytes(keys.iter().map(|lookup| lookup.owner.as_str())), Given::Scope)
        .expr_as(by_bytes(keys.iter().map(|lookup| lookup.key.as_str())), Given::Key)
        .take();
    let mut statement = live();
    statement.with_cte(WithClause::new().cte(step(Given::Table, given)).to_owned());
    statement
}

/// Returns the given keys that are free, in the order of the primary key.
fn free() -> SelectStatement {
    let live = Query::select()
        .column((Keys::Table, Keys::Key))
        .from(Keys::Table)
        .and_where(is_given())
        .and_where(is_live())
        .take();
    Query::select()
        .columns([Given::Scope, Given::Key])
        .from(Given::Table)
        .and_where(Expr::exists(live).not())
        .order_by(Given::Scope, Order::Asc)
        .order_by(Given::Key, Order::Asc)
        .take()
}

/// Stores the responses of the free keys, by the primary key; returns owner and key of those. Waits for a
/// transaction that is taking one of them, and then skips that key. The keys are distinct.
///
/// For a transaction of the caller, [`pg::Session::prepare`] it and run it with [`pg::Session::change`]:
/// unless it changes as many rows as there are completions, one of the keys is taken.
/// [`crate::complete_free_in`] returns which.
pub fn complete_free(completions: &[FreeCompletion]) -> InsertStatement {
    let each = || completions.iter().map(|free| &free.completion);
    let given = Query::select()
        .expr_as(by_bytes(each().map(|completion| completion.id.owner.as_str())), Given::Scope)
        .expr_as(by_bytes(each().map(|completion| completion.id.key.as_str())), Given::Key)
        .expr_as(by_bytes(each().map(|completion| completion.id.token.to_text())), Given::Token)
        .expr_as(by_bytes(completions.iter().map(|free| free.fingerprint.as_str())), Given::Fingerprint)
        .take();
    let given = with_answers(given, each);
    let mut rows = free();
    rows.expr(bind::text(COMPLETED))
        .columns([Given::Token, Given::Fingerprint])
        .expr(Expr::col(Given::Status).cast_as("int"))
        .columns([Given::Headers, Given::Body])
        .expr(from_now(Expr::col(Given::TtlMs)))
        .expr(now());
    let mut insert = insert(PRIMARY_KEY.into_iter().chain(CONTENT), rows);
    insert.with_cte(WithClause::new().cte(step(Given::Table, given)).to_owned());
    insert
}

/// Adds the responses and their retention TTLs to the parameters.
fn with_answers<'a, I: Iterator<Item = &'a CompletionRequest>>(
    mut given: SelectStatement,
    completions: impl Fn() -> I,
) -> SelectStatement {
    let answers = || completions().map(|completion| &completion.answer);
    let ttls = completions().map(|completion| completion.retention_ttl.as_millis());
    given
        .expr_as(unnest(bind::bigints(answers().map(|answer| answer.status.into()))), Given::Status)
        .expr_as(unnest(bind::byteas(answers().map(|answer| &*answer.headers))), Given::Headers)
        .expr_as(unnest(bind::byteas(answers().map(|answer| &*answer.body))), Given::Body)
        .expr_as(unnest(bind::bigints(ttls)), Given::TtlMs)
        .take()
}

/// Inserts the given keys that are absent, and takes over expired ones.
fn insert_free() -> InsertStatement {
    let mut rows = free();
    rows.expr(bind::text(PENDING))
        .columns([Given::Token, Given::Fingerprint])
        .expr(from_now(Expr::col(Given::TtlMs)))
        .expr(now());
    insert(
        [
            Keys::Scope,
            Keys::Key,
            Keys::State,
            Keys::Token,
            Keys::Fingerprint,
            Keys::ExpiresAt,
            Keys::CreatedAt,
        ],
        rows,
    )
}

/// Inserts `rows`, which have these columns, and takes over expired keys.
fn insert(columns: impl IntoIterator<Item = Keys>, rows: SelectStatement) -> InsertStatement {
    // Also resets the columns that are not inserted, so that nothing is left of an expired response.
    let taken_over = OnConflict::columns(PRIMARY_KEY)
        .update_columns(CONTENT)
        .action_and_where(Expr::col((Keys::Table, Keys::ExpiresAt)).lt(now()))
        .to_owned();
    let mut insert = Query::insert();
    insert
        .into_table(Keys::Table)
        .columns(columns)
        .on_conflict(taken_over)
        .returning(Query::returning().columns([(Keys::Table, Keys::Scope), (Keys::Table, Keys::Key)]));
    // Cannot fail: each caller has an expression for each of its columns.
    insert.select_from(rows).expect("as many expressions as columns");
    insert
}

/// Deletes expired keys, the oldest first, by the index on `expires_at`; skips keys that another transaction
/// has locked.
pub(crate) fn sweep(limit: u64) -> DeleteStatement {
    let expired = Query::select()
        .columns([Keys::Scope, Keys::Key])
        .from(Keys::Table)
        .and_where(Expr::col(Keys::ExpiresAt).lt(now()))
        .order_by(Keys::ExpiresAt, Order::Asc)
        .limit(limit)
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
        .take();
    Query::delete()
        .from_table(Keys::Table)
        .and_where(Expr::tuple([Expr::col(Keys::Scope), Expr::col(Keys::Key)]).in_subquery(expired))
        .take()
}

#[cfg(test)]
mod tests;
