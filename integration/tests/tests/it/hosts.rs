//! A connection string with several hosts, some of which do not serve; and hosts that are slow to connect to.

use std::time::{Duration, Instant};

use harness::{Postgres, PostgresOptions, Proxy, ServiceBuilder, TestDatabase, wait_for};
use tokio::net::TcpListener;

use crate::world::*;

/// The time that a start may take with two hosts that do not respond.
const START_BOUND: Duration = Duration::from_secs(15);

fn service(world: &World, ports: &[u16], more: &str) -> ServiceBuilder {
    let dsn = format!("{}{more}", world.database.dsn_of_hosts(ports));
    world.service().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn)
}

/// A port without a listener.
async fn refusing() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// A port that accepts connections and never responds.
async fn silent(world: &World) -> Proxy {
    let proxy = Proxy::start(world.database.port()).await;
    proxy.black_hole();
    proxy
}

async fn works(world: &World, intents: std::ops::Range<u32>) {
    world.send(intents.clone()).await;
    world.settled(i64::from(intents.end)).await;
    world.check(0..intents.end).await;
}

#[tokio::test]
async fn a_start_finds_the_host_that_serves_wherever_the_dead_ones_stand() {
    let world = World::new().await;
    let (silent, refusing, good) = (silent(&world).await.port(), refusing().await, world.database.port());
    for (ports, more) in [
        (vec![silent, good], ""),
        (vec![silent, good], "&load_balance_hosts=random"),
        (vec![refusing, silent, good], "&target_session_attrs=read-write"),
        (vec![good, silent], "&load_balance_hosts=random&target_session_attrs=read-write"),
    ] {
        let begun = Instant::now();
        let _service = service(&world, &ports, more).start().await;
        assert!(begun.elapsed() < START_BOUND, "{:?} with {ports:?}{more}", begun.elapsed());
    }
}

#[tokio::test]
async fn migrate_finds_the_host_that_serves() {
    let world = World::with(TestDatabase::empty().await, None).await;
    let silent = silent(&world).await;
    let ports = [silent.port(), world.database.port()];
    let mut migrate = service(&world, &ports, "").arguments(["migrate"]).spawn();
    assert_eq!(migrate.wait_exit(START_BOUND).await.code(), Some(0), "{:?}", migrate.output());
}

#[tokio::test]
async fn a_host_that_takes_no_writes_is_passed_over_if_writes_are_asked_for() {
    let other = Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL starts");
    let world = World::new().await;
    let ports = [other.port(), world.database.port()];
    // It has the role and the database, and would be used without the check.
    let name = world.database.name();
    other
        .create_role_and_schema(name, "notificationservice", "notification")
        .await
        .expect("they can be made");
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    other.execute("postgres", &read_only).await.expect("it can be set");
    let _service = service(&world, &ports, "&target_session_attrs=read-write").start().await;
    works(&world, 0..3).await;
}

#[tokio::test]
async fn a_start_without_a_host_that_serves_names_each_with_its_cause() {
    let world = World::new().await;
    let (silent, refusing) = (silent(&world).await, refusing().await);
    let mut service = service(&world, &[silent.port(), refusing], "").spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
    let output = service.output().join("\n");
    assert!(output.contains(&format!("127.0.0.1:{}: no response within 2s", silent.port())), "{output}");
    let refused = format!("127.0.0.1:{refusing}: error connecting to server: Connection refused");
    assert!(output.contains(&refused), "{output}");
}

#[tokio::test]
async fn a_service_whose_host_stops_answering_continues_with_the_next() {
    let world = World::new().await;
    let (first, second) =
        (Proxy::start(world.database.port()).await, Proxy::start(world.database.port()).await);
    let service = service(&world, &[first.port(), second.port()], "").start().await;
    reads(&service).await;
    works(&world, 0..50).await;
    first.black_hole();
    let since = Instant::now();
    works(&world, 50..100).await;
    // The timeout of the pending operation, and an attempt at the dead host; no other replica could have led
    // meanwhile.
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    wait_for("it leads", BOUND, async || leads(&service).await.then_some(())).await;
}

#[tokio::test]
async fn a_connection_that_takes_a_second_and_a_half_to_open_fails_no_start_and_costs_no_leadership() {
    let world = World::new().await;
    let slow = Proxy::start(world.database.port()).await;
    slow.delay_opening(Duration::from_millis(1_500));
    let service = world.service_via(world.redis.port(), slow.port()).start().await;
    reads(&service).await;
    works(&world, 0..10).await;
    let lock = world.column("SELECT lock_id FROM locks WHERE user_key LIKE 'intake:%'").await;
    slow.drop_connections();
    works(&world, 10..20).await;
    // The next renewal, a third of a term later, has to open a connection.
    let expires = "SELECT max(expires_at_ms) FROM locks WHERE user_key LIKE 'intake:%'";
    let before = world.number(expires).await;
    wait_for("the term is renewed", BOUND, async || (world.number(expires).await > before).then_some(()))
        .await;
    assert_eq!(world.column("SELECT lock_id FROM locks WHERE user_key LIKE 'intake:%'").await, lock);
    assert!(service.logged("a lock was lost").is_none(), "{:?}", service.output());
}
