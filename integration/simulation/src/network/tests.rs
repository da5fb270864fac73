//! Calls to servers that stop and hang, and of processes that are killed and paused.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A server, and a connection of one process to it.
fn connected() -> (Arc<Server>, Process, Connection) {
    let (server, process) = (Arc::new(Server::new("s", Duration::from_secs(5))), Process::new("p".into()));
    let connection = Connection::new(&process, &server, 1, &Trace::new(Instant::now(), false));
    (server, process, connection)
}

/// Adds one to the number when the call takes effect.
async fn add(connection: &Connection, number: &AtomicU32) -> Result<(), CallFailure> {
    connection.call("add", || number.fetch_add(1, Ordering::SeqCst)).await.map(|_| ())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_carries_nothing_out() {
    let (server, _, connection) = connected();
    let number = AtomicU32::new(0);
    server.stop();
    assert_eq!(add(&connection, &number).await, Err(CallFailure::Disconnected));
    server.start();
    assert_eq!(add(&connection, &number).await, Ok(()));
    assert_eq!(number.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_leaves_the_effect() {
    let (server, _, connection) = connected();
    let number = AtomicU32::new(0);
    server.set_lost_responses(1_000);
    assert_eq!(add(&connection, &number).await, Err(CallFailure::NoResponse));
    assert_eq!(number.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_before_it_responds_leaves_the_effect_and_an_error() {
    let (server, _, connection) = connected();
    let arrived = connection.request().await.expect("it arrives");
    server.stop();
    server.start();
    assert_eq!(connection.response(arrived).await, Err(CallFailure::Disconnected));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_carries_calls_out_later_or_not_at_all() {
    let (server, _, connection) = connected();
    let number = AtomicU32::new(0);
    server.set_hanging(true);
    let (called, ()) = tokio::join!(add(&connection, &number), async {
        sleep(Duration::from_secs(3)).await;
        server.set_hanging(false);
    });
    assert_eq!((called, number.load(Ordering::SeqCst)), (Ok(()), 1));
    server.set_hanging(true);
    assert_eq!(add(&connection, &number).await, Err(CallFailure::NoResponse));
    assert_eq!(number.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_request_of_a_killed_process_arrives_and_its_response_does_not() {
    let (_, process, connection) = connected();
    let number = Arc::new(AtomicU32::new(0));
    let call = tokio::spawn({
        let (connection, number) = (connection.clone(), Arc::clone(&number));
        async move { add(&connection, &number).await }
    });
    tokio::task::yield_now().await;
    process.kill();
    let waited = tokio::time::timeout(Duration::from_secs(60), call).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(number.load(Ordering::SeqCst), 1);
    let later = tokio::time::timeout(Duration::from_secs(60), add(&connection, &number)).await;
    assert!(later.is_err(), "{later:?}");
    assert_eq!(number.load(Ordering::SeqCst), 1, "it sends nothing more");
}

#[tokio::test(start_paused = true)]
async fn a_paused_process_continues_with_its_calls() {
    let (_, process, connection) = connected();
    let (number, begun) = (AtomicU32::new(0), Instant::now());
    process.pause(Duration::from_secs(7));
    assert_eq!(add(&connection, &number).await, Ok(()));
    assert!(begun.elapsed() >= Duration::from_secs(7));
}
