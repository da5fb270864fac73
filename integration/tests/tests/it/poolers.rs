//! Every mode of the program with PostgreSQL behind a real PgBouncer.

use std::time::Duration;

use harness::{PgBouncer, PgBouncerOptions, ServiceBuilder, request, wait_for};

use crate::outbox::*;
use crate::world::*;

/// The time that a start that cannot succeed may take.
const REFUSAL_BOUND: Duration = Duration::from_secs(60);
/// The time that relays that share sessions may take to claim an event, unless they wait for the pooler.
const NOTICE_BOUND: Duration = Duration::from_secs(5);
/// The setting that an operator finds when looking up PgBouncer's first error message.
const IGNORED: (&str, &str) = ("ignore_startup_parameters", "options,extra_float_digits");

async fn pooler(
    server_port: u16,
    pool_mode: &'static str,
    pool_size: usize,
    settings: &[(&'static str, &'static str)],
) -> PgBouncer {
    let options = PgBouncerOptions {
        pool_mode,
        pool_size,
        settings: settings.to_vec(),
        roles: vec!["notificationservice"],
    };
    PgBouncer::start(server_port, options).await.expect("PgBouncer starts")
}

/// A state store on the table of the service, as its role.
fn state_store(dsn: String) -> ServiceBuilder {
    let builder = ServiceBuilder::default().arguments(["state"]);
    builder.env("STATE_PROXY_PG_URL", dsn).env("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0")
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_in_session_mode_service_relay_state_store_and_commands_work() {
    // The last one keeps the state that each client leaves in its sessions.
    for settings in [&[][..], &[IGNORED], &[IGNORED, ("server_reset_query", "")]] {
        let outbox = Outbox::new().await;
        let pooler = pooler(outbox.database.port(), "session", 60, settings).await;
        let migrate = ServiceBuilder::default()
            .arguments(["migrate"])
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", outbox.world.database.dsn_via(pooler.port()));
        for _ in 0..2 {
            let migrated = migrate.clone().run().await;
            assert_eq!(migrated.code, Some(0), "{settings:?}: {migrated:?}");
        }
        let relay = outbox.relay_via(outbox.world.redis.port(), pooler.port()).start().await;
        let service = outbox.world.service_via(outbox.world.redis.port(), pooler.port()).start().await;
        let message = "PostgreSQL is behind a pooler in session mode; each statement is sent with its text";
        for process in [&relay, &service] {
            assert!(process.logged(message).is_some(), "{:?}", process.output());
        }
        outbox.insert(0..20).await;
        outbox.drained().await;
        outbox.world.send(20..40).await;
        outbox.world.settled(40).await;
        outbox.world.check_audit().await;
        let audit = ServiceBuilder::default()
            .arguments(["audit"])
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", outbox.world.database.dsn_via(pooler.port()))
            .env("NOTIFICATION_REDIS_MASTER_ADDR", outbox.world.redis.addr());
        let audit = audit.run().await;
        assert_eq!(audit.code, Some(0), "{audit:?}");

        let state = state_store(outbox.world.database.dsn_via(pooler.port())).start().await;
        let json = [("Content-Type", "application/json")];
        let put = request(&state.state_addr(), "PUT", "/keys/a", &json, r#"{"n":1}"#).await;
        assert_eq!(put.expect("it answers").status, 204);
        let got = request(&state.state_addr(), "GET", "/keys/a", &[], "").await.expect("it answers");
        assert_eq!((got.status, got.json()["value"]["n"].as_i64()), (200, Some(1)));
        let query = request(&state.state_addr(), "POST", "/query", &json, r#"{"filter":{"n":1}}"#).await;
        assert_eq!(query.expect("it answers").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_ends_every_start_with_1_and_says_what_to_change() {
    let outbox = Outbox::new().await;
    for (pool_mode, pool_size, settings) in [
        ("transaction", 2, &[IGNORED][..]),
        ("transaction", 20, &[]),
        ("transaction", 1, &[IGNORED]),
        ("statement", 20, &[IGNORED]),
    ] {
        let pooler = pooler(outbox.database.port(), pool_mode, pool_size, settings).await;
        let (redis, port) = (outbox.world.redis.port(), pooler.port());
        let dsn = outbox.world.database.dsn_via(port);
        let command = |arguments: &'static [&'static str]| {
            let builder = ServiceBuilder::default().arguments(arguments.iter().copied());
            let builder = builder.env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn.clone());
            builder.env("NOTIFICATION_OUTBOX_DSN", outbox.database.dsn_via(port))
        };
        let processes = [
            outbox.world.service_via(redis, port),
            outbox.relay_via(redis, port),
            state_store(dsn.clone()),
            command(&["migrate"]),
            command(&["list"]),
            command(&["outbox", "stats"]),
            command(&["users", "list"]),
        ];
        for process in processes {
            let case = format!("{pool_mode}, {pool_size} connections, {settings:?}: {process:?}");
            let mut process = process.spawn();
            let code = process.wait_exit(REFUSAL_BOUND).await.code();
            let output = process.output().join("\n");
            assert_eq!(code, Some(1), "{case}\n{output}");
            assert!(output.contains("pool_mode = session"), "{case}\n{output}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_and_has_room_for_one_connection_ends_every_start_with_1() {
    let outbox = &Outbox::new().await;
    let service = |port| outbox.world.service_via(outbox.world.redis.port(), port);
    let relay = |port| outbox.relay_via(outbox.world.redis.port(), port);
    let state = |port| state_store(outbox.world.database.dsn_via(port));
    let command = |arguments: &'static [&'static str], port| {
        let builder = ServiceBuilder::default().arguments(arguments.iter().copied());
        let builder = builder.env("NOTIFICATION_POSTGRES_PRIMARY_DSN", outbox.world.database.dsn_via(port));
        builder.env("NOTIFICATION_OUTBOX_DSN", outbox.database.dsn_via(port))
    };
    let mut poolers = Vec::new();
    for _ in 0..5 {
        let settings = [IGNORED, ("max_client_conn", "1")];
        poolers.push(pooler(outbox.database.port(), "transaction", 20, &settings).await);
    }
    let ports: Vec<_> = poolers.iter().map(PgBouncer::port).collect();
    let processes = [
        service(ports[0]),
        relay(ports[1]),
        state(ports[2]),
        command(&["migrate"], ports[3]),
        command(&["outbox", "stats"], ports[4]),
    ];
    // Concurrently: those that wait for their database take half a minute.
    let processes = processes.map(|process| (format!("{process:?}"), process.spawn()));
    for (case, mut process) in processes {
        let code = process.wait_exit(REFUSAL_BOUND).await.code();
        let output = process.output().join("\n");
        assert_eq!(code, Some(1), "{case}\n{output}");
        for said in ["could not be shown", "pool_mode = session", "max_client_conn"] {
            assert!(output.contains(said), "{said}: {case}\n{output}");
        }
        assert!(!output.contains("behind a pooler in session mode"), "{case}\n{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_whose_pooler_is_changed_to_share_sessions_mark_nothing_that_is_not_on_the_stream() {
    const EVENTS: u32 = 3_000;
    let outbox = Outbox::new().await;
    let mut pooler =
        pooler(outbox.database.port(), "session", 40, &[IGNORED, ("server_lifetime", "1")]).await;
    let relay = || {
        outbox.relay_via(outbox.world.redis.port(), pooler.port()).env("NOTIFICATION_OUTBOX_BATCH_SIZE", "50")
    };
    let (first, second, third) = tokio::join!(relay().start(), relay().start(), relay().start());
    pooler.set_pool("transaction", 2).expect("it is reloaded");
    for begin in (0..EVENTS).step_by(300) {
        // The relays return the events that they have claimed meanwhile, while others are marked.
        outbox.world.redis.pause();
        outbox.insert(begin..begin + 300).await;
        let claimed = wait_for("some are claimed", BOUND, async || {
            (outbox.count("DELIVERING").await > 0).then_some(())
        });
        let is_claimed = tokio::time::timeout(NOTICE_BOUND, claimed).await.is_ok();
        outbox.world.redis.resume();
        if !is_claimed {
            // Every relay has noticed the change, and claims nothing until it is reverted.
            pooler.set_pool("session", 40).expect("it is reloaded");
            outbox.drained().await;
            pooler.set_pool("transaction", 2).expect("it is reloaded");
        }
    }
    let delivered = async || {
        let sql = "SELECT event_id::text FROM openoutbox_events WHERE status = 'DELIVERED'";
        let rows = outbox.database.client().await.query(sql, &[]).await.expect("the query is right");
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
    };
    // Events that are marked first are read first.
    let (marked, keys) = (delivered().await, outbox.keys().await);
    assert_eq!(marked.iter().find(|id| !keys.contains(id)), None, "marked, and not on the stream");
    pooler.set_pool("session", 40).expect("it is reloaded");
    outbox.drained().await;
    wait_for("every event is on the stream", BOUND, async || {
        let keys = outbox.keys().await;
        (0..EVENTS).all(|n| keys.contains(&event_id(n))).then_some(())
    })
    .await;
    drop((first, second, third));
}
