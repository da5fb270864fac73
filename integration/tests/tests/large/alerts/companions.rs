//! The alerts for processes beside the service: relays of outboxes, and the state store.

use harness::{Proxy, Service, ServiceBuilder, TestDatabase, request_unix};

use super::monitor::{Monitor, SERVICE};
use super::{LONG_AFTERWARDS, while_doing};
use crate::outbox::*;
use crate::world::*;

/// A relay with a service beside it, whose job is scraped as well: for a relay alone, the service would count
/// as absent.
async fn relay_beside_service(outbox: &Outbox, redis_port: u16) -> (Service, Service, Monitor) {
    let service = outbox.world.service().start().await;
    let relay = outbox.relay_via(redis_port, outbox.database.port()).start().await;
    let (service_addr, relay_addr) = (service.http_addr(), relay.http_addr());
    let jobs = [(SERVICE, &[service_addr.as_str()][..]), ("notification-relay", &[relay_addr.as_str()])];
    let monitor = Monitor::start_for(&jobs).await;
    monitor.is_quiet("notification_outbox_state").await;
    (service, relay, monitor)
}

#[tokio::test]
async fn a_relay_without_redis_is_paused() {
    let outbox = Outbox::new().await;
    let proxy = Proxy::start(outbox.world.redis.port()).await;
    let (_service, _relay, monitor) = relay_beside_service(&outbox, proxy.port()).await;
    proxy.cut();
    outbox.insert(0..3).await;
    monitor.sees_for("NotificationRelayPaused", LONG_AFTERWARDS).await;
    proxy.heal();
    monitor.calms_down().await;
}

#[tokio::test]
async fn an_event_whose_row_is_locked_lets_the_outbox_grow() {
    let outbox = Outbox::new().await;
    outbox.insert(0..1).await;
    let holder = outbox.database.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM openoutbox_events FOR UPDATE").await.expect("the row is free");
    let (_service, _relay, monitor) = relay_beside_service(&outbox, outbox.world.redis.port()).await;
    monitor.sees("NotificationOutboxGrowing").await;
    holder.batch_execute("ROLLBACK").await.expect("it is open");
    monitor.calms_down().await;
    outbox.drained().await;
}

#[tokio::test]
async fn an_event_that_the_service_would_find_malformed_is_dead_and_reported() {
    let outbox = Outbox::new().await;
    let (_service, _relay, monitor) = relay_beside_service(&outbox, outbox.world.redis.port()).await;
    outbox.execute(&format!("{INSERT} {}", row(0, "game.turn.ready", "{}"))).await;
    outbox.becomes(&event_id(0), "DEAD").await;
    monitor.sees("NotificationOutboxDead").await;
    outbox.execute("DELETE FROM openoutbox_events").await;
    monitor.calms_down().await;
}

#[tokio::test]
async fn a_state_store_without_its_database_is_unavailable() {
    let (world, database) = (World::new().await, TestDatabase::empty().await);
    let service = world.service().start().await;
    let proxy = Proxy::start(database.port()).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("state.sock");
    let store = ServiceBuilder::default()
        .arguments(["state"])
        .env("STATE_PROXY_PG_URL", database.dsn_via(proxy.port()))
        .env("CONNECTOR_SOCKET", socket.to_str().expect("UTF-8"))
        .env("STATE_PROXY_METRICS_ADDR", "127.0.0.1:0")
        .start()
        .await;
    let (service_addr, store_addr) = (service.http_addr(), store.http_addr());
    let jobs = [(SERVICE, &[service_addr.as_str()][..]), ("notification-state", &[store_addr.as_str()])];
    let monitor = Monitor::start_for(&jobs).await;
    let reads = async {
        loop {
            request_unix(&socket, "GET", "/keys/a", &[], "").await.expect("the socket answers");
        }
    };
    let broken = async {
        monitor.is_quiet("state_requests_total").await;
        proxy.cut();
        monitor.sees("NotificationStateUnavailable").await;
    };
    while_doing(reads, broken).await;
}
