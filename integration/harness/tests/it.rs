//! The proxy, in front of an echo server.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Browser, Proxy, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A time longer than any step takes on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// The time after which a test concludes that nothing arrives.
const SILENCE: Duration = Duration::from_millis(200);

/// An echo server, and a proxy in front of it.
struct World {
    proxy: Proxy,
    /// The data that the server received, over all connections.
    received: Arc<Mutex<Vec<u8>>>,
}

impl World {
    async fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let shared = received.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(say_back(stream, shared.clone()));
            }
        });
        Self { proxy: Proxy::start(port).await, received }
    }

    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy.addr()).await.expect("the proxy listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream
    }

    /// Opens a connection and sends data through it.
    async fn connected(&self) -> TcpStream {
        let mut stream = self.connect().await;
        exchange(&mut stream, b"hello ").await;
        self.received.lock().expect("no task panics while the lock is held").clear();
        stream
    }

    fn received(&self) -> Vec<u8> {
        self.received.lock().expect("no task panics while the lock is held").clone()
    }

    async fn wait_received(&self, expected: &[u8]) {
        wait_for("the server receives it", BOUND, async || (self.received() == expected).then_some(())).await;
    }
}

async fn say_back(mut stream: TcpStream, received: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        received.lock().expect("no task panics while the lock is held").extend_from_slice(&buffer[..length]);
        if stream.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn send(stream: &mut TcpStream, data: &[u8]) {
    stream.write_all(data).await.expect("the connection is open");
}

async fn hears(stream: &mut TcpStream, expected: &[u8]) {
    let mut answer = vec![0; expected.len()];
    timeout(BOUND, stream.read_exact(&mut answer)).await.expect("in time").expect("the connection is open");
    assert!(answer == expected, "something else came back");
}

async fn exchange(stream: &mut TcpStream, data: &[u8]) {
    send(stream, data).await;
    hears(stream, data).await;
}

/// Returns true if the connection is open and nothing arrives.
async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SILENCE, stream.read(&mut [0])).await.is_err()
}

/// Returns true if the other side closed the connection, by an end or by a reset.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(BOUND, stream.read(&mut [0])).await.expect("in time"), Ok(0) | Err(_))
}

#[tokio::test]
async fn data_goes_through_unchanged_on_several_connections() {
    let world = World::new().await;
    let data: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut one, mut two) = (world.connect().await, world.connect().await);
    let (mut from, mut to) = one.split();
    let mut answer = vec![0; data.len()];
    let (sent, heard) = tokio::join!(to.write_all(&data), timeout(BOUND, from.read_exact(&mut answer)));
    sent.expect("it is open");
    heard.expect("in time").expect("it is open");
    assert!(answer == data);
    exchange(&mut two, b"two").await;
}

#[tokio::test]
async fn an_end_on_one_side_is_an_end_on_the_other() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let proxy = Proxy::start(listener.local_addr().expect("it has an address").port()).await;
    for client_first in [true, false] {
        let client = TcpStream::connect(proxy.addr()).await.expect("the proxy listens");
        let (server, _) = timeout(BOUND, listener.accept()).await.expect("in time").expect("a connection");
        let (first, mut second) = if client_first { (client, server) } else { (server, client) };
        drop(first);
        assert!(is_closed(&mut second).await);
    }
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_what_comes_until_it_is_healed() {
    let world = World::new().await;
    let mut before = world.connected().await;
    world.proxy.cut();
    assert!(is_closed(&mut before).await);
    assert!(is_closed(&mut world.connect().await).await);
    world.proxy.heal();
    exchange(&mut world.connect().await, b"again").await;
}

#[tokio::test]
async fn dropped_connections_are_closed_and_new_ones_are_fine() {
    let world = World::new().await;
    let (mut one, mut two) = (world.connected().await, world.connected().await);
    world.proxy.drop_connections();
    assert!(is_closed(&mut one).await && is_closed(&mut two).await);
    exchange(&mut world.connect().await, b"again").await;
}

#[tokio::test]
async fn a_black_hole_swallows_both_ways_in_silence_and_ends_with_healing() {
    let world = World::new().await;
    let mut before = world.connected().await;
    world.proxy.black_hole();
    let mut within = world.connect().await;
    for stream in [&mut before, &mut within] {
        send(stream, b"lost").await;
        assert!(is_silent(stream).await);
    }
    assert_eq!(world.received(), b"");
    world.proxy.heal();
    assert!(is_closed(&mut before).await && is_closed(&mut within).await);
    exchange(&mut world.connect().await, b"again").await;
    assert_eq!(world.received(), b"again");
}

#[tokio::test]
async fn lost_replies_let_requests_through_and_no_answers() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    world.proxy.lose_replies();
    send(&mut stream, b"one ").await;
    world.wait_received(b"one ").await;
    assert!(is_silent(&mut stream).await);
    send(&mut stream, b"two").await;
    world.wait_received(b"one two").await;
    world.proxy.heal();
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_held_request_stops_exactly_at_its_pattern() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let held = world.proxy.hold_request(b"COMMIT");
    exchange(&mut stream, b"BEGIN;").await;
    send(&mut stream, b"INSERT;COMMIT;SELECT").await;
    held.reached(BOUND).await;
    hears(&mut stream, b"INSERT;").await;
    send(&mut stream, b"more").await;
    assert!(is_silent(&mut stream).await);
    assert_eq!(world.received(), b"BEGIN;INSERT;");
}

#[tokio::test]
async fn the_end_of_a_client_whose_request_is_held_reaches_the_server() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let proxy = Proxy::start(listener.local_addr().expect("it has an address").port()).await;
    let mut client = TcpStream::connect(proxy.addr()).await.expect("the proxy listens");
    let (mut server, _) = timeout(BOUND, listener.accept()).await.expect("in time").expect("a connection");
    let held = proxy.hold_request(b"COMMIT");
    send(&mut client, b"COMMIT").await;
    held.reached(BOUND).await;
    assert!(is_silent(&mut server).await);
    drop(client);
    assert!(is_closed(&mut server).await);
}

#[tokio::test]
async fn requests_are_counted_by_pieces_and_over_a_healing() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    for _ in 0..3 {
        exchange(&mut stream, b"request").await;
    }
    world.proxy.heal();
    assert_eq!(world.proxy.requests(), 3);
}

#[tokio::test]
async fn a_pattern_that_comes_in_two_pieces_is_held_all_the_same() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let held = world.proxy.hold_request(b"COMMIT");
    // The reply shows that the first piece was forwarded by itself.
    exchange(&mut stream, b"INSERT;COM").await;
    send(&mut stream, b"MIT;SELECT").await;
    held.reached(BOUND).await;
    assert!(is_silent(&mut stream).await);
    assert_eq!(world.received(), b"INSERT;COM");
}

#[tokio::test]
async fn a_trap_springs_once_and_on_no_other_connection() {
    let world = World::new().await;
    let (mut one, mut two) = (world.connected().await, world.connected().await);
    let held = world.proxy.hold_request(b"COMMIT");
    exchange(&mut two, b"COMMI").await;
    send(&mut one, b"COMMIT").await;
    held.reached(BOUND).await;
    exchange(&mut two, b"T COMMIT").await;
    assert!(is_silent(&mut one).await);
}

#[tokio::test]
#[should_panic(expected = "the pattern went by within the bound")]
async fn a_pattern_that_does_not_come_fails_the_test_that_waits_for_it() {
    let world = World::new().await;
    let held = world.proxy.hold_request(b"COMMIT");
    exchange(&mut world.connect().await, b"COMMI COMMI").await;
    held.reached(SILENCE).await;
}

#[tokio::test]
async fn a_held_reply_lets_its_request_through_and_nothing_back() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let held = world.proxy.hold_reply(b"COMMIT");
    exchange(&mut stream, b"BEGIN;").await;
    send(&mut stream, b"COMMIT;").await;
    held.reached(BOUND).await;
    world.wait_received(b"BEGIN;COMMIT;").await;
    assert!(is_silent(&mut stream).await);
    // Other connections are not affected.
    exchange(&mut world.connect().await, b"COMMIT").await;
}

#[tokio::test]
async fn a_lost_reply_closes_the_connection_after_its_request_went_through() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let lost = world.proxy.lose_reply(b"COMMIT");
    exchange(&mut stream, b"BEGIN;").await;
    send(&mut stream, b"COMMIT;").await;
    lost.reached(BOUND).await;
    assert!(is_closed(&mut stream).await);
    assert_eq!(world.received(), b"BEGIN;COMMIT;");
    exchange(&mut world.connect().await, b"COMMIT").await;
}

#[tokio::test]
async fn a_delay_holds_up_each_way() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let delay = Duration::from_millis(100);
    world.proxy.delay(delay);
    let began = Instant::now();
    exchange(&mut stream, b"slow").await;
    assert!(began.elapsed() >= delay * 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_proxy_that_was_dropped_closes_its_connections_and_listens_no_more() {
    let world = World::new().await;
    let mut stream = world.connected().await;
    let addr = world.proxy.addr();
    drop(world);
    assert!(is_closed(&mut stream).await);
    wait_for("the port is closed", BOUND, async || TcpStream::connect(&addr).await.err().map(drop)).await;
}

#[tokio::test]
async fn a_browser_shows_a_page_with_and_without_its_scripts_and_ends_with_its_processes() {
    let page = "data:text/html,<!doctype html><title>t</title><p id=p>plain</p><script>p.textContent='scripted'</script>";
    let browser = Browser::start().await;
    browser.open(page).await;
    assert_eq!(browser.text("p").await, "scripted");
    browser.set_javascript(false).await;
    browser.open(page).await;
    assert_eq!(browser.text("p").await, "plain");
    let pid = browser.pid().expect("ChromeDriver tells");
    browser.quit().await;
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    wait_for("the browser ends", BOUND, async || (!process.exists()).then_some(())).await;
}
