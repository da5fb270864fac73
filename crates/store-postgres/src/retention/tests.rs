//! Changes to a record by other transactions while its chunk is locked and not yet deleted.

use std::time::Duration;

use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings};
use tokio_postgres::error::SqlState;

use super::*;
use crate::SESSION;

// INV-14
#[tokio::test]
async fn a_retry_or_a_new_route_that_comes_after_the_locks_changes_nothing() {
    let database = TestDatabase::new().await;
    let operator = database.client().await;
    operator
        .batch_execute(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
                request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             VALUES ('1-0', 't', 'p', 'user', '{}', 'k', 'v1:', now(), now() - interval '31 days', now(), now());
             INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
             VALUES ('1-0', 'push:user:u', 'push', 'user:u', 'dead_letter', 3, now(), now());
             SET lock_timeout = '50ms'",
        )
        .await
        .expect("the statements are right");
    let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(20), session: SESSION };
    let session = PgPool::new(&dsn, settings).expect("a pool").session("test").await.expect("connects");
    let cutoff = Cutoff { at: Timestamp::MAX, age: Duration::from_secs(30 * 24 * 60 * 60) };
    lock_and_count(&session, &["1-0"], cutoff).await.expect("is there");

    let retry = "UPDATE routes SET status = 'pending', next_attempt_at = now() WHERE status = 'dead_letter'";
    let new_route = "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
            created_at, updated_at)
         VALUES ('1-0', 'email:user:u', 'email', 'user:u', 'pending', 7, now(), now(), now())";
    for statement in [retry, new_route] {
        let error = operator.execute(statement, &[]).await.expect_err("it must wait");
        assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{statement}");
    }
    session.execute(delete_records(&["1-0"])).await.expect("is there");
    session.commit().await.expect("is there");
    assert_eq!(operator.execute(retry, &[]).await.expect("is there"), 0);
    let error = operator.execute(new_route, &[]).await.expect_err("its record is gone");
    assert_eq!(error.code(), Some(&SqlState::FOREIGN_KEY_VIOLATION));
}
