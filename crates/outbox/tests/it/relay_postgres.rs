//! The relay on PostgreSQL: woken by announcements, and through an outage of the server.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use local_servers::{Postgres, PostgresOptions};
use outbox::{
    Administration, ChannelName, Deadline, Event, NewEvent, PLANNER_PARAMETERS, PostgresStorage, Publication,
    Publisher, PublisherOutage, Relay, RelayId, RelaySettings, RelayState, ServerNumber, TableName, enqueue,
};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Db, World, id, until};

/// A publisher that accepts everything.
#[derive(Clone, Default)]
struct Stand(Arc<Mutex<Vec<Uuid>>>);

impl Stand {
    fn published(&self) -> Vec<Uuid> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Publisher for Stand {
    async fn deadline(&self, _: Duration) -> Result<Deadline, PublisherOutage> {
        Ok(Deadline { unix_ms: 0, server: ServerNumber::default() })
    }

    async fn publish(&self, events: &[Event], _: Deadline) -> Result<Vec<Publication>, PublisherOutage> {
        self.0.lock().expect("no panic").extend(events.iter().map(|event| event.event_id));
        Ok(events.iter().map(|_| Publication::Done).collect())
    }
}

fn settings(poll_interval: Duration) -> RelaySettings {
    RelaySettings { poll_interval, ..RelaySettings::new(RelayId::parse("relay").expect("a name")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_is_woken_by_an_insert_and_listens_again_after_its_connection_ended() {
    let db = Db::new().await;
    let channel = ChannelName::parse("New \"Events\"").expect("a name");
    db.administration().migrate(Some(&channel)).await.expect("made");
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    // A poll interval so long that only an announcement can wake the relay.
    let relay = Relay::new(db.storage().clone(), stand.clone(), (), settings(Duration::from_secs(3_600)));
    let relay = relay.listening(Dsn::parse(db.dsn()).expect("a DSN"), channel);
    let until_stop = stop.clone();
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let is_listening = async || db.value::<i64>(listening).await == 1;
    until("listening", is_listening).await;
    for number in 1..=2 {
        db.insert_before(number, "k").await;
        until("an event that is published", async || stand.published().last() == Some(&id(number))).await;
    }
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'").await;
    // An event inserted while the relay does not listen is found once it listens again.
    db.insert_before(3, "k").await;
    until("another that is published", async || stand.published().last() == Some(&id(3))).await;
    until("listening again", is_listening).await;
    db.insert_before(4, "k").await;
    until("the last that is published", async || stand.published().last() == Some(&id(4))).await;
    stop.cancel();
    task.await.expect("it does not panic");
    assert_eq!(db.status(id(4)).await, "DELIVERED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_another_client_has_locked_pauses_the_relay_until_it_is_free() {
    let db = Db::new().await;
    db.insert_before(1, "k").await;
    let (mut client, connection) =
        tokio_postgres::connect(db.dsn(), tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(async move { drop(connection.await) });
    let locking = client.transaction().await.expect("begun");
    // Reading the table is still allowed.
    locking.batch_execute("LOCK TABLE test.openoutbox_events IN EXCLUSIVE MODE").await.expect("locked");
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    let relay = Relay::new(db.storage().clone(), stand.clone(), (), settings(Duration::from_millis(20)));
    let (status, until_stop) = (relay.status(), stop.clone());
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    until("a pause", async || matches!(status.state(), RelayState::Paused { .. })).await;
    locking.rollback().await.expect("free again");
    until("the event that is published", async || stand.published() == [id(1)]).await;
    until("its end", async || status.state() == RelayState::Running).await;
    stop.cancel();
    task.await.expect("it does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_waits_for_a_database_that_is_unavailable_and_goes_on_by_itself() {
    let mut server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let pool_settings =
        PoolSettings { max_connections: 4, operation_timeout: Duration::from_secs(2), session };
    let pool = PgPool::new(&dsn, pool_settings).expect("a pool");
    let table = TableName::default();
    let administration = Administration::new(pool.clone(), table.clone());
    administration.migrate(None).await.expect("made");
    let write = async |number: u64| {
        let session = pool.session("write").await.expect("is there");
        session.begin().await.expect("begun");
        let event = NewEvent { event_id: id(number), ..NewEvent::new("t", "x") };
        enqueue(&session, &table, &event).await.expect("written");
        session.commit().await.expect("committed");
    };
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    let storage = PostgresStorage::new(pool.clone(), table.clone());
    let relay = Relay::new(storage, stand.clone(), (), settings(Duration::from_millis(20)));
    let (status, until_stop) = (relay.status(), stop.clone());
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    write(1).await;
    until("an event that is published", async || stand.published() == [id(1)]).await;
    server.kill().await;
    until("a pause", async || matches!(status.state(), RelayState::Paused { .. })).await;
    server.start_again().await.expect("it starts again");
    until("its end", async || status.state() == RelayState::Running).await;
    write(2).await;
    until("another that is published", async || stand.published().contains(&id(2))).await;
    stop.cancel();
    task.await.expect("it does not panic");
    let event = administration.get_event(id(2)).await.expect("read").expect("it exists").event;
    assert_eq!((&*event.status, event.attempts), ("DELIVERED", 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_whose_keys_recur_in_every_claim_is_drained_in_order_without_waiting_for_a_poll() {
    let db = Db::new().await;
    let key = |number: u64| number % 10;
    for number in 1..=60 {
        db.add(number, &format!("k{}", key(number))).await;
    }
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    // No key recurs within a claim, so its marks are made during the next one, which may find all of its keys
    // held.
    let settings = RelaySettings { batch_size: 10, ..settings(Duration::from_secs(3_600)) };
    let relay = Relay::new(db.storage().clone(), stand.clone(), (), settings);
    let until_stop = stop.clone();
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    until("all are published", async || stand.published().len() >= 60).await;
    stop.cancel();
    task.await.expect("it does not panic");
    let published = stand.published();
    for of_key in 0..10 {
        let expected: Vec<Uuid> = (1..=60).filter(|number| key(*number) == of_key).map(id).collect();
        let found: Vec<Uuid> = published.iter().filter(|id| expected.contains(id)).copied().collect();
        assert_eq!(found, expected, "key {of_key}");
    }
    for number in 1..=60 {
        assert_eq!(db.status(id(number)).await, "DELIVERED");
    }
}

/// Starts a relay on `db`; returns its publisher, its stop token and its task.
async fn running(db: &Db) -> (Stand, CancellationToken, tokio::task::JoinHandle<()>) {
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    let relay = Relay::new(db.storage().clone(), stand.clone(), (), settings(Duration::from_millis(20)));
    let until_stop = stop.clone();
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    (stand, stop, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_the_table_refuses_to_have_claimed_stop_their_keys_and_no_other() {
    let db = Db::new().await;
    for number in 1..=50 {
        db.add(number, if number % 10 == 3 { "k" } else { "" }).await;
    }
    db.execute(&format!(
        "UPDATE openoutbox_events SET payload = convert_to(repeat('x', 2000), 'UTF8') WHERE event_id IN ('{}', '{}');
         ALTER TABLE openoutbox_events ADD CHECK (octet_length(payload) < 1000) NOT VALID",
        id(13),
        id(30)
    ))
    .await;
    let (stand, stop, task) = running(&db).await;
    until("all others are published", async || stand.published().len() >= 45).await;
    db.add(51, "").await;
    until("a later one", async || stand.published().contains(&id(51))).await;
    stop.cancel();
    task.await.expect("it does not panic");
    let published = stand.published();
    assert!(published.contains(&id(3)), "it comes before the one that is refused");
    for waits in [13, 23, 30, 33, 43] {
        assert!(!published.contains(&id(waits)), "{waits}");
        assert_eq!(db.status(id(waits)).await, "PENDING");
    }
    assert_eq!(published.len(), 46);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_whose_trigger_skips_the_claim_or_raises_the_codes_of_an_outage_stop_their_keys_and_no_other()
{
    for body in [
        "RETURN NULL",
        "RAISE 'no' USING ERRCODE = '40001'",
        "RAISE 'no' USING ERRCODE = 'disk_full'",
        "PERFORM lastval()",
        "PERFORM FROM missing_table",
    ] {
        let db = Db::new().await;
        for number in 1..=30 {
            db.add(number, if number % 10 == 3 { "k" } else { "" }).await;
        }
        db.execute(&format!(
            "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$;
             CREATE TRIGGER skip BEFORE UPDATE ON openoutbox_events FOR EACH ROW
             WHEN (OLD.event_id IN ('{}', '{}')) EXECUTE FUNCTION skip()",
            id(13),
            id(20)
        ))
        .await;
        let (stand, stop, task) = running(&db).await;
        until("all others are published", async || stand.published().len() >= 27).await;
        db.add(31, "").await;
        until("a later one", async || stand.published().contains(&id(31))).await;
        stop.cancel();
        task.await.expect("it does not panic");
        let published = stand.published();
        assert_eq!(published.len(), 28, "{body}");
        assert!(published.contains(&id(3)), "it comes before the one that is skipped");
        for waits in [13, 20, 23] {
            assert!(!published.contains(&id(waits)), "{body}: {waits}");
            assert_eq!(db.status(id(waits)).await, "PENDING");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_events_in_a_row_that_fail_like_an_outage_stop_no_other_and_are_published_once_they_succeed() {
    let db = Db::new().await;
    for number in 1..=70 {
        db.add(number, "").await;
    }
    db.execute(&format!(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM lastval(); RETURN NEW; END $$;
         CREATE TRIGGER fail BEFORE UPDATE ON openoutbox_events FOR EACH ROW
         WHEN (OLD.event_id <= '{}') EXECUTE FUNCTION fail()",
        id(50)
    ))
    .await;
    let (stand, stop, task) = running(&db).await;
    until("the others are published", async || stand.published().len() >= 20).await;
    assert!((51..=70).all(|number| stand.published().contains(&id(number))));
    db.execute("DROP TRIGGER fail ON openoutbox_events").await;
    stop.cancel();
    task.await.expect("it does not panic");
    let (stand, stop, task) = running(&db).await;
    until("all are published", async || stand.published().len() >= 50).await;
    stop.cancel();
    task.await.expect("it does not panic");
    assert_eq!(stand.published().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_fails_for_every_event_sets_none_aside() {
    let db = Db::new().await;
    for number in 1..=30 {
        db.add(number, "").await;
    }
    db.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'no' USING ERRCODE = 'disk_full'; END $$;
         CREATE TRIGGER fail BEFORE UPDATE ON openoutbox_events FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    .await;
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    let relay = Relay::new(db.storage().clone(), stand.clone(), (), settings(Duration::from_millis(20)));
    let (status, until_stop) = (relay.status(), stop.clone());
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    let is_paused = || matches!(status.state(), RelayState::Paused { .. });
    until("it is paused", async || is_paused()).await;
    let paused = Instant::now();
    let RelayState::Paused { waiting_for } = status.state() else { panic!("it is paused") };
    assert!(waiting_for.contains(&id(7).to_string()), "{waiting_for}");
    until("it is still paused a second later", async || {
        assert!(is_paused(), "it says that it runs although every claim fails");
        paused.elapsed() >= Duration::from_secs(1)
    })
    .await;
    db.execute("DROP TRIGGER fail ON openoutbox_events").await;
    let begun = Instant::now();
    until("all are published", async || stand.published().len() >= 30).await;
    assert!(begun.elapsed() < Duration::from_secs(50), "an event that is set aside waits for a minute");
    stop.cancel();
    task.await.expect("it does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_the_table_refuses_to_have_marked_keeps_no_other_from_its_mark() {
    let db = Db::new().await;
    for number in 1..=50 {
        db.add(number, "").await;
    }
    db.execute(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'check_violation'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON openoutbox_events FOR EACH ROW
         WHEN (OLD.event_id = '{}' AND NEW.status = 'DELIVERED') EXECUTE FUNCTION refuse()",
        id(7)
    ))
    .await;
    let (stand, stop, task) = running(&db).await;
    let delivered = "SELECT count(*) FROM openoutbox_events WHERE status = 'DELIVERED'";
    until("the others are marked", async || db.value::<i64>(delivered).await == 49).await;
    db.add(51, "").await;
    until("a later one is marked", async || db.status(id(51)).await == "DELIVERED").await;
    stop.cancel();
    task.await.expect("it does not panic");
    assert_eq!(db.status(id(7)).await, "DELIVERING", "until its lease ends");
    assert_eq!(stand.published().len(), 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_takes_too_long_is_halved_until_it_does_not() {
    let db = Db::new().await;
    for number in 1..=100 {
        db.add(number, "").await;
    }
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE UPDATE ON openoutbox_events FOR EACH ROW
         WHEN (NEW.status = 'DELIVERING') EXECUTE FUNCTION slow()",
    )
    .await;
    let dsn = Dsn::parse(&format!("{}?search_path=test,pg_catalog", db.dsn())).expect("a DSN");
    let session = SessionSettings { application_name: "", parameters: PLANNER_PARAMETERS };
    let timeout = Duration::from_secs(1);
    let pool = PgPool::new(&dsn, PoolSettings { max_connections: 4, operation_timeout: timeout, session });
    let storage = PostgresStorage::new(pool.expect("a pool"), TableName::default());
    let (stand, stop) = (Stand::default(), CancellationToken::new());
    let relay = Relay::new(storage, stand.clone(), (), settings(Duration::from_millis(20)));
    let until_stop = stop.clone();
    let task = tokio::spawn(async move { relay.run(until_stop).await });
    until("all are published", async || stand.published().len() >= 100).await;
    stop.cancel();
    task.await.expect("it does not panic");
}
