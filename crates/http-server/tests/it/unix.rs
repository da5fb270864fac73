//! A Unix socket in addition to TCP: the same listener, and a file that must not belong to another process.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use http_server::{BindUnixError, ListenerSettings, MAX_SOCKET_PATH_BYTES, Timeouts, bind_unix};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::support::{Client, JSON, LONG, LONG_TIMEOUTS, MAX_BODY_BYTES, SHORT, settings, start, start_unix};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Creates a socket file whose process has died.
fn leave_stale_socket(path: &Path) {
    drop(StdListener::bind(path).expect("nothing is there"));
    assert!(path.exists(), "a socket that is closed leaves its file");
}

#[tokio::test]
async fn what_is_sent_over_a_unix_socket_is_answered_as_over_tcp() {
    let folder = folder();
    let path = folder.path().join("s");
    let (_unix, tcp) = (start_unix(&path, settings()).await, start(settings()).await);
    let (mut one, mut other) = (Client::connect_unix(&path).await, Client::connect(&tcp).await);
    for body in [0, 1, MAX_BODY_BYTES, MAX_BODY_BYTES + 1] {
        let body = vec![b'x'; body];
        let (over_unix, over_tcp) =
            (one.post("/length", JSON, &body).await, other.post("/length", JSON, &body).await);
        assert_eq!((over_unix.status, over_unix.body), (over_tcp.status, over_tcp.body));
    }
    assert_eq!(one.get("/nowhere").await.problem(), "not-found");
}

#[tokio::test]
async fn the_limits_of_a_connection_hold_for_a_unix_socket() {
    let folder = folder();
    let path = folder.path().join("s");
    let timeouts = Timeouts { read_header: SHORT, ..LONG_TIMEOUTS };
    let _server = start_unix(&path, ListenerSettings { max_connections: 1, timeouts, ..settings() }).await;
    let mut slow = Client::connect_unix(&path).await;
    slow.send("GET /one").await;
    assert!(slow.until_closed().await.starts_with("HTTP/1.1 408"), "a head may take for ever");
    let mut idle = Client::connect_unix(&path).await;
    assert_eq!(idle.get("/one").await.status, 200);
    // There is room for one connection: the idle one is closed for it.
    assert_eq!(Client::connect_unix(&path).await.get("/two").await.status, 200);
    assert_eq!(idle.until_closed().await, "");
}

// K-13
#[tokio::test]
async fn the_socket_of_a_dead_process_is_replaced() {
    let folder = folder();
    let path = folder.path().join("s");
    leave_stale_socket(&path);
    let _server = start_unix(&path, settings()).await;
    assert_eq!(Client::connect_unix(&path).await.get("/one").await.status, 200);
}

// K-13
#[tokio::test]
async fn the_socket_of_a_living_process_is_not_touched() {
    let folder = folder();
    let path = folder.path().join("s");
    let _server = start_unix(&path, settings()).await;
    let error = bind_unix(&path, 0o600).await.expect_err("it is served");
    assert!(matches!(error, BindUnixError::InUse(_)), "{error:?}");
    assert_eq!(Client::connect_unix(&path).await.get("/one").await.status, 200);
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_not_touched() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").expect("is written");
    fs::create_dir(at("folder")).expect("is made");
    leave_stale_socket(&at("stale"));
    symlink(at("stale"), at("link")).expect("is made");
    symlink(at("nothing"), at("dangling")).expect("is made");
    for name in ["file", "folder", "link", "dangling"] {
        let error = bind_unix(&at(name), 0o600).await.expect_err(name);
        assert!(matches!(error, BindUnixError::NotASocket(_)), "{name}: {error:?}");
    }
    assert_eq!(fs::read_to_string(at("file")).expect("is there"), "precious");
    assert!(at("folder").is_dir() && at("link").exists() && at("dangling").is_symlink());
}

#[tokio::test]
async fn a_path_may_have_107_bytes_and_no_more() {
    let folder = folder();
    let prefix = folder.path().as_os_str().len() + 1;
    let of_length = |bytes: usize| folder.path().join("x".repeat(bytes - prefix));
    drop(bind_unix(&of_length(MAX_SOCKET_PATH_BYTES), 0o600).await.expect("it fits"));
    for path in [of_length(MAX_SOCKET_PATH_BYTES + 1), PathBuf::new(), folder.path().join("a\0b")] {
        let error = bind_unix(&path, 0o600).await.expect_err("it cannot be");
        assert!(matches!(error, BindUnixError::InvalidPath(_)), "{error:?}");
    }
    assert_eq!(MAX_SOCKET_PATH_BYTES, 107);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_an_error_with_its_name() {
    let folder = folder();
    let error = bind_unix(&folder.path().join("missing/s"), 0o600).await.expect_err("there is no folder");
    assert!(error.to_string().contains("missing"), "{error}");
}

// K-13
#[tokio::test]
async fn the_file_has_the_mode_that_was_asked_for_whatever_the_umask() {
    let folder = folder();
    for mode in [0o600, 0o660, 0o666, 0o777, 0o000] {
        let path = folder.path().join(format!("{mode:o}"));
        let _bound = bind_unix(&path, mode).await.expect("nothing is there");
        let given = fs::symlink_metadata(&path).expect("is there").permissions().mode() & 0o7777;
        assert_eq!(given, mode, "{given:o}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_processes_that_start_at_once_one_serves() {
    let folder = folder();
    for round in 0..20 {
        let path = folder.path().join(format!("{round}"));
        leave_stale_socket(&path);
        let binding: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                tokio::spawn(async move { bind_unix(&path, 0o600).await })
            })
            .collect();
        let mut bound = Vec::new();
        for binding in binding {
            match binding.await.expect("does not panic") {
                Ok(listener) => bound.push(listener),
                Err(error) => assert!(matches!(error, BindUnixError::InUse(_)), "{error:?}"),
            }
        }
        assert_eq!(bound.len(), 1);
        UnixStream::connect(&path).await.expect("the file is that of the one that serves");
    }
}

// K-14
#[tokio::test]
async fn stopping_answers_what_is_in_progress_refuses_connections_and_then_removes_the_file() {
    let folder = folder();
    let path = folder.path().join("s");
    let server = start_unix(&path, settings()).await;
    let mut client = Client::connect_unix(&path).await;
    client.begin_post("/held", JSON, 2).await;
    client.send("{}").await;
    server.wait_for_held(1).await;
    server.stop.cancel();
    let refused = async { while UnixStream::connect(&path).await.is_ok() {} };
    timeout(LONG, refused).await.expect("connections are refused while a request is in progress");
    assert!(path.exists(), "the file was removed before the last request was answered");
    server.release.add_permits(1);
    assert_eq!(client.answer().await.status, 200);
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    assert!(!path.exists());
}

#[tokio::test]
async fn the_file_of_another_process_is_not_removed_at_the_end() {
    let folder = folder();
    let path = folder.path().join("s");
    let server = start_unix(&path, settings()).await;
    fs::remove_file(&path).expect("is there");
    let _other = StdListener::bind(&path).expect("nothing is there");
    server.stop.cancel();
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    assert!(path.exists());
}
