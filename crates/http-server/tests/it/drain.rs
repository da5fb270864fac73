//! Tests of stopping.

use std::time::Duration;

use http_server::ListenerSettings;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::{Client, JSON, LONG, SHORT, WHILE, settings, start};

#[tokio::test]
async fn stopping_closes_idle_connections_and_the_listener() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.get("/one").await.status, 200);
    server.stop.cancel();
    assert_eq!(client.until_closed().await, "");
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    assert!(TcpStream::connect(server.addr).await.is_err(), "still listening");
}

#[tokio::test]
async fn a_request_in_progress_is_answered_after_the_stop() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    client.begin_post("/held", JSON, 2).await;
    client.send("{}").await;
    server.wait_for_held(1).await;
    server.stop.cancel();
    assert!(client.is_silent().await, "closed before its answer");
    server.release.add_permits(1);
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(client.until_closed().await, "");
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
}

#[tokio::test]
async fn connections_are_accepted_until_the_drain_delay_is_over() {
    let server = start(ListenerSettings { drain_delay: Duration::from_secs(2), ..settings() }).await;
    let stopped = Instant::now();
    server.stop.cancel();
    tokio::task::yield_now().await;
    assert_eq!(server.get("/one").await.status, 200);
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    assert!(stopped.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn stopping_does_not_wait_for_requests_that_never_end() {
    let server = start(ListenerSettings { drain_timeout: WHILE, ..settings() }).await;
    let mut half = Client::connect(&server).await;
    half.send("GET /one ").await;
    let mut busy = Client::connect(&server).await;
    busy.begin_post("/held", JSON, 2).await;
    busy.send("{}").await;
    server.wait_for_held(1).await;
    server.stop.cancel();
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
}

#[tokio::test]
async fn a_full_listener_stops_too() {
    let server = start(ListenerSettings { max_connections: 1, drain_timeout: SHORT, ..settings() }).await;
    let mut busy = Client::connect(&server).await;
    busy.begin_post("/held", JSON, 2).await;
    busy.send("{}").await;
    server.wait_for_held(1).await;
    let _waiting = Client::connect(&server).await;
    server.stop.cancel();
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
}
