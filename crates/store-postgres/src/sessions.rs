//! The sessions of console users: the table `console_sessions`. All times are the server's.

use std::time::Duration;

use domain::ports::{SessionHash, SessionStore, SessionSweep, StoreError, TokenHash};
use pg::sql::insert_rows;
use pg::{PgError, Session, bind};
use sea_query::{
    DeleteStatement, Expr, ExprTrait, InsertStatement, LockBehavior, LockType, Order, Query, SelectStatement,
};

use crate::PgStore;
use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::schema::ConsoleSessions as S;

impl SessionStore for PgStore {
    async fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let session = self.session("insert a session of the console").await?;
        match session.execute(&insert(id, token, lifetime)).await.map_err(store_error)? {
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
        let rows = session.query(&get(id)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let place = "console_sessions.token_sha256";
        let hash: Vec<u8> = column(row, place, "")?;
        let hash = hash.try_into().map_err(|_| corrupt(place, "", "not 32 bytes".to_owned()))?;
        Ok(Some(TokenHash(hash)))
    }

    async fn delete_session(&self, id: &SessionHash) -> Result<u64, StoreError> {
        let session = self.session("delete a session of the console").await?;
        session.execute(&delete(id)).await.map_err(store_error)
    }
}

impl SessionSweep for PgStore {
    async fn sweep_sessions(&self, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete ended sessions of the console").await?;
        session.execute(&sweep(limit)).await.map_err(store_error)
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let id = SessionHash([0; 32]);
    session.prepare(&insert(&id, &TokenHash([0; 32]), Duration::ZERO)).await?;
    session.prepare(&get(&id)).await?;
    session.prepare(&delete(&id)).await?;
    session.prepare(&sweep(1)).await?;
    Ok(())
}

fn insert(id: &SessionHash, token: &TokenHash, lifetime: Duration) -> InsertStatement {
    let lifetime = bind::bigint(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX));
    insert_rows(
        S::Table,
        [
            (S::IdSha256, bind::bytea(id.0)),
            (S::TokenSha256, bind::bytea(token.0)),
            (S::CreatedAt, Expr::cust("now()")),
            (S::ExpiresAt, Expr::cust("now()").add(lifetime.mul(Expr::cust("interval '1 second'")))),
        ],
    )
}

/// A session, by the primary key.
fn get(id: &SessionHash) -> SelectStatement {
    Query::select()
        .column(S::TokenSha256)
        .from(S::Table)
        .and_where(Expr::col(S::IdSha256).eq(bind::bytea(id.0)))
        .and_where(Expr::col(S::ExpiresAt).gt(Expr::cust("now()")))
        .limit(1)
        .take()
}

/// Deletes a session, by the primary key.
fn delete(id: &SessionHash) -> DeleteStatement {
    Query::delete().from_table(S::Table).and_where(Expr::col(S::IdSha256).eq(bind::bytea(id.0))).take()
}

/// Deletes the first rows of `console_sessions_expires_idx`. A row that its operator is deleting at the same
/// time is skipped.
fn sweep(limit: usize) -> DeleteStatement {
    let ended = Query::select()
        .column(S::IdSha256)
        .from(S::Table)
        .and_where(Expr::col(S::ExpiresAt).lte(Expr::cust("now()")))
        .order_by(S::ExpiresAt, Order::Asc)
        .limit(limit as u64)
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
        .take();
    Query::delete().from_table(S::Table).and_where(Expr::col(S::IdSha256).in_subquery(ended)).take()
}
