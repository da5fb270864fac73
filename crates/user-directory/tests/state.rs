//! The directory on documents of a real PostgreSQL.

use std::time::Duration;

use domain::ports::{Lookup, User, UserDirectory};
use harness::contract::directory::DirectoryFixture;
use harness::{Postgres, PostgresOptions, TestDatabase};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use state::{Key, PostgresStore, StateError, TableName, Value};
use tokio_postgres::Client;
use user_directory::{StateDirectorySettings, StateUserDirectory, USERS_PREFIX};

const SESSION: SessionSettings =
    SessionSettings { application_name: "test", parameters: state::PLANNER_PARAMETERS };

fn store(database: &TestDatabase, operation_timeout: Duration) -> PostgresStore {
    let dsn = Dsn::parse(&database.dsn()).expect("our own connection string");
    let settings = PoolSettings { max_connections: 2, operation_timeout, session: SESSION };
    PostgresStore::new(PgPool::new(&dsn, settings).expect("a pool"), TableName::default())
}

fn directory(store: &PostgresStore, cache_ttl: Duration) -> StateUserDirectory<PostgresStore> {
    let settings = StateDirectorySettings { concurrency: 2, cache_ttl, cache_entries: 100 };
    StateUserDirectory::new(store.clone(), settings)
}

async fn put(store: &PostgresStore, user_id: &str, text: &str) {
    let key = Key::new(&format!("{USERS_PREFIX}{user_id}")).expect("a key");
    store.put_many(&[(key, Value::parse(text).expect("JSON"))]).await.expect("it is stored");
}

fn found(email: &str, language: &str) -> Lookup {
    Lookup::Found(User { email: email.to_owned(), preferred_language: language.to_owned() })
}

/// A directory whose table is a view; a row can make the statement fail.
struct InPostgres {
    rows: Client,
    directory: StateUserDirectory<PostgresStore>,
}

impl InPostgres {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let rows = database.client().await;
        let view = "ALTER TABLE kv RENAME TO kv_rows;
            CREATE FUNCTION fail() RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'this row fails'; END $$;
            CREATE VIEW kv AS SELECT key, CASE WHEN value @> '\"fail\"' THEN fail() ELSE value END AS value FROM kv_rows;
            GRANT SELECT ON kv TO notificationservice";
        rows.batch_execute(view).await.expect("the view is made");
        let store = store(&database, Duration::from_secs(10));
        Self { rows, directory: directory(&store, Duration::ZERO) }
    }
}

impl DirectoryFixture for InPostgres {
    fn directory(&self) -> &impl UserDirectory {
        &self.directory
    }

    async fn set(&self, user_id: &str, lookup: &Lookup) {
        let value = match lookup {
            Lookup::Found(User { email, preferred_language }) => {
                format!(r#"{{"email":"{email}","preferred_language":"{preferred_language}"}}"#)
            }
            Lookup::Unavailable(_) => r#""fail""#.to_owned(),
            Lookup::Missing => {
                let delete = "DELETE FROM kv_rows WHERE key = 'users/' || $1";
                self.rows.execute(delete, &[&user_id]).await.expect("it is deleted");
                return;
            }
        };
        let upsert = "INSERT INTO kv_rows (key, value) VALUES ('users/' || $1, $2::text::jsonb)
            ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value";
        self.rows.execute(upsert, &[&user_id, &value]).await.expect("it is stored");
    }
}

mod contract {
    harness::directory_contract!(super::InPostgres::new().await);
}

#[tokio::test]
async fn only_users_that_exist_are_recalled_and_only_for_a_time() {
    let store = store(&TestDatabase::new().await, Duration::from_secs(10));
    put(&store, "u", r#"{"email":"u@example.com"}"#).await;
    let long = directory(&store, Duration::from_secs(600));
    assert_eq!(long.recall(&["u"]), None, "nothing was asked yet");
    assert_eq!(long.look_up(&["u", "gone"]).await, [found("u@example.com", ""), Lookup::Missing]);
    put(&store, "u", r#"{"email":"new@example.com"}"#).await;
    assert_eq!(long.recall(&["u"]), Some(vec![found("u@example.com", "")]));
    assert_eq!(long.recall(&["u", "gone"]), None);
    assert_eq!(long.look_up(&["u"]).await, [found("u@example.com", "")]);
    let none = directory(&store, Duration::ZERO);
    none.look_up(&["u"]).await;
    assert_eq!(none.recall(&["u"]), None);
    assert_eq!(none.look_up(&["u"]).await, [found("new@example.com", "")]);
}

#[tokio::test]
async fn calls_at_the_same_time_are_all_answered_by_few_connections() {
    let store = store(&TestDatabase::new().await, Duration::from_secs(10));
    for n in 0..200 {
        put(&store, &n.to_string(), &format!(r#"{{"email":"{n}@example.com"}}"#)).await;
    }
    let directory = directory(&store, Duration::ZERO);
    let ids: Vec<[String; 2]> = (0..200).map(|n| [n.to_string(), format!("gone-{n}")]).collect();
    let calls = ids.iter().map(async |[id, gone]| directory.look_up(&[gone, id]).await);
    let answers = futures_util::future::join_all(calls).await;
    for (n, answers) in answers.into_iter().enumerate() {
        assert_eq!(answers, [Lookup::Missing, found(&format!("{n}@example.com"), "")]);
    }
}

#[tokio::test]
async fn without_postgresql_users_are_unavailable_and_found_when_it_is_back() {
    let mut postgres = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let database = TestDatabase::on(&postgres).await;
    let store = store(&database, Duration::from_secs(5));
    put(&store, "u", r#"{"email":"secret@example.com"}"#).await;
    let directory = directory(&store, Duration::ZERO);
    assert_eq!(directory.look_up(&["u"]).await, [found("secret@example.com", "")]);
    postgres.stop().await;
    match &directory.look_up(&["u", "gone"]).await[..] {
        [Lookup::Unavailable(cause), Lookup::Unavailable(_)] => {
            let expected = "the user directory gave no usable response: could not get members of documents";
            assert!(cause.starts_with(expected) && !cause.contains("secret"), "{cause}");
        }
        answers => panic!("{answers:?}"),
    }
    postgres.start_again().await.expect("it starts");
    assert_eq!(directory.look_up(&["u", "gone"]).await, [found("secret@example.com", ""), Lookup::Missing]);
}

#[tokio::test]
async fn a_table_that_cannot_be_read_is_found_by_the_check() {
    let database = TestDatabase::new().await;
    let store = store(&database, Duration::from_secs(10));
    let directory = directory(&store, Duration::ZERO);
    directory.check().await.expect("it can be read");
    let client = database.client().await;
    client.batch_execute("REVOKE SELECT ON kv FROM notificationservice").await.expect("it is revoked");
    let error = directory.check().await.expect_err("it cannot be read");
    assert!(matches!(&error, StateError::NoRights(missing) if missing == "a right on kv"), "{error:?}");
    client.batch_execute("DROP TABLE kv").await.expect("it is dropped");
    directory.check().await.expect_err("it is not there");
}
