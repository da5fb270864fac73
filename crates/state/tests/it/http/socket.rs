//! The file of the socket. The listener's promises are tested with the listener; this tests those on which
//! clients of the store rely.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use http_server::{BindUnixError, ListenerSettings, bind_unix, serve};
use state::MemoryStore;
use state::http::{AllowedClients, StateService, refuse, router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::support::{LONG, Options};

// K-13
#[tokio::test]
async fn a_stale_socket_is_replaced_with_its_mode_and_a_served_one_is_not_stolen() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("s");
    drop(StdListener::bind(&path).expect("nothing is there"));
    let listener = bind_unix(&path, 0o660).await.expect("the file is stale");
    assert_eq!(fs::symlink_metadata(&path).expect("is there").permissions().mode() & 0o7777, 0o660);
    let service = StateService {
        store: Arc::new(MemoryStore::default()),
        access: AllowedClients::Everyone,
        statement_timeout: LONG,
    };
    let settings = ListenerSettings {
        max_connections: 4,
        max_body_bytes: 1 << 20,
        max_buffered_bytes: 1 << 22,
        probes: &[],
        timeouts: Options::default().timeouts,
        drain_delay: Duration::ZERO,
        drain_timeout: LONG,
        refuse,
        observe: None,
        tls: None,
        tokens: None,
    };
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, router(service), settings, stop.clone()));
    let stolen = bind_unix(&path, 0o660).await;
    assert!(matches!(stolen, Err(BindUnixError::InUse(_))), "{stolen:?}");
    let mut stream = UnixStream::connect(&path).await.expect("it still listens");
    let request = "GET /healthz HTTP/1.1\r\nHost: state\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    stop.cancel();
    serving.await.expect("does not panic");
    assert!(!path.exists());
}
