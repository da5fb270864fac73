//! A process that is killed while its handler runs.

use std::convert::Infallible;
use std::process::Stdio;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use idempotency::{Claim, ClaimRequest, Idempotency, IdempotencySettings, KeyedRequest, PostgresStore};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{BOUND, Db, LOCK, TICK, World, is_pending, pool, request};

/// The variable with the connection string for the process that is killed.
const DSN: &str = "IDEMPOTENCY_TEST_DSN";
const STARTED: &str = "the handler has started";

// I-16
#[tokio::test]
async fn a_key_of_a_killed_process_is_blocked_until_its_lock_ttl_and_then_free() {
    let db = Db::new().await;
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill::the_process_that_is_killed_does_not_end_by_itself", "--nocapture"])
        .env(DSN, db.dsn())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the process starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let started = async {
        while let Some(line) = lines.next_line().await.expect("its output can be read") {
            if line.contains(STARTED) {
                return;
            }
        }
        panic!("it has ended");
    };
    timeout(BOUND, started).await.expect("it runs its handler in time");
    child.kill().await.expect("it is killed");

    assert!(is_pending(&db.claim(&request("k", "f")).await));
    db.pass(LOCK).await;
    assert!(is_pending(&db.claim(&request("k", "f")).await), "until the lock TTL ends");
    db.pass(TICK).await;
    assert_eq!(db.claim(&request("k", "f")).await, Claim::New);
}

/// Runs only as the child of the test above.
#[tokio::test]
async fn the_process_that_is_killed_does_not_end_by_itself() {
    let Ok(dsn) = std::env::var(DSN) else { return };
    let store = Arc::new(PostgresStore::new(pool(&dsn)));
    let once = Idempotency::new(store, IdempotencySettings::default()).expect("valid settings");
    let ClaimRequest { id, fingerprint, .. } = request("k", "f");
    let request = KeyedRequest { owner: id.owner, key: id.key, fingerprint };
    let handler = || async {
        println!("{STARTED}");
        std::future::pending::<Result<Response<Body>, Infallible>>().await
    };
    drop(once.run_once(request, handler).await);
    panic!("it was not killed in time");
}
