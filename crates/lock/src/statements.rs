//! SQL of the locks, built here and run elsewhere. Each text is the same for every key, so that it is
//! prepared once for each connection.

use pg::bind;
use sea_query::{
    CommonTableExpression, DeleteStatement, DynIden, Expr, ExprTrait, Func, Iden, InsertStatement,
    LockBehavior, LockType, OnConflict, Order, Query, SelectStatement, SubQueryStatement, UpdateStatement,
    WithClause,
};

use crate::fence::{FENCE_DIGITS, FENCE_MAX};
use crate::key::LockKey;
use crate::schema::{FenceCounters, Locks, TableNames};
use crate::{LockId, TIME_TOLERANCE_MS};

/// The server's clock when the row is examined, not when the transaction began: it may have waited in
/// between.
const NOW_MS: &str = "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)";
/// The server's clock when the statement began. An index can be searched with it, and it is never ahead.
const STATEMENT_NOW_MS: &str = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS bigint)";
/// The age of purged rows, twice [`TIME_TOLERANCE_MS`]: no client can consider a purged row live.
const PURGE_AFTER_MS: i64 = 2 * TIME_TOLERANCE_MS;

/// The planner settings that these statements need: each row is reached by an index, with a plan that does
/// not depend on statistics, which are taken while the tables are nearly empty.
pub const PLANNER_PARAMETERS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_sort", "off"),
];

/// The statements on one pair of tables.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    locks: DynIden,
    counters: DynIden,
}

/// The selector of a row of the locks.
#[derive(Clone, Copy)]
pub(crate) enum Selector<'a> {
    Key(&'a LockKey),
    Id(&'a LockId),
}

impl Selector<'_> {
    fn matches(self) -> Expr {
        match self {
            Self::Key(key) => Expr::col(Locks::Key).eq(bind::text(&key.storage)),
            Self::Id(id) => Expr::col(Locks::LockId).eq(bind::text(id.as_str())),
        }
    }
}

/// The raised counter, which the same statement writes to the lock.
#[derive(Iden, Clone, Copy)]
enum Counted {
    Table,
    Fence,
    NowMs,
}

/// The two steps of one statement: lock the row, then change it.
#[derive(Iden, Clone, Copy)]
enum LockStep {
    LockedRow,
    ChangedRow,
}

/// The names of the columns that a statement computes.
#[derive(Iden, Clone, Copy)]
pub(crate) enum Computed {
    IsLive,
    IsAhead,
    IsPresent,
    FreeInMs,
}

/// Returns the condition that a lease is live: until the tolerance has passed. At exactly 1,000 ms after its
/// end it is dead.
fn is_live() -> Expr {
    Expr::col(Locks::ExpiresAtMs).gt(Expr::cust(NOW_MS).sub(bind::bigint(TIME_TOLERANCE_MS)))
}

/// The known length of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseLength {
    /// The time from its grant to its end, or less if it was extended.
    OfGrant,
    /// This many milliseconds, promised by the caller.
    Millis(i64),
}

impl LeaseLength {
    /// Returns the condition that a lease was granted or extended by a clock that was ahead of the server's
    /// present one.
    fn is_ahead(self) -> Expr {
        let (column, length) = match self {
            Self::OfGrant => (Locks::AcquiredAtMs, 0),
            Self::Millis(length) => (Locks::ExpiresAtMs, length),
        };
        Expr::col(column).gt(Expr::cust(NOW_MS).add(bind::bigint(length.saturating_add(TIME_TOLERANCE_MS))))
    }

    fn millis(self) -> Expr {
        match self {
            Self::OfGrant => Expr::col(Locks::ExpiresAtMs).sub(Expr::col(Locks::AcquiredAtMs)),
            Self::Millis(length) => bind::bigint(length),
        }
    }
}

fn is_locked_and_live() -> Expr {
    let live = Query::select().column(Locks::LockId).from(LockStep::LockedRow).and_where(is_live()).take();
    Expr::col(Locks::LockId).in_subquery(live)
}

fn is_counter_of(key: &LockKey) -> Expr {
    Expr::col(FenceCounters::FenceKey).eq(bind::text(&key.fence))
}

impl Statements {
    pub(crate) fn new(names: &TableNames) -> Self {
        Self { locks: names.locks(), counters: names.fence_counters() }
    }

    /// Reads whether the lease is live, without waiting for another transaction.
    pub(crate) fn peek(&self, key: &LockKey) -> SelectStatement {
        let which = Selector::Key(key);
        Query::select()
            .expr_as(is_live(), Computed::IsLive)
            .from(self.locks.clone())
            .and_where(which.matches())
            .take()
    }

    /// Reads the same, and whether the lease was written by a clock that was ahead.
    pub(crate) fn peek_ahead(&self, key: &LockKey, length: LeaseLength) -> SelectStatement {
        self.peek(key).expr_as(length.is_ahead(), Computed::IsAhead).take()
    }

    /// Restarts a lease that was written by a clock that was ahead: it begins now, and ends when its holder
    /// expects it, or later, and not when the clock has caught up.
    pub(crate) fn begin_again(&self, key: &LockKey, length: LeaseLength) -> UpdateStatement {
        Query::update()
            .table(self.locks.clone())
            .value(Locks::ExpiresAtMs, Expr::cust(NOW_MS).add(length.millis()))
            .value(Locks::AcquiredAtMs, Func::least([Expr::col(Locks::AcquiredAtMs), Expr::cust(NOW_MS)]))
            .and_where(Selector::Key(key).matches())
            .and_where(length.is_ahead())
            .take()
    }

    /// Blocks acquisition of the key by other implementations, which read the rows without locking them,
    /// until the transaction ends.
    pub(crate) fn lock_key(&self, key: &LockKey) -> SelectStatement {
        let hash = Func::cust("hashtext").arg(bind::text(&key.storage));
        Query::select().expr(Func::cust("pg_advisory_xact_lock").arg(hash)).take()
    }

    /// Does the same as [`Statements::peek`], locking the row until the transaction ends.
    pub(crate) fn lock_row(&self, key: &LockKey) -> SelectStatement {
        self.peek(key).lock(LockType::Update).take()
    }

    /// Inserts the counter of a key that was never locked.
    pub(crate) fn ensure_counter(&self, key: &LockKey) -> InsertStatement {
        Query::insert()
            .into_table(self.counters.clone())
            .columns([FenceCounters::FenceKey, FenceCounters::Fence, FenceCounters::KeyDebug])
            .values_panic([bind::text(&key.fence), bind::bigint(0), bind::text(&key.user)])
            .on_conflict(OnConflict::column(FenceCounters::FenceKey).do_nothing().to_owned())
            .take()
    }

    /// Locks the counter until the transaction ends, so that one client at a time acquires a key.
    pub(crate) fn lock_counter(&self, key: &LockKey) -> SelectStatement {
        Query::select()
            .column(FenceCounters::Fence)
            .from(self.counters.clone())
            .and_where(is_counter_of(key))
            .lock(LockType::Update)
            .take()
    }

    /// Raises the counter and grants, or does neither; the caller has locked both rows. Returns a row if it
    /// was granted.
    pub(crate) fn grant(&self, key: &LockKey, id: &LockId, ttl_ms: i64) -> InsertStatement {
        let live = self.peek(key).and_where(is_live()).take();
        let count = Query::update()
            .table(self.counters.clone())
            .value(FenceCounters::Fence, Expr::col(FenceCounters::Fence).add(bind::bigint(1)))
            .and_where(is_counter_of(key))
            .and_where(Expr::col(FenceCounters::Fence).lt(bind::bigint(FENCE_MAX as i64)))
            .and_where(Expr::exists(live).not())
            .returning(Query::returning().exprs([Expr::col(FenceCounters::Fence), Expr::cust(NOW_MS)]))
            .take();
        let counted = CommonTableExpression::new()
            .table_name(Counted::Table)
            .columns([Counted::Fence, Counted::NowMs])
            .query(count)
            .to_owned();
        let digits = Func::cust("lpad")
            .arg(Expr::col(Counted::Fence).cast_as("text"))
            .arg(bind::bigint(FENCE_DIGITS as i64).cast_as("int"))
            .arg("0");
        let row = Query::select()
            .exprs([
                bind::text(&key.storage),
                bind::text(id.as_str()),
                Expr::col(Counted::NowMs).add(bind::bigint(ttl_ms)),
                Expr::col(Counted::NowMs),
                Expr::expr(digits),
                bind::text(&key.user),
            ])
            .from(Counted::Table)
            .take();
        let renewed = [Locks::LockId, Locks::ExpiresAtMs, Locks::AcquiredAtMs, Locks::Fence, Locks::UserKey];
        let mut insert = Query::insert();
        insert
            .into_table(self.locks.clone())
            .columns([
                Locks::Key,
                Locks::LockId,
                Locks::ExpiresAtMs,
                Locks::AcquiredAtMs,
                Locks::Fence,
                Locks::UserKey,
            ])
            .on_conflict(OnConflict::column(Locks::Key).update_columns(renewed).to_owned())
            .returning(Query::returning().columns([Locks::Fence, Locks::ExpiresAtMs]))
            .with_cte(counted);
        // Cannot fail: six columns, six expressions.
        insert.select_from(row).expect("as many expressions as columns");
        insert
    }

    /// Sets the end of a live lease to `ttl_ms` from now.
    pub(crate) fn extend(&self, id: &LockId, ttl_ms: i64) -> SelectStatement {
        let change = Query::update()
            .table(self.locks.clone())
            .value(Locks::ExpiresAtMs, Expr::cust(NOW_MS).add(bind::bigint(ttl_ms)))
            .and_where(is_locked_and_live())
            .returning_col(Locks::ExpiresAtMs)
            .take();
        self.changed(id, change)
    }

    /// Ends a live lease.
    pub(crate) fn release(&self, id: &LockId) -> SelectStatement {
        let change = Query::delete()
            .from_table(self.locks.clone())
            .and_where(is_locked_and_live())
            .returning_col(Locks::ExpiresAtMs)
            .take();
        self.changed(id, change)
    }

    /// Locks the row of `id` and changes it if it is live then, in one statement, and so in its own
    /// transaction. Returns one row: whether the lock exists, and the end of its lease if it was live.
    ///
    /// The plan locks the row before it reads the clock: `change` reads its input from `locked_row`, whose
    /// `FOR UPDATE` returns the newest version of the row, and only once no other transaction has it locked.
    fn changed(&self, id: &LockId, change: impl Into<SubQueryStatement>) -> SelectStatement {
        let locked = Query::select()
            .columns([Locks::LockId, Locks::ExpiresAtMs])
            .from(self.locks.clone())
            .and_where(Selector::Id(id).matches())
            .lock(LockType::Update)
            .take();
        let part = |name: LockStep, query: SubQueryStatement| {
            CommonTableExpression::new().table_name(name).query(query).to_owned()
        };
        let present = Query::select().column(Locks::LockId).from(LockStep::LockedRow).take();
        let ends = Query::select().column(Locks::ExpiresAtMs).from(LockStep::ChangedRow).take();
        Query::select()
            .expr_as(Expr::exists(present), Computed::IsPresent)
            .expr_as(Expr::SubQuery(None, Box::new(ends.into())), Locks::ExpiresAtMs)
            .with_cte(
                WithClause::new()
                    .cte(part(LockStep::LockedRow, locked.into()))
                    .cte(part(LockStep::ChangedRow, change.into()))
                    .to_owned(),
            )
            .take()
    }

    pub(crate) fn lookup(&self, which: Selector<'_>) -> SelectStatement {
        Query::select()
            .columns([Locks::UserKey, Locks::LockId, Locks::ExpiresAtMs, Locks::AcquiredAtMs, Locks::Fence])
            .expr_as(
                Expr::col(Locks::ExpiresAtMs).add(bind::bigint(TIME_TOLERANCE_MS)).sub(Expr::cust(NOW_MS)),
                Computed::FreeInMs,
            )
            .from(self.locks.clone())
            .and_where(which.matches())
            .and_where(is_live())
            .take()
    }

    /// Reads the end of a row's lease, and whether it is live; by the primary key.
    pub(crate) fn lease_end(&self, key: &LockKey) -> SelectStatement {
        Query::select()
            .column(Locks::ExpiresAtMs)
            .expr_as(is_live(), Computed::IsLive)
            .from(self.locks.clone())
            .and_where(Selector::Key(key).matches())
            .take()
    }

    /// Deletes rows that expired long enough ago, the oldest first; skips rows that another transaction has
    /// locked.
    pub(crate) fn purge(&self, limit: u64) -> DeleteStatement {
        let expired = Query::select()
            .column(Locks::Key)
            .from(self.locks.clone())
            .and_where(
                Expr::col(Locks::ExpiresAtMs)
                    .lt(Expr::cust(STATEMENT_NOW_MS).sub(bind::bigint(PURGE_AFTER_MS))),
            )
            .order_by(Locks::ExpiresAtMs, Order::Asc)
            .limit(limit)
            .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
            .take();
        Query::delete()
            .from_table(self.locks.clone())
            .and_where(Expr::col(Locks::Key).in_subquery(expired))
            .take()
    }

    /// Raises a counter to `floor`, never lowers it, and returns it.
    pub(crate) fn raise_counter(&self, key: &LockKey, floor: i64) -> InsertStatement {
        let current = Expr::col((self.counters.clone(), FenceCounters::Fence));
        let higher = Func::greatest([current, Expr::cust("excluded.fence")]);
        Query::insert()
            .into_table(self.counters.clone())
            .columns([FenceCounters::FenceKey, FenceCounters::Fence, FenceCounters::KeyDebug])
            .values_panic([bind::text(&key.fence), bind::bigint(floor), bind::text(&key.user)])
            .on_conflict(
                OnConflict::column(FenceCounters::FenceKey).value(FenceCounters::Fence, higher).to_owned(),
            )
            .returning_col(FenceCounters::Fence)
            .take()
    }
}

#[cfg(test)]
mod tests {
    use sea_query::PostgresQueryBuilder;

    use super::*;

    fn statements() -> Statements {
        Statements::new(&TableNames::default())
    }

    // L-11
    #[test]
    fn a_lease_is_granted_by_the_clock_after_the_wait() {
        let key = LockKey::parse("k").expect("a key");
        let text = statements().grant(&key, &LockId::from_bytes([0; 16]), 1).to_string(PostgresQueryBuilder);
        assert!(text.contains("clock_timestamp()") && !text.to_lowercase().contains("now()"), "{text}");
    }

    // L-14
    #[test]
    fn only_locks_are_ever_deleted() {
        let id = LockId::from_bytes([0; 16]);
        let (release, purge) = (statements().release(&id), statements().purge(1));
        for text in [release.to_string(PostgresQueryBuilder), purge.to_string(PostgresQueryBuilder)] {
            assert!(text.contains(r#"DELETE FROM "locks""#) && !text.contains("fence_counters"), "{text}");
        }
    }
}
