//! A TCP proxy that breaks connections on request or at a chosen step of the protocol.

mod statements;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use statements::Statements;

/// The handling of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LinkCondition {
    #[default]
    Fine,
    /// New connections are closed at once; the existing ones were closed.
    Cut,
    /// No bytes are forwarded in either direction; connections stay open.
    BlackHole,
    /// Requests are forwarded, replies are dropped.
    LostReplies,
}

#[derive(Debug, Default)]
struct ProxyState {
    /// The port to which new connections lead.
    port: u16,
    condition: LinkCondition,
    delay: Duration,
    /// The delay before the first bytes of a new connection are forwarded.
    opening_delay: Duration,
    /// Connections older than this are closed.
    epoch: u64,
    trap: Option<Trap>,
    requests: u64,
}

#[derive(Debug)]
struct Trap {
    pattern: Pattern,
    action: Action,
    sprung: watch::Sender<bool>,
}

/// The request that springs a trap.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Pattern {
    /// Contains these bytes.
    Bytes(Vec<u8>),
    /// Executes a statement of PostgreSQL whose text contains this.
    Statement(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    HoldRequest,
    HoldReply,
    LoseReply,
    DelayRequest(Duration),
}

/// A running proxy. When it is dropped, it stops and closes its connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    control: Control,
    listening: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Control {
    shared: Arc<Mutex<ProxyState>>,
    changed: watch::Sender<u64>,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, by: impl FnOnce(&mut ProxyState)) {
        by(&mut self.lock());
        self.changed.send_modify(|count| *count += 1);
    }
}

/// A trigger that resolves when the pattern has passed.
#[derive(Debug)]
pub struct Trigger(watch::Receiver<bool>);

impl Trigger {
    /// Waits for the pattern. Panics if it does not come within `bound`.
    pub async fn reached(mut self, bound: Duration) {
        let sprung = tokio::time::timeout(bound, self.0.wait_for(|sprung| *sprung)).await;
        sprung.expect("the pattern went by within the bound").expect("the proxy is there");
    }
}

impl Proxy {
    /// Starts a proxy in front of `127.0.0.1:port`.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("it has an address");
        let shared = ProxyState { port, ..ProxyState::default() };
        let control = Control { shared: Arc::new(Mutex::new(shared)), changed: watch::Sender::new(0) };
        let listening = tokio::spawn(listen(listener, control.clone()));
        Self { addr, control, listening }
    }

    /// The address to connect to, `host:port`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Closes every connection and refuses new ones.
    pub fn cut(&self) {
        self.control.change(|shared| {
            shared.condition = LinkCondition::Cut;
            shared.epoch += 1;
        });
    }

    /// Closes every connection; new ones work.
    pub fn drop_connections(&self) {
        self.control.change(|shared| shared.epoch += 1);
    }

    /// Silently drops all bytes in both directions from now on.
    pub fn black_hole(&self) {
        self.control.change(|shared| shared.condition = LinkCondition::BlackHole);
    }

    /// Forwards requests and drops their replies from now on.
    pub fn lose_replies(&self) {
        self.control.change(|shared| shared.condition = LinkCondition::LostReplies);
    }

    /// Closes every connection; new ones lead to `127.0.0.1:port`.
    pub fn lead_to(&self, port: u16) {
        self.control.change(|shared| {
            shared.port = port;
            shared.epoch += 1;
        });
    }

    /// Makes new connections lead to `127.0.0.1:port`; open ones stay unchanged.
    pub fn lead_new_connections_to(&self, port: u16) {
        self.control.change(|shared| shared.port = port);
    }

    /// Delays every piece of data by this time, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.control.change(|shared| shared.delay = delay);
    }

    /// Delays the first piece of data of every new connection by this time.
    pub fn delay_opening(&self, delay: Duration) {
        self.control.change(|shared| shared.opening_delay = delay);
    }

    /// Restores normal handling of new connections, and closes every existing one. What is to be held or
    /// delayed still is.
    pub fn heal(&self) {
        self.control.change(|shared| {
            let (port, epoch, requests) = (shared.port, shared.epoch + 1, shared.requests);
            let trap = shared.trap.take();
            *shared = ProxyState { port, epoch, requests, trap, ..ProxyState::default() };
        });
    }

    /// The number of pieces of data from the client's side: for a client that waits for each reply, its
    /// number of requests.
    pub fn requests(&self) -> u64 {
        self.control.lock().requests
    }

    /// Holds the first request that contains `pattern`: the data before the pattern reaches the server, so
    /// that earlier requests are carried out, and nothing else until the client closes the connection.
    pub fn hold_request(&self, pattern: &[u8]) -> Trigger {
        self.trap(pattern, Action::HoldRequest)
    }

    /// Forwards the first request that contains `pattern`; its reply and all later ones are dropped.
    pub fn hold_reply(&self, pattern: &[u8]) -> Trigger {
        self.trap(pattern, Action::HoldReply)
    }

    /// Forwards the first request that contains `pattern`; instead of its reply, the connection is closed.
    pub fn lose_reply(&self, pattern: &[u8]) -> Trigger {
        self.trap(pattern, Action::LoseReply)
    }

    /// Forwards the first request that contains `pattern` only after this time, even if the client has closed
    /// the connection.
    pub fn delay_request(&self, pattern: &[u8], time: Duration) -> Trigger {
        self.trap(pattern, Action::DelayRequest(time))
    }

    /// As [`Proxy::hold_request`], for the first execution of a statement whose text contains `text`.
    pub fn hold_statement(&self, text: &str) -> Trigger {
        self.trap_for(Pattern::Statement(text.to_owned()), Action::HoldRequest)
    }

    /// As [`Proxy::hold_reply`], for the first execution of a statement whose text contains `text`.
    pub fn hold_reply_to_statement(&self, text: &str) -> Trigger {
        self.trap_for(Pattern::Statement(text.to_owned()), Action::HoldReply)
    }

    /// Forgets what was to be held or delayed; connections stay open.
    pub fn disarm(&self) {
        self.control.change(|shared| shared.trap = None);
    }

    fn trap(&self, pattern: &[u8], action: Action) -> Trigger {
        self.trap_for(Pattern::Bytes(pattern.to_vec()), action)
    }

    fn trap_for(&self, pattern: Pattern, action: Action) -> Trigger {
        let (sprung, trigger) = watch::channel(false);
        self.control.change(|shared| shared.trap = Some(Trap { pattern, action, sprung }));
        Trigger(trigger)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.control.change(|shared| shared.epoch = u64::MAX);
    }
}

async fn listen(listener: TcpListener, control: Control) {
    while let Ok((client, _)) = listener.accept().await {
        let (condition, epoch, opening_delay, port) = {
            let shared = control.lock();
            (shared.condition, shared.epoch, shared.opening_delay, shared.port)
        };
        if condition == LinkCondition::Cut {
            continue;
        }
        // The kernel accepts a client that connects into a black hole; the client gets no reply.
        let control = control.clone();
        tokio::spawn(async move {
            tokio::time::sleep(opening_delay).await;
            if condition == LinkCondition::BlackHole {
                closed(&control, epoch).await;
            } else if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                carry(client, server, control, epoch).await;
            }
        });
    }
}

/// Waits until connections of this epoch must be closed.
async fn closed(control: &Control, epoch: u64) {
    let mut changed = control.changed.subscribe();
    while control.lock().epoch == epoch {
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn carry(client: TcpStream, server: TcpStream, control: Control, epoch: u64) {
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("a TCP socket");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Sent from the direction of requests to that of replies: the handling of the next replies.
    let (verdict, replies) = watch::channel(None);
    tokio::select! {
        () = closed(&control, epoch) => {}
        () = requests(from_client, to_server, &control, verdict) => {}
        () = answers(from_server, to_client, &control, replies) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: &Control,
    verdict: watch::Sender<Option<Action>>,
) {
    let mut seen = Seen::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let data = &buffer[..length];
        let (condition, delay, sprung) = judge(control, &mut seen, data);
        tokio::time::sleep(delay).await;
        if condition == LinkCondition::BlackHole {
            std::future::pending::<()>().await;
        }
        if let Some((Action::HoldRequest, start)) = sprung {
            // Nothing follows, whether or not the server still exists.
            drop(to.write_all(&data[..start]).await);
            // Waits until the client disconnects, which is forwarded to the server: a killed process leaves
            // no connection open.
            while let Ok(1..) = from.read(&mut buffer).await {}
            return;
        }
        if let Some((Action::DelayRequest(time), _)) = sprung {
            tokio::time::sleep(time).await;
        } else if let Some((action, _)) = sprung {
            verdict.send_replace(Some(action));
        }
        if to.write_all(data).await.is_err() {
            return;
        }
    }
}

/// The requests of a connection, as far as they were seen.
#[derive(Default)]
struct Seen {
    /// The last bytes, in which a pattern may have begun.
    bytes: Vec<u8>,
    statements: Statements,
}

/// Searches for the pattern across pieces, and returns its start in `data`. A trap triggers once.
fn judge(
    control: &Control,
    seen: &mut Seen,
    data: &[u8],
) -> (LinkCondition, Duration, Option<(Action, usize)>) {
    let executed = seen.statements.executed(data);
    let mut shared = control.lock();
    shared.requests += 1;
    let before = seen.bytes.len();
    seen.bytes.extend_from_slice(data);
    let find = |pattern: &Pattern| match pattern {
        Pattern::Bytes(pattern) => {
            let start = seen.bytes.windows(pattern.len()).position(|window| window == pattern)?;
            // If the pattern began in an earlier piece, that one has been forwarded already.
            Some(start.saturating_sub(before))
        }
        Pattern::Statement(part) => {
            executed.iter().find(|(_, text)| text.contains(part)).map(|(start, _)| *start)
        }
    };
    let start = shared.trap.as_ref().and_then(|trap| find(&trap.pattern));
    let sprung = start.and_then(|start| Some((shared.trap.take()?, start))).map(|(trap, start)| {
        trap.sprung.send_replace(true);
        (trap.action, start)
    });
    let keep = shared.trap.as_ref().map_or(0, |trap| match &trap.pattern {
        Pattern::Bytes(pattern) => pattern.len(),
        Pattern::Statement(_) => 0,
    });
    seen.bytes.drain(..seen.bytes.len().saturating_sub(keep));
    (shared.condition, shared.delay, sprung)
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: &Control,
    replies: watch::Receiver<Option<Action>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let (condition, delay) = {
            let shared = control.lock();
            (shared.condition, shared.delay)
        };
        tokio::time::sleep(delay).await;
        let verdict = *replies.borrow();
        match (verdict, condition) {
            (Some(Action::LoseReply), _) => return,
            (Some(_), _) | (_, LinkCondition::BlackHole | LinkCondition::LostReplies) => {
                std::future::pending::<()>().await
            }
            (None, LinkCondition::Fine | LinkCondition::Cut) => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
