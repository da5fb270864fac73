//! SQL of the keys. The text is the same for every batch size.
//!
//! Every statement that waits for rows locks them in the order of the primary key, by bytes, so that
//! concurrent batches never deadlock. All times are the server's `now()`, the beginning of the transaction.
//! So a statement that waited for a row compares with a time before the wait, which frees no key too early.

use std::collections::HashSet;

use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Statement};

use crate::{ClaimId, ClaimRequest, CompletionRequest, FreeCompletion, KeyLookup, LockTtl};

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

/// The condition that the key of a row `k` is among the parameters. They are compared and sorted by bytes,
/// like the columns.
macro_rules! is_given {
    () => {
        "k.scope = given.scope AND k.key = given.key"
    };
}

/// The condition that a claim `k` was made by a clock that was ahead of the server's present one, by more
/// than clocks of replicas may differ.
macro_rules! is_ahead {
    () => {
        "(k.state = 'pending' AND k.created_at > now() + interval '1 second')"
    };
}

/// The given keys that are claimed or completed.
macro_rules! live {
    () => {
        concat!(
            "SELECT k.scope, k.key, k.state, k.fingerprint,
                ceil(extract(epoch FROM k.expires_at - now()) * 1000)::bigint AS free_in_ms, ",
            is_ahead!(),
            " AS is_ahead, k.response_status, k.response_headers, k.response_body
            FROM given JOIN idempotency_keys k ON ",
            is_given!(),
            " WHERE k.expires_at >= now()"
        )
    };
}

/// Inserts the given keys that are absent, and takes over expired ones. Also resets the columns that are not
/// inserted, so that nothing is left of an expired response.
macro_rules! insert_free {
    ($columns:literal, $values:literal) => {
        concat!(
            "INSERT INTO idempotency_keys AS k (scope, key, token, fingerprint, expires_at, created_at, ",
            $columns,
            ") SELECT scope, key, token, fingerprint, now() + ttl_ms * interval '1 millisecond', now(), ",
            $values,
            " FROM given
            WHERE NOT EXISTS (SELECT 1 FROM idempotency_keys k WHERE ",
            is_given!(),
            " AND k.expires_at >= now())
            ORDER BY scope, key
            ON CONFLICT (scope, key) DO UPDATE SET state = excluded.state, token = excluded.token,
                fingerprint = excluded.fingerprint, response_status = excluded.response_status,
                response_headers = excluded.response_headers, response_body = excluded.response_body,
                expires_at = excluded.expires_at, created_at = excluded.created_at
            WHERE k.expires_at < now()
            RETURNING k.scope, k.key"
        )
    };
}

/// Claims the free keys, and reads the others. The keys are distinct.
///
/// Returns a row for each key that was claimed, with only owner and key, and a row for each key that was live
/// when the statement began. There is no row for a key that another transaction changed meanwhile: the caller
/// tries again. A live key is only read, whatever other transactions do with it.
macro_rules! claim {
    ($condition:literal) => {
        concat!(
            "
        WITH given AS (
            SELECT unnest($1::text[]) COLLATE \"C\" AS scope, unnest($2::text[]) COLLATE \"C\" AS key,
                unnest($3::text[]) COLLATE \"C\" AS token, unnest($4::text[]) COLLATE \"C\" AS fingerprint,
                unnest($5::bigint[]) AS ttl_ms
        ),
        claimed AS (",
            insert_free!("state", "'pending'"),
            ")
        SELECT scope, key, NULL::text AS state, NULL::text AS fingerprint, NULL::bigint AS free_in_ms,
            NULL::boolean AS is_ahead, NULL::int AS response_status, NULL::bytea AS response_headers,
            NULL::bytea AS response_body
        FROM claimed ",
            $condition,
            "
        UNION ALL ",
            live!()
        )
    };
}

/// Locks the given claims that are pending under their token until the transaction ends. `$columns` are
/// further columns of the parameters.
macro_rules! locked {
    ($columns:literal) => {
        concat!(
            "SELECT given.* FROM (
                SELECT unnest($1::bigint[]) AS position, unnest($2::text[]) COLLATE \"C\" AS scope,
                    unnest($3::text[]) COLLATE \"C\" AS key, unnest($4::text[]) COLLATE \"C\" AS token",
            $columns,
            ") AS given
            JOIN idempotency_keys k ON ",
            is_given!(),
            " WHERE k.token = given.token AND k.state = 'pending'
            ORDER BY k.scope, k.key
            FOR UPDATE OF k"
        )
    };
}

pg::statements! {
    /// Reads the keys that are claimed or completed; no row for a free key.
    LOOKUP = "idempotency.lookup", plan ["idempotency_keys_pkey"], concat!("
        WITH given AS (
            SELECT unnest($1::text[]) COLLATE \"C\" AS scope, unnest($2::text[]) COLLATE \"C\" AS key
        ) ", live!());

    /// Claims keys, and waits until the commit is on disk.
    CLAIM = "idempotency.claim", plan ["idempotency_keys_pkey"], claim!("");

    /// Claims keys without waiting for the disk: a crash of the server may lose the most recent claims. The
    /// condition is evaluated once for the statement, before its rows; the setting ends with the transaction.
    CLAIM_ASYNCHRONOUSLY = "idempotency.claim_asynchronously", plan ["idempotency_keys_pkey"],
        claim!("WHERE (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL");

    /// Restarts claims made by a clock that was ahead: they begin now and end when their holders expect it,
    /// not when the clock has caught up. Skips claims that another transaction has locked: another request
    /// restarts them too, or the holder ends its claim.
    BEGIN_AGAIN = "idempotency.begin_again", plan ["idempotency_keys_pkey"], concat!("
        UPDATE idempotency_keys AS k SET expires_at = now() + (k.expires_at - k.created_at), created_at = now()
        FROM (
            SELECT given.* FROM (
                SELECT unnest($1::text[]) COLLATE \"C\" AS scope, unnest($2::text[]) COLLATE \"C\" AS key
            ) AS given
            JOIN idempotency_keys k ON ", is_given!(), " WHERE ", is_ahead!(), "
            FOR UPDATE OF k SKIP LOCKED
        ) AS given
        WHERE ", is_given!());

    /// Stores the responses of free keys; returns owner and key of those. Waits for a transaction that is
    /// taking one of them, and then skips that key. The keys are distinct.
    COMPLETE_FREE = "idempotency.complete_free", plan ["idempotency_keys_pkey"], concat!("
        WITH given AS (
            SELECT unnest($1::text[]) COLLATE \"C\" AS scope, unnest($2::text[]) COLLATE \"C\" AS key,
                unnest($3::text[]) COLLATE \"C\" AS token, unnest($4::text[]) COLLATE \"C\" AS fingerprint,
                unnest($5::bigint[]) AS status, unnest($6::bytea[]) AS headers, unnest($7::bytea[]) AS body,
                unnest($8::bigint[]) AS ttl_ms
        ) ",
        insert_free!(
            "state, response_status, response_headers, response_body",
            "'completed', status::int, headers, body"
        ));

    /// Stores the responses of the claims that the caller still holds; returns their positions.
    COMPLETE = "idempotency.complete", plan ["idempotency_keys_pkey"], concat!("
        UPDATE idempotency_keys AS k
        SET state = 'completed', response_status = given.status::int, response_headers = given.headers,
            response_body = given.body, expires_at = now() + given.ttl_ms * interval '1 millisecond'
        FROM (", locked!(", unnest($5::bigint[]) AS status, unnest($6::bytea[]) AS headers,
                    unnest($7::bytea[]) AS body, unnest($8::bigint[]) AS ttl_ms"), "
        ) AS given
        WHERE ", is_given!(), "
        RETURNING given.position");

    /// Sets the end of the claims that the caller still holds to a time from now; returns their positions.
    EXTEND = "idempotency.extend", plan ["idempotency_keys_pkey"], concat!("
        UPDATE idempotency_keys AS k SET expires_at = now() + $5::bigint * interval '1 millisecond'
        FROM (", locked!(""), ") AS given
        WHERE ", is_given!(), "
        RETURNING given.position");

    /// Deletes the claims that the caller still holds; returns their positions.
    ABANDON = "idempotency.abandon", plan ["idempotency_keys_pkey"], concat!("
        WITH locked AS (", locked!(""), "),
        deleted AS (DELETE FROM idempotency_keys WHERE (scope, key) IN (SELECT scope, key FROM locked))
        SELECT position FROM locked");

    /// Deletes expired keys, the oldest first; skips keys that another transaction has locked.
    SWEEP = "idempotency.sweep", plan ["idempotency_keys_expires_at_idx", "idempotency_keys_pkey"], "
        DELETE FROM idempotency_keys WHERE (scope, key) IN (
            SELECT scope, key FROM idempotency_keys WHERE expires_at < now()
            ORDER BY expires_at
            LIMIT $1::bigint
            FOR UPDATE SKIP LOCKED
        )";
}

pub(crate) fn lookup(keys: &[KeyLookup]) -> BoundStatement {
    LOOKUP.bind([
        parameter::texts(keys.iter().map(|lookup| lookup.owner.as_str())),
        parameter::texts(keys.iter().map(|lookup| lookup.key.as_str())),
    ])
}

/// [`CLAIM`] or [`CLAIM_ASYNCHRONOUSLY`].
pub(crate) fn claim(claim: &Statement, requests: &[&ClaimRequest]) -> BoundStatement {
    let fingerprints = parameter::texts(requests.iter().map(|request| request.fingerprint.as_str()));
    let ttls = parameter::bigints(requests.iter().map(|request| request.lock_ttl.as_millis()));
    claim.bind(ids(requests.iter().map(|request| &request.id)).into_iter().chain([fingerprints, ttls]))
}

pub(crate) fn begin_again<'a>(keys: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> BoundStatement {
    let owners = parameter::texts(keys.clone().map(|(owner, _)| owner));
    BEGIN_AGAIN.bind([owners, parameter::texts(keys.map(|(_, key)| key))])
}

/// Stores the responses of the free keys, by the primary key; returns owner and key of those. Waits for a
/// transaction that is taking one of them, and then skips that key. The keys are distinct.
///
/// For a transaction of the caller, [`pg::Session::prepare`] it and run it with [`pg::Session::change`]:
/// unless it changes as many rows as there are completions, one of the keys is taken.
/// [`crate::complete_free_in`] returns which.
pub fn complete_free(completions: &[FreeCompletion]) -> BoundStatement {
    let each = || completions.iter().map(|free| &free.completion);
    let fingerprints = parameter::texts(completions.iter().map(|free| free.fingerprint.as_str()));
    let ids = ids(each().map(|completion| &completion.id));
    COMPLETE_FREE.bind(ids.into_iter().chain([fingerprints]).chain(answers(each())))
}

/// Stores the responses of the claims that the caller still holds, by the primary key; returns the positions
/// in `completions` of those that were completed.
///
/// For a transaction of the caller, [`pg::Session::prepare`] it and run it with [`pg::Session::change`]:
/// unless it changes as many rows as there are completions, one of them is fenced. [`crate::complete_in`]
/// returns which.
pub fn complete(completions: &[CompletionRequest]) -> BoundStatement {
    let (positions, held) = held(completions.iter().map(|completion| &completion.id));
    COMPLETE.bind(held.into_iter().chain(answers(positions.iter().map(|position| &completions[*position]))))
}

pub(crate) fn extend(ids: &[&ClaimId], lock_ttl: LockTtl) -> BoundStatement {
    let ttl = parameter::bigint(lock_ttl.as_millis());
    EXTEND.bind(held(ids.iter().copied()).1.into_iter().chain([ttl]))
}

pub(crate) fn abandon(ids: &[&ClaimId]) -> BoundStatement {
    ABANDON.bind(held(ids.iter().copied()).1)
}

pub(crate) fn sweep(limit: u64) -> BoundStatement {
    SWEEP.bind([parameter::bigint(i64::try_from(limit).unwrap_or(i64::MAX))])
}

/// The owner, key and token of each claim.
fn ids<'a>(ids: impl Iterator<Item = &'a ClaimId> + Clone) -> [Parameter; 3] {
    [
        parameter::texts(ids.clone().map(|id| id.owner.as_str())),
        parameter::texts(ids.clone().map(|id| id.key.as_str())),
        parameter::texts(ids.map(|id| id.token.to_text())),
    ]
}

/// The position, owner, key and token of each claim, and the positions. If several claims are equal, only the
/// first is included.
fn held<'a>(all: impl Iterator<Item = &'a ClaimId>) -> (Vec<usize>, Vec<Parameter>) {
    let mut seen = HashSet::new();
    let distinct = all.enumerate().filter(|(_, id)| seen.insert(*id));
    let (positions, distinct): (Vec<usize>, Vec<&ClaimId>) = distinct.unzip();
    let numbers = parameter::bigints(positions.iter().map(|position| *position as i64));
    let parameters = [numbers].into_iter().chain(ids(distinct.into_iter())).collect();
    (positions, parameters)
}

/// The responses with their retention TTLs.
fn answers<'a>(completions: impl Iterator<Item = &'a CompletionRequest> + Clone) -> [Parameter; 4] {
    let answers = || completions.clone().map(|completion| &completion.answer);
    [
        parameter::bigints(answers().map(|answer| answer.status.into())),
        parameter::byteas(answers().map(|answer| &*answer.headers)),
        parameter::byteas(answers().map(|answer| &*answer.body)),
        parameter::bigints(completions.clone().map(|completion| completion.retention_ttl.as_millis())),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use local_servers::{Postgres, PostgresOptions};
    use pg::{Dsn, PgPool, PoolSettings, SessionSettings, check_plan};

    use super::*;

    #[tokio::test]
    async fn every_statement_has_the_plan_that_it_claims() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        server.execute("postgres", crate::schema_sql()).await.expect("the table");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: Duration::from_secs(60),
            session: SessionSettings { application_name: "test", parameters: PLANNER_PARAMETERS },
        };
        let pool = PgPool::new(&dsn, settings).expect("a pool");
        let session = pool.session("explain").await.expect("connects");
        for statement in STATEMENTS {
            assert_eq!(check_plan(&session, statement).await, Ok(()));
        }
    }

    // I-13
    #[test]
    fn every_time_is_the_servers() {
        for statement in STATEMENTS {
            let text = statement.text();
            assert!(text.contains("now()") || statement == &ABANDON, "{text}");
            assert!(!text.contains("timestamptz"), "{text}");
        }
    }
}
