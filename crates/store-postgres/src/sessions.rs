//! The sessions of console users: the table `console_sessions`. All times are the server's.

use std::time::Duration;

use domain::ports::{SessionHash, SessionStore, SessionSweep, StoreError, TokenHash};
use pg::parameter;

use crate::PgStore;
use crate::codec::{column, corrupt};
use crate::error::store_error;

impl SessionStore for PgStore {
    async fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let session = self.session("insert a session of the console").await?;
        let seconds = parameter::bigint(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX));
        let insert = INSERT.bind([parameter::bytea(id.0), parameter::bytea(token.0), seconds]);
        match session.execute(insert).await.map_err(store_error)? {
            1 => Ok(()),
            rows => Err(corrupt(
                "console_sessions",
                "",
                format!("{rows} rows were written where one was inserted"),
            )),
        }
    }

    async fn get_session(&self, id: &SessionHash) -> Result<Option<TokenHash>, StoreError> {
        let session = self.session("get a session of the console").await?;
        let rows = session.query(GET.bind([parameter::bytea(id.0)])).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let place = "console_sessions.token_sha256";
        let hash: Vec<u8> = column(row, place, "")?;
        let hash = hash.try_into().map_err(|_| corrupt(place, "", "not 32 bytes".to_owned()))?;
        Ok(Some(TokenHash(hash)))
    }

    async fn delete_session(&self, id: &SessionHash) -> Result<u64, StoreError> {
        let session = self.session("delete a session of the console").await?;
        session.execute(DELETE.bind([parameter::bytea(id.0)])).await.map_err(store_error)
    }
}

impl SessionSweep for PgStore {
    async fn sweep_sessions(&self, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete ended sessions of the console").await?;
        session.execute(SWEEP.bind([parameter::rows(limit)])).await.map_err(store_error)
    }
}

pg::statements! {
    /// Inserts a session.
    INSERT = "console_sessions.insert", plan [], "
        INSERT INTO console_sessions (id_sha256, token_sha256, created_at, expires_at)
        VALUES ($1::bytea, $2::bytea, now(), now() + $3::bigint * interval '1 second')";

    /// A session that has not ended.
    GET = "console_sessions.get", plan ["console_sessions_pkey"], "
        SELECT token_sha256 FROM console_sessions WHERE id_sha256 = $1::bytea AND expires_at > now() LIMIT 1";

    /// Deletes a session.
    DELETE = "console_sessions.delete", plan ["console_sessions_pkey"], "
        DELETE FROM console_sessions WHERE id_sha256 = $1::bytea";

    /// Deletes ended sessions. A row that its operator is deleting at the same time is skipped.
    SWEEP = "console_sessions.sweep", plan ["console_sessions_expires_idx", "console_sessions_pkey"], "
        DELETE FROM console_sessions
        WHERE id_sha256 IN (
            SELECT id_sha256 FROM console_sessions
            WHERE expires_at <= now()
            ORDER BY expires_at
            LIMIT $1::bigint
            FOR UPDATE SKIP LOCKED
        )";
}
