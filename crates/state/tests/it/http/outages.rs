//! A store that fails, and a stop while requests are in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pg::{DeadlinePassed, PgError};
use state::query::Query;
use state::{
    Delete, Document, Key, KeyPage, Page, Patch, Prefix, StateError, Store, Value, VersionCondition, Write,
    WriteConditions,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::support::{BOTH, LONG, Options, Server};

/// The failure of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Unavailable,
    TimedOut,
    InFunction,
    StatementTimedOut,
    NoRights,
    Corrupt,
    ReadOnly,
    NoRoom,
    Panics,
    Never,
}

const ALL: [(Failure, u16, &str); 10] = [
    (Failure::Unavailable, 503, "unavailable"),
    (Failure::TimedOut, 504, "timeout"),
    (Failure::InFunction, 503, "unavailable"),
    (Failure::StatementTimedOut, 504, "timeout"),
    (Failure::NoRights, 503, "unavailable"),
    (Failure::Corrupt, 503, "unavailable"),
    (Failure::ReadOnly, 503, "unavailable"),
    (Failure::NoRoom, 503, "unavailable"),
    (Failure::Panics, 503, "unavailable"),
    (Failure::Never, 503, "unavailable"),
];

/// A store whose operations all fail.
struct Failing(Failure);

impl Failing {
    async fn fail<T>(&self) -> Result<T, StateError> {
        let source = || "s3cret: connection refused".into();
        Err(match self.0 {
            Failure::Unavailable => PgError::Unavailable { operation: "ask", source: source() }.into(),
            Failure::TimedOut => {
                let source = DeadlinePassed::new(Duration::from_millis(200)).into();
                PgError::TimedOut { operation: "ask", source }.into()
            }
            // Without an exceeded deadline among its causes.
            Failure::InFunction => PgError::TimedOut { operation: "ask", source: source() }.into(),
            Failure::StatementTimedOut => StateError::TimedOut { operation: "ask", source: source() },
            Failure::NoRights => StateError::NoRights("kv".to_owned()),
            Failure::Corrupt => StateError::Corrupt { table: "kv".to_owned(), column: "created_at" },
            Failure::ReadOnly => StateError::ReadOnly,
            Failure::NoRoom => StateError::NoRoom,
            Failure::Panics => panic!("as the test wants it"),
            Failure::Never => std::future::pending().await,
        })
    }
}

impl Store for Failing {
    async fn get(&self, _: &Key) -> Result<Option<Document>, StateError> {
        self.fail().await
    }

    async fn get_many(&self, _: &[Key]) -> Result<Vec<Document>, StateError> {
        self.fail().await
    }

    async fn put(&self, _: &Key, _: &Value, _: &WriteConditions) -> Result<Write, StateError> {
        self.fail().await
    }

    async fn patch(&self, _: &Key, _: &Value, _: &WriteConditions) -> Result<Patch, StateError> {
        self.fail().await
    }

    async fn delete(&self, _: &Key, _: VersionCondition) -> Result<Delete, StateError> {
        self.fail().await
    }

    async fn list(&self, _: &Prefix, _: Option<&Key>, _: u32) -> Result<KeyPage, StateError> {
        self.fail().await
    }

    async fn query(&self, _: &Query) -> Result<Page, StateError> {
        self.fail().await
    }
}

#[tokio::test]
async fn a_store_that_fails_is_503_or_504_within_a_second_more_than_a_statement_may_take() {
    for (failure, status, code) in ALL {
        let options = Options { statement_timeout: Duration::from_millis(200), ..Options::default() };
        let server = Server::start(Failing(failure), BOTH[1], options).await;
        let mut client = server.connect().await;
        for (request, headers, body) in [
            ("GET /keys/a", "", ""),
            ("PUT /keys/a", "", "1"),
            ("PATCH /keys/a", "Content-Type: application/merge-patch+json\r\n", "{}"),
            ("DELETE /keys/a", "", ""),
            ("GET /keys/", "", ""),
            ("POST /query", "", "{}"),
            ("POST /keys:batchGet", "", "{\"keys\":[\"a\"]}"),
            ("GET /readyz", "", ""),
        ] {
            let begun = Instant::now();
            let answer = client.ask(request, headers, body).await;
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{failure:?} {request}");
            assert!(begun.elapsed() < Duration::from_millis(1_200), "{failure:?} {request}");
            assert_eq!(answer.header("retry-after"), (status == 503).then_some("1"), "{failure:?} {request}");
            assert!(!answer.body.contains("s3cret"), "{}", answer.body);
        }
        let answer = client.ask("GET /healthz", "", "").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"), "{failure:?}");
    }
}

/// A store whose responses wait for a permit.
struct Held {
    release: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

impl Store for Held {
    async fn get(&self, _: &Key) -> Result<Option<Document>, StateError> {
        self.held.add_permits(1);
        self.release.acquire().await.expect("is never closed").forget();
        Ok(None)
    }

    async fn get_many(&self, _: &[Key]) -> Result<Vec<Document>, StateError> {
        Ok(Vec::new())
    }

    async fn put(&self, _: &Key, _: &Value, _: &WriteConditions) -> Result<Write, StateError> {
        Ok(Write::VersionMismatch)
    }

    async fn patch(&self, _: &Key, _: &Value, _: &WriteConditions) -> Result<Patch, StateError> {
        Ok(Patch::NotFound)
    }

    async fn delete(&self, _: &Key, _: VersionCondition) -> Result<Delete, StateError> {
        Ok(Delete::NotFound)
    }

    async fn list(&self, _: &Prefix, _: Option<&Key>, _: u32) -> Result<KeyPage, StateError> {
        Ok(KeyPage::default())
    }

    async fn query(&self, _: &Query) -> Result<Page, StateError> {
        Ok(Page { rows: Vec::new(), matched: None, next_cursor: None })
    }
}

// K-14
#[tokio::test]
async fn a_request_in_progress_is_answered_after_the_stop() {
    for transport in BOTH {
        let (release, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let store = Held { release: Arc::clone(&release), held: Arc::clone(&held) };
        let server = Server::start(store, transport, Options::default()).await;
        let mut client = server.connect().await;
        client.send("GET /keys/a HTTP/1.1\r\nHost: state\r\n\r\n").await;
        timeout(LONG, held.acquire()).await.expect("the request comes").expect("is never closed").forget();
        server.stop.cancel();
        release.add_permits(1);
        assert_eq!(client.answer(false).await.code(), "key_not_found");
        assert_eq!(client.try_answer(false).await, None, "the connection stays open");
        timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    }
}

#[tokio::test]
async fn a_request_that_is_not_complete_in_time_is_408_in_json() {
    let mut options = Options::default();
    options.timeouts.request = Duration::from_millis(200);
    let server = Server::start(Failing(Failure::Never), BOTH[0], options).await;
    let mut client = server.connect().await;
    client.send("PUT /keys/a HTTP/1.1\r\nHost: state\r\nContent-Length: 10\r\n\r\n[1").await;
    let answer = client.answer(false).await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
}
