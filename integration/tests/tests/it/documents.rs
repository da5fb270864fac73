//! The tables of documents in the service's own schema.

use std::time::Duration;

use harness::{ServiceBuilder, TestDatabase};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use state::{Key, PostgresStore, Store, TableName, Value, WriteConditions};

use crate::world::World;

const SESSION: SessionSettings =
    SessionSettings { application_name: "test", parameters: state::PLANNER_PARAMETERS };

fn dsn(database: &TestDatabase) -> Dsn {
    Dsn::parse(&database.dsn()).expect("our own connection string")
}

fn store(database: &TestDatabase) -> PostgresStore {
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(10), session: SESSION };
    PostgresStore::new(PgPool::new(&dsn(database), settings).expect("a pool"), TableName::default())
}

/// Every named object of the service's schema, with its identifying properties.
async fn catalogue(database: &TestDatabase) -> Vec<String> {
    let sql = "SELECT 'relation ' || relname || ' ' || oid || ' ' || relfilenode FROM pg_class WHERE relnamespace = 'notification'::regnamespace
        UNION ALL SELECT 'function ' || proname || ' ' || oid || ' ' || xmin FROM pg_proc WHERE pronamespace = 'notification'::regnamespace
        UNION ALL SELECT 'column ' || attrelid::regclass || ' ' || attname || ' ' || xmin FROM pg_attribute
            WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'notification'::regnamespace)
        ORDER BY 1";
    let rows = database.client().await.query(sql, &[]).await.expect("the catalogue can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_state_store_finds_nothing_to_add_to_the_tables_that_the_migrations_make() {
    let database = TestDatabase::new().await;
    let before = catalogue(&database).await;
    for name in ["kv", "receipts"] {
        let table = TableName::parse(name).expect("a name");
        PostgresStore::setup(&dsn(&database), SESSION, &table, &[]).await.expect("it is ready");
        assert!(before.iter().any(|line| line.starts_with(&format!("relation {name} "))), "{before:#?}");
    }
    assert_eq!(catalogue(&database).await, before);
}

#[tokio::test]
async fn documents_that_the_state_store_has_before_the_migrations_stay() {
    let database = TestDatabase::empty().await;
    PostgresStore::setup(&dsn(&database), SESSION, &TableName::default(), &[]).await.expect("it is made");
    let (key, value) = (Key::new("users/u-1").expect("a key"), Value::parse("{}").expect("JSON"));
    let kept = store(&database).put(&key, &value, &WriteConditions::default()).await.expect("it is stored");
    let migrate = ServiceBuilder::default()
        .arguments(["migrate"])
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", database.dsn());
    let outcome = migrate.run().await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let found = store(&database).get(&key).await.expect("PostgreSQL answers").expect("it is there");
    assert_eq!(kept, state::Write::Applied(found.version));
}

#[tokio::test]
async fn receipts_without_rights_end_the_start_with_1_and_the_missing_rights_are_named() {
    for (revoke, missing) in [
        ("REVOKE DELETE ON receipts FROM notificationservice", "DELETE on receipts"),
        (
            "REVOKE ALL ON SEQUENCE receipts_version_seq FROM notificationservice",
            "USAGE on SEQUENCE receipts_version_seq",
        ),
    ] {
        let world = World::new().await;
        world.execute(revoke).await;
        let mut service = world.service().spawn();
        assert_eq!(service.wait_exit(Duration::from_secs(30)).await.code(), Some(1));
        let output = service.output().join("\n");
        assert!(
            output.contains(&format!("the role lacks {missing}; `notification migrate --print-grants`")),
            "{output}"
        );
    }
}
