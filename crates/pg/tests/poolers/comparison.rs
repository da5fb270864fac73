//! Before a connection is used, it is shown that the pooler keeps a session for each client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use pg::{Dsn, PgPool, is_late, is_unusable_pooler};
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[tokio::test]
async fn a_pooler_without_room_for_a_second_connection_is_refused_whatever_its_mode() {
    let server = postgres().await;
    for (pool_mode, pool_size, settings) in [
        ("transaction", 10, &[IGNORED, ("max_client_conn", "1")][..]),
        ("session", 10, &[IGNORED, ("max_client_conn", "1")]),
        ("session", 1, &[IGNORED]),
        ("session", 1, &[IGNORED, ("query_wait_timeout", "1")]),
    ] {
        let pooler = pooler(&server, pool_mode, pool_size, settings).await;
        let error = refusal(pooler.port()).await;
        let case = format!("{pool_mode}, {pool_size} connections, {settings:?}: {error:?}");
        // A retry can succeed: another client may disconnect.
        assert!(!is_unusable_pooler(&error) && is_late(&error), "{case}");
        let error = cause(&error);
        for said in ["could not be shown", "pool_mode = session", "default_pool_size", "max_client_conn"] {
            assert!(error.contains(said), "{said} with {case}");
        }
    }
}

#[tokio::test]
async fn a_pooler_whose_sessions_are_all_in_use_is_refused_and_used_once_there_is_room() {
    let server = postgres().await;
    let pooler = pooler(&server, "session", 2, &[IGNORED]).await;
    let (one, other) = (client(pooler.port(), "postgres").await, client(pooler.port(), "postgres").await);
    for client in [&one, &other] {
        client.batch_execute("SELECT 1").await.expect("it has a session");
    }
    let pool = pool(pooler.port());
    let error = cause(&pool.session("test").await.map(drop).expect_err("no session is free"));
    assert!(error.contains("default_pool_size"), "{error}");
    drop(one);
    let error = cause(&pool.session("test").await.map(drop).expect_err("one session is free"));
    assert!(error.contains("could not be shown"), "{error}");
    drop(other);
    session(&pool).await;
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_is_noticed_although_connections_take_long_to_open() {
    let server = postgres().await;
    let pooler = pooler(&server, "transaction", 5, &[IGNORED]).await;
    let slow = forward(Arc::new(AtomicU16::new(pooler.port())), Duration::from_millis(700)).await;
    let text = format!("postgres://postgres@127.0.0.1:{slow}/postgres?connect_timeout=10");
    let pool = PgPool::new(&Dsn::parse(&text).expect("a connection string"), settings(3)).expect("a pool");
    let error = pool.session("test").await.map(drop).expect_err("it shares sessions");
    assert!(is_unusable_pooler(&error), "{error:?}");
}

#[tokio::test]
async fn a_pooler_that_is_started_again_in_another_mode_is_compared_again() {
    let server = postgres().await;
    let before = pooler(&server, "session", 10, &[IGNORED]).await;
    let target = Arc::new(AtomicU16::new(before.port()));
    let port = forward(target.clone(), Duration::ZERO).await;
    let dsn = dsn(port);
    let pool = PgPool::new(&dsn, settings(3)).expect("a pool");
    drop((session(&pool).await, session(&pool).await));
    // Another pool of the same connection string, whose connection stays idle and is never borrowed again.
    let idle = PgPool::new(&dsn, settings(1)).expect("a pool");
    drop(session(&idle).await);
    drop(before);
    let after = pooler(&server, "transaction", 10, &[IGNORED]).await;
    target.store(after.port(), Ordering::SeqCst);
    let refused = async {
        loop {
            match pool.session("test").await {
                // The end of the connection was not noticed yet.
                Ok(session) => drop(session.execute_batch("SELECT 1").await.expect_err("it has ended")),
                Err(error) if is_unusable_pooler(&error) => break,
                Err(_) => {}
            };
        }
    };
    tokio::time::timeout(3 * TIMEOUT, refused).await.expect("it is noticed");
}

/// A port that leads to `target` and forwards the first message of each connection after a delay.
async fn forward(target: Arc<AtomicU16>, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.expect("a connection");
            let target = target.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let far = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))).await;
                drop(tokio::io::copy_bidirectional(&mut near, &mut far.expect("connects")).await);
            });
        }
    });
    port
}

#[tokio::test]
async fn a_pooler_that_has_shown_that_it_keeps_sessions_serves_as_many_connections_as_it_has() {
    let server = postgres().await;
    let pooler = pooler(&server, "session", 4, &[IGNORED]).await;
    let dsn = dsn(pooler.port());
    let one = PgPool::new(&dsn, settings(2)).expect("a pool");
    let other = PgPool::new(&dsn, settings(2)).expect("a pool");
    // Opened at the same time, so that three of them share one comparison, and the last has no room for
    // another.
    let three = tokio::join!(session(&one), session(&one), session(&other));
    let last = session(&other).await;
    drop((three, last));
}
