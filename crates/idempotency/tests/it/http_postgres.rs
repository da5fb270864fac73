//! The layer on PostgreSQL while the server is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::RETRY_AFTER;
use axum::routing::post;
use idempotency::{
    IDEMPOTENCY_REPLAYED, Idempotency, IdempotencyLayer, IdempotencySettings, LayerOptions, Owner,
    PLANNER_PARAMETERS, PostgresStore,
};
use local_servers::{Postgres, PostgresOptions};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use tower::ServiceExt;

// I-15
#[tokio::test]
async fn without_the_database_nothing_runs_and_after_its_return_everything_does() {
    let mut server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let settings = PoolSettings { max_connections: 2, operation_timeout: Duration::from_secs(4), session };
    let store = Arc::new(PostgresStore::new(PgPool::new(&dsn, settings).expect("a pool")));
    store.setup_schema().await.expect("set up");
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = {
        let runs = runs.clone();
        async move || runs.fetch_add(1, Ordering::SeqCst).to_string()
    };
    let once = Idempotency::new(store, IdempotencySettings::default()).expect("valid settings");
    let layer = IdempotencyLayer::new(once, LayerOptions::default(), |_| Owner::new("all").ok());
    let app = Router::new().route("/orders", post(handler)).layer(layer);
    let send = async |key: &str| {
        let request = Request::post("/orders").header("Idempotency-Key", key).body(Body::empty());
        app.clone().oneshot(request.expect("a request")).await.expect("infallible")
    };
    assert_eq!(send("a").await.status(), 200);
    server.stop().await;
    for key in ["a", "b"] {
        let response = send(key).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    server.start_again().await.expect("it starts again");
    let replayed = send("a").await;
    assert_eq!(
        (replayed.status().as_u16(), &replayed.headers()[IDEMPOTENCY_REPLAYED]),
        (200, &"true".parse().expect("a value"))
    );
    assert_eq!(send("b").await.status(), 200);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
