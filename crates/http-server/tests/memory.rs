//! The memory that many large bodies occupy at once. A separate test binary, because it measures the memory
//! of the whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http_server::problem::{refuse, with_fallbacks};
use http_server::{JsonText, ListenerSettings, Timeouts, bind, serve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const MIB: usize = 1 << 20;
const CLIENTS: usize = 1024;
const BODY_BYTES: usize = 8 * MIB;
const BUFFERED_BYTES: usize = 64 * MIB;
const LONG: Duration = Duration::from_secs(120);

/// Allows this process to open both ends of every connection: the usual limit of a shell is 1,024 files.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("the hard limit is allowed");
}

/// The peak memory of this process.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_bodies_of_eight_mebibytes_at_once_stay_within_the_budget_and_all_are_answered() {
    allow_many_files();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let take = move |JsonText(body): JsonText| async move {
        most.fetch_max(now.fetch_add(body.len(), Ordering::SeqCst) + body.len(), Ordering::SeqCst);
        tokio::task::yield_now().await;
        now.fetch_sub(body.len(), Ordering::SeqCst);
        format!("{}", body.len())
    };
    let router = with_fallbacks(Router::new().route("/", post(take)));
    let settings = ListenerSettings {
        max_connections: CLIENTS,
        max_body_bytes: BODY_BYTES,
        max_buffered_bytes: BUFFERED_BYTES,
        probes: &[],
        timeouts: Timeouts { read_header: LONG, request: LONG, idle: LONG },
        drain_delay: Duration::ZERO,
        drain_timeout: LONG,
        refuse,
        observe: None,
        tls: None,
        tokens: None,
    };
    let listener = bind(Some("127.0.0.1"), 0).await.expect("a free port");
    let (addr, stop) = (listener.local_addr().expect("bound"), CancellationToken::new());
    let serving = tokio::spawn(serve(listener, router, settings, stop.clone()));

    // All clients send the same bytes.
    let body: Arc<[u8]> = vec![b'x'; BODY_BYTES].into();
    let before = peak_bytes();
    let clients = (0..CLIENTS).map(|n| {
        let body = Arc::clone(&body);
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("is listening");
            let head =
                "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n";
            stream.write_all(head.as_bytes()).await.expect("is open");
            // Every other client does not declare the length of its body.
            if n % 2 == 0 {
                stream
                    .write_all(format!("Content-Length: {BODY_BYTES}\r\n\r\n").as_bytes())
                    .await
                    .expect("is open");
                stream.write_all(&body).await.expect("is open");
            } else {
                let length = format!("Transfer-Encoding: chunked\r\n\r\n{BODY_BYTES:x}\r\n");
                stream.write_all(length.as_bytes()).await.expect("is open");
                stream.write_all(&body).await.expect("is open");
                stream.write_all(b"\r\n0\r\n\r\n").await.expect("is open");
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            answer
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let answer = tokio::time::timeout(LONG, client).await.expect("no deadlock").expect("does not panic");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&BODY_BYTES.to_string()), "{answer}");
    }
    stop.cancel();
    serving.await.expect("stops");

    let largest = seen.load(Ordering::SeqCst);
    assert!(largest <= BUFFERED_BYTES, "{largest} bytes in handlers at once");
    // The allocator may keep as much again, and each connection has its buffers.
    let (used, allowed) = (peak_bytes() - before, 2 * BUFFERED_BYTES + CLIENTS * 128 * 1024);
    println!("{} MiB more at the peak", used / MIB);
    assert!(used <= allowed, "{} MiB more at the peak", used / MIB);
}
