//! The state store as operators run it: its start and its stop, the errors of a start, its socket and its
//! tokens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::{
    HttpResponse, Service, ServiceBuilder, Stopwatch, TestDatabase, request, request_unix, wait_for,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::world::BOUND;

/// Longer than a request and its statement may take.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// A database without tables, and a folder for the socket.
pub(crate) struct State {
    pub(crate) database: TestDatabase,
    pub(crate) folder: TempDir,
}

impl State {
    pub(crate) async fn new() -> Self {
        Self::on(TestDatabase::empty().await)
    }

    pub(crate) fn on(database: TestDatabase) -> Self {
        Self { database, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("state.sock")
    }

    /// A process that listens on the socket alone.
    pub(crate) fn process(&self) -> ServiceBuilder {
        ServiceBuilder::default()
            .arguments(["state"])
            .env("STATE_PROXY_PG_URL", self.database.dsn())
            .env("CONNECTOR_SOCKET", self.socket().to_str().expect("UTF-8"))
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        request_unix(&self.socket(), method, path, &[], body).await.expect("the socket answers")
    }

    async fn tables(&self) -> Vec<String> {
        let client = self.database.client().await;
        let rows =
            client.query("SELECT tablename::text FROM pg_tables WHERE schemaname = 'notification'", &[]);
        rows.await.expect("the catalogue").iter().map(|row| row.get(0)).collect()
    }
}

/// The exit code and the output of a process that does not start.
async fn fails_to_start(process: ServiceBuilder) -> (Option<i32>, String) {
    let finished = process.run().await;
    (finished.code, finished.stdout + &finished.stderr)
}

/// Stops the service by SIGTERM, and checks that it ends with 0.
pub(crate) async fn stops(service: &mut Service) {
    service.signal("TERM");
    let status = service.wait_exit(STOP_BOUND).await;
    assert_eq!(status.code(), Some(0), "{}", service.output().join("\n"));
}

#[tokio::test]
async fn one_process_serves_the_same_documents_on_a_socket_and_on_tcp_and_logs_no_secret() {
    let state = State::new().await;
    let dsn = state.database.dsn().replacen('@', ":s3cret@", 1);
    let process = state.process().env("STATE_PROXY_PG_URL", dsn).env("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0");
    let mut service = process.start().await;
    assert_eq!(state.ask("PUT", "/keys/a/1", r#"{"status":"new","secret":"hush"}"#).await.status, 204);
    let read = request(&service.state_addr(), "GET", "/keys/a/1", &[], "").await.expect("TCP answers");
    assert_eq!((read.status, &read.json()["value"]["status"]), (200, &json!("new")));
    let found = state.ask("POST", "/query", r#"{"filter":{"status":"new"}}"#).await;
    assert_eq!((found.status, &found.json()["total"]), (200, &json!(1)));
    let mode = fs::symlink_metadata(state.socket()).expect("is there").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o660);
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(state.ask("GET", probe, "").await.body, "ok");
    }
    stops(&mut service).await;
    assert!(!state.socket().exists(), "the socket is left behind");
    let output = service.output().join("\n");
    for secret in ["s3cret", "hush", "a/1"] {
        assert!(!output.contains(secret), "{output}");
    }
}

#[tokio::test]
async fn everything_that_is_wrong_is_said_at_once_with_exit_code_2_and_nothing_is_made() {
    let state = State::new().await;
    let process = state
        .process()
        .env("CONNECTOR_SOCKET", format!("/tmp/{}", "x".repeat(103)))
        .env("STATE_PROXY_HTTP_ADDR", ":0")
        .env("STATE_PROXY_PG_INDEXES", "status,status;drop,(a)::b c")
        .env("STATE_PROXY_TABLE", "Kv");
    let (code, output) = fails_to_start(process).await;
    assert_eq!(code, Some(2), "{output}");
    for part in [
        "CONNECTOR_SOCKET",
        "107 bytes",
        "status;drop",
        "(a)::b c",
        "STATE_PROXY_TABLE",
        "STATE_PROXY_TOKENS_FILE",
    ] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    assert_eq!(state.tables().await, Vec::<String>::new());
    let (code, output) = fails_to_start(ServiceBuilder::default().arguments(["state"])).await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("STATE_PROXY_PG_URL") && output.contains("CONNECTOR_SOCKET"), "{output}");
}

#[tokio::test]
async fn the_path_of_a_socket_has_107_bytes_at_most() {
    let state = State::new().await;
    let prefix = state.folder.path().as_os_str().len() + 1;
    let of_length = |bytes: usize| state.folder.path().join("x".repeat(bytes - prefix));
    let (code, output) =
        fails_to_start(state.process().env("CONNECTOR_SOCKET", of_length(108).to_str().expect("UTF-8")))
            .await;
    assert_eq!(code, Some(2), "{output}");
    let longest = of_length(107);
    let _service = state.process().env("CONNECTOR_SOCKET", longest.to_str().expect("UTF-8")).start().await;
    let answer = request_unix(&longest, "GET", "/healthz", &[], "").await.expect("the socket answers");
    assert_eq!(answer.body, "ok");
}

#[tokio::test]
async fn an_index_that_postgresql_refuses_ends_the_start_with_1_and_names_the_item() {
    let state = State::new().await;
    let mut first = state.process().start().await;
    stops(&mut first).await;
    // The role is not the owner, so it cannot create an index; everything else is allowed.
    let foreign = "ALTER TABLE notification.kv OWNER TO postgres;
        GRANT SELECT, INSERT, UPDATE, DELETE ON notification.kv TO notificationservice;
        GRANT ALL ON ALL SEQUENCES IN SCHEMA notification TO notificationservice";
    state.database.client().await.batch_execute(foreign).await.expect("the superuser may");
    let (code, output) = fails_to_start(state.process().env("STATE_PROXY_PG_INDEXES", "status")).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("status") && !state.socket().exists(), "{output}");
}

#[tokio::test]
async fn a_database_that_is_unavailable_at_the_start_ends_it_with_1() {
    let state = State::new().await;
    let nowhere = state.database.dsn_via(1);
    let (code, output) = fails_to_start(state.process().env("STATE_PROXY_PG_URL", nowhere)).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("does not serve") && !state.socket().exists(), "{output}");
}

#[tokio::test]
async fn a_socket_left_by_a_killed_process_is_replaced_and_one_of_a_living_process_is_not() {
    let state = State::new().await;
    let killed = state.process().start().await;
    killed.kill().await;
    assert!(state.socket().exists(), "a killed process removes nothing");
    let mut service = state.process().start().await;
    let (code, output) = fails_to_start(state.process()).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("another process serves"), "{output}");
    assert_eq!(state.ask("GET", "/healthz", "").await.body, "ok");
    stops(&mut service).await;
    assert!(!state.socket().exists());
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_not_touched() {
    let state = State::new().await;
    fs::write(state.socket(), "precious").expect("is written");
    let (code, output) = fails_to_start(state.process()).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("is not a socket"), "{output}");
    assert_eq!(fs::read_to_string(state.socket()).expect("is there"), "precious");
}

#[tokio::test]
async fn a_socket_that_another_process_has_put_in_its_place_is_left_alone_at_the_end() {
    let state = State::new().await;
    let mut service = state.process().start().await;
    fs::remove_file(state.socket()).expect("is there");
    let _other = UnixListener::bind(state.socket()).expect("nothing is there");
    stops(&mut service).await;
    assert!(state.socket().exists());
}

/// Sends a `PUT` and stops before the end of its body.
async fn begin_put(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.expect("the socket answers");
    let head = "PUT /keys/slow HTTP/1.1\r\nHost: state\r\nContent-Length: 4\r\n\r\ntr";
    stream.write_all(head.as_bytes()).await.expect("is open");
    stream
}

#[tokio::test]
async fn sigterm_lets_a_request_in_progress_finish_and_refuses_others() {
    let state = State::new().await;
    let mut service = state.process().start().await;
    let mut slow = begin_put(&state.socket()).await;
    // The first half of the body is read before the signal.
    assert_eq!(state.ask("GET", "/readyz", "").await.status, 200);
    service.signal("TERM");
    wait_for("new connections are refused", BOUND, async || {
        UnixStream::connect(state.socket()).await.is_err().then_some(())
    })
    .await;
    assert!(state.socket().exists(), "the file is gone before the last request is answered");
    slow.write_all(b"ue").await.expect("is open");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.expect("UTF-8");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    let status = service.wait_exit(STOP_BOUND).await;
    assert_eq!((status.code(), state.socket().exists()), (Some(0), false));
}

#[tokio::test]
async fn a_request_that_never_ends_delays_the_stop_by_10_s_at_most() {
    let state = State::new().await;
    let mut service = state.process().start().await;
    let _slow = begin_put(&state.socket()).await;
    assert_eq!(state.ask("GET", "/readyz", "").await.status, 200);
    let begun = Stopwatch::start();
    stops(&mut service).await;
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(13)).contains(&took), "{took:?}");
    assert!(!state.socket().exists());
}

#[tokio::test]
async fn tokens_from_the_command_line_are_in_force_within_10_s_of_their_entry() {
    let state = State::new().await;
    let file = state.folder.path().join("tokens.toml");
    fs::write(&file, "").expect("is written");
    let service = state
        .process()
        .env("STATE_PROXY_HTTP_ADDR", "0.0.0.0:0")
        .env("STATE_PROXY_TOKENS_FILE", file.to_str().expect("UTF-8"))
        .start()
        .await;
    let port = service.state_addr().rsplit_once(':').expect("a port").1.to_owned();
    let addr = format!("127.0.0.1:{port}");
    let made = ServiceBuilder::default()
        .arguments(["token", "new", "--name", "lobby", "--prefix", "users/", "--access", "write"])
        .run()
        .await;
    let (token, entry) = made.stdout.split_once('\n').expect("a token and its entry");
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    let put =
        async |path: &str| request(&addr, "PUT", path, &headers, "1").await.expect("TCP answers").status;
    assert_eq!(put("/keys/users/1").await, 401);
    fs::write(&file, entry).expect("is written");
    let begun = Instant::now();
    wait_for("the token is known", BOUND, async || (put("/keys/users/1").await == 204).then_some(())).await;
    assert!(begun.elapsed() < Duration::from_secs(11), "{:?}", begun.elapsed());
    assert_eq!(put("/keys/other/1").await, 403);
    // An invalid file is rejected.
    fs::write(&file, "[[token]]\nname = \"half").expect("is written");
    wait_for("the wrong file is seen", BOUND, async || {
        service.logged("reload failed; keeping the previous file")
    })
    .await;
    assert_eq!(put("/keys/users/1").await, 204);
    // The socket requires no token.
    assert_eq!(state.ask("GET", "/keys/users/1", "").await.status, 200);
}

#[tokio::test]
async fn several_processes_make_one_table_at_once_and_a_restart_changes_nothing() {
    let state = State::new().await;
    let indexes = "status,(deadline_at)::timestamptz";
    let process = |number: usize| {
        let socket = state.folder.path().join(number.to_string());
        state
            .process()
            .env("CONNECTOR_SOCKET", socket.to_str().expect("UTF-8"))
            .env("STATE_PROXY_PG_INDEXES", indexes)
    };
    let _services = futures_util::future::join_all((0..3).map(|number| process(number).start())).await;
    let definitions =
        "SELECT string_agg(indexdef, ';' ORDER BY indexname) FROM pg_indexes WHERE tablename = 'kv'";
    let client = state.database.client().await;
    let before: String = client.query_one(definitions, &[]).await.expect("the catalogue").get(0);
    // An open transaction would block every change of the table.
    client.batch_execute("BEGIN; SELECT count(*) FROM notification.kv").await.expect("the table");
    let _again = process(3).start().await;
    let after: String = client.query_one(definitions, &[]).await.expect("the catalogue").get(0);
    assert_eq!(before, after);
}
