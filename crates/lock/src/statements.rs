//! SQL of the locks. `{locks}` and `{fence_counters}` stand for the names of the two tables.

macro_rules! tolerance_ms {
    () => {
        1000
    };
}

/// The time for which a lease stays live after its end, in milliseconds. Not configurable, because all
/// clients must agree on it.
pub const TIME_TOLERANCE_MS: i64 = tolerance_ms!();
/// The age of purged rows, twice [`TIME_TOLERANCE_MS`]: no client can consider a purged row live.
pub(crate) const PURGE_AFTER_MS: i64 = 2 * TIME_TOLERANCE_MS;

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

/// The server's clock when the row is examined, not when the transaction began: it may have waited in
/// between.
macro_rules! now_ms {
    () => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

/// The condition that a lease is live: until the tolerance has passed. At exactly 1,000 ms after its end it
/// is dead.
macro_rules! is_live {
    () => {
        concat!("expires_at_ms > ", now_ms!(), " - ", tolerance_ms!())
    };
}

/// The length of a lease: the parameter, or else the time from its grant to its end, which is less if it was
/// extended.
macro_rules! length_ms {
    () => {
        "coalesce($2::bigint, expires_at_ms - acquired_at_ms)"
    };
}

/// The condition that a lease was granted or extended by a clock that was ahead of the server's present one.
macro_rules! is_ahead {
    () => {
        concat!("expires_at_ms - ", length_ms!(), " > ", now_ms!(), " + ", tolerance_ms!())
    };
}

macro_rules! live_lock {
    ($condition:literal) => {
        concat!(
            "SELECT user_key, lock_id, expires_at_ms, acquired_at_ms, fence, expires_at_ms + ",
            tolerance_ms!(),
            " - ",
            now_ms!(),
            " AS free_in_ms FROM {locks} WHERE ",
            $condition,
            " AND ",
            is_live!()
        )
    };
}

/// The advisory lock that stands for the session of a grant: the lock's key and the grant's fence.
macro_rules! session_key {
    () => {
        "hashtext($1::text), ($2::bigint % 2147483647)::int"
    };
}

/// A statement that locks the row `$1` and changes it if it is live then: one statement, and so its own
/// transaction. It returns one row: whether the lock exists, and the end of its lease if it was live.
///
/// The plan locks the row before it reads the clock: the change reads its input from `locked_row`, whose
/// `FOR UPDATE` returns the newest version of the row, and only once no other transaction has it locked.
macro_rules! change_if_live {
    ($($change:expr),+) => {
        concat!("
        WITH locked_row AS (SELECT lock_id, expires_at_ms FROM {locks} WHERE lock_id = $1::text FOR UPDATE),
        changed_row AS (
            ", $($change,)+ "
            WHERE lock_id IN (SELECT lock_id FROM locked_row WHERE ", is_live!(), ")
            RETURNING expires_at_ms
        )
        SELECT EXISTS (SELECT 1 FROM locked_row) AS is_present,
            (SELECT expires_at_ms FROM changed_row) AS expires_at_ms")
    };
}

pg::statements! {
    /// Reads, without waiting for another transaction, whether the lease is live, and whether it was written
    /// by a clock that was ahead.
    PEEK = "locks.peek", plan ["locks_pkey"], concat!("
        SELECT ", is_live!(), " AS is_live, ", is_ahead!(), " AS is_ahead FROM {locks} WHERE key = $1::text");

    /// Restarts a lease that was written by a clock that was ahead: its new end is its length from now, which
    /// is not before the end that its holder expects. Without this it would last until the clock has caught
    /// up.
    BEGIN_AGAIN = "locks.begin_again", plan ["locks_pkey"], concat!("
        UPDATE {locks} SET expires_at_ms = ", now_ms!(), " + ", length_ms!(), ",
            acquired_at_ms = least(acquired_at_ms, ", now_ms!(), ")
        WHERE key = $1::text AND ", is_ahead!());

    /// Blocks acquisition of the key by other implementations, which read the rows without locking them,
    /// until the transaction ends.
    LOCK_KEY = "locks.lock_key", plan [], "SELECT pg_advisory_xact_lock(hashtext($1::text))";

    /// Inserts the counter of a key that was never locked.
    ENSURE_COUNTER = "locks.ensure_counter", plan ["fence_counters_pkey"], "
        INSERT INTO {fence_counters} (fence_key, fence, key_debug) VALUES ($1::text, 0, $2::text)
        ON CONFLICT (fence_key) DO NOTHING";

    /// Locks the counter until the transaction ends, so that one client at a time acquires a key.
    LOCK_COUNTER = "locks.lock_counter", plan ["fence_counters_pkey"], "
        SELECT fence FROM {fence_counters} WHERE fence_key = $1::text FOR UPDATE";

    /// Reads whether the lease is live and locks its row until the transaction ends.
    LOCK_ROW = "locks.lock_row", plan ["locks_pkey"], concat!("
        SELECT ", is_live!(), " AS is_live FROM {locks} WHERE key = $1::text FOR UPDATE");

    // MODEL-01
    /// Raises the counter and grants, or does neither; the caller has locked both rows. Returns a row if it
    /// was granted.
    GRANT = "locks.grant", plan ["fence_counters_pkey", "locks_pkey"], concat!("
        WITH counted AS (
            UPDATE {fence_counters} SET fence = fence + 1
            WHERE fence_key = $1::text AND fence < $2::bigint
                AND NOT EXISTS (SELECT 1 FROM {locks} WHERE key = $3::text AND ", is_live!(), ")
            RETURNING fence, ", now_ms!(), " AS now_ms
        )
        INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
        SELECT $3::text, $4::text, now_ms + $5::bigint, now_ms, lpad(fence::text, $6::bigint::int, '0'), $7::text
        FROM counted
        ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms,
            acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence, user_key = excluded.user_key
        RETURNING fence, expires_at_ms");

    /// Sets the end of a live lease to a number of milliseconds from now.
    EXTEND = "locks.extend", plan ["idx_locks_lock_id"], change_if_live!(
        "UPDATE {locks} SET expires_at_ms = ", now_ms!(), " + $2::bigint"
    );

    /// Ends a live lease.
    RELEASE = "locks.release", plan ["idx_locks_lock_id"], change_if_live!("DELETE FROM {locks}");

    /// Locks the session of a grant until it ends. The lock's key and the grant's fence are its name.
    LOCK_SESSION = "locks.lock_session", plan [], concat!("
        SELECT pg_advisory_lock(", session_key!(), ")");

    /// Reads whether the session of a grant is locked. Checks do not exclude each other.
    HAS_SESSION = "locks.has_session", plan [], concat!("
        SELECT NOT pg_try_advisory_xact_lock_shared(", session_key!(), ") AS has_session");

    /// Ends the lease of a grant whose session is not locked.
    RELEASE_ORPHAN = "locks.release_orphan", plan ["locks_pkey"], concat!("
        DELETE FROM {locks}
        WHERE key = $1::text AND fence = lpad($2::bigint::text, $3::bigint::int, '0')
            AND pg_try_advisory_xact_lock_shared(", session_key!(), ")");

    /// Reads a live lock by its key.
    LOOKUP_KEY = "locks.lookup_key", plan ["locks_pkey"], live_lock!("key = $1::text");

    /// Reads a live lock by its id.
    LOOKUP_ID = "locks.lookup_id", plan ["idx_locks_lock_id"], live_lock!("lock_id = $1::text");

    /// Reads the end of a row's lease, and whether it is live.
    LEASE_END = "locks.lease_end", plan ["locks_pkey"], concat!("
        SELECT expires_at_ms, ", is_live!(), " AS is_live FROM {locks} WHERE key = $1::text");

    /// Deletes rows that expired long enough ago, the oldest first; skips rows that another transaction has
    /// locked. The clock is that of the statement's beginning: an index can be searched with it, and it is
    /// never ahead.
    PURGE = "locks.purge", plan ["idx_locks_expires", "locks_pkey"], "
        DELETE FROM {locks} WHERE key IN (
            SELECT key FROM {locks}
            WHERE expires_at_ms < floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - $1::bigint
            ORDER BY expires_at_ms
            LIMIT $2::bigint
            FOR UPDATE SKIP LOCKED
        )";

    /// Raises a counter to a floor, never lowers it, and returns it.
    RAISE_COUNTER = "locks.raise_counter", plan ["fence_counters_pkey"], "
        INSERT INTO {fence_counters} AS c (fence_key, fence, key_debug) VALUES ($1::text, $2::bigint, $3::text)
        ON CONFLICT (fence_key) DO UPDATE SET fence = greatest(c.fence, excluded.fence)
        RETURNING fence";
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use local_servers::{Postgres, PostgresOptions};
    use pg::{Dsn, PgPool, PoolSettings, SessionSettings, check_plan};

    use super::*;
    use crate::TableNames;

    #[tokio::test]
    async fn every_statement_has_the_plan_that_it_claims() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        let names = TableNames::default();
        server.execute("postgres", &crate::schema_sql(&names)).await.expect("tables");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: Duration::from_secs(60),
            session: SessionSettings { application_name: "test", parameters: PLANNER_PARAMETERS },
        };
        let pool = PgPool::new(&dsn, settings).expect("a pool");
        let session = pool.session("explain").await.expect("connects");
        for statement in STATEMENTS {
            assert_eq!(check_plan(&session, &names.of(statement)).await, Ok(()));
        }
    }

    // L-11
    #[test]
    fn a_lease_is_granted_by_the_clock_after_the_wait() {
        let text = GRANT.text().to_lowercase();
        assert!(text.contains("clock_timestamp()") && !text.contains(" now()"), "{text}");
    }

    // L-14
    #[test]
    fn only_locks_are_ever_deleted() {
        for text in STATEMENTS.iter().map(|statement| statement.text()).filter(|text| text.contains("DELETE"))
        {
            assert!(text.contains("DELETE FROM {locks}") && !text.contains("{fence_counters}"), "{text}");
        }
    }
}
