//! Opening one connection to Redis, and counting the bytes that arrive on it.
//!
//! The client library reads a whole reply, however large it is, and the service cannot control the size of
//! the entries that producers append. So the socket is opened here and counts the received bytes: a reply
//! that exceeds the limit of its reader closes the connection while it arrives.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use domain::ports::BoxError;
use futures_util::future::select_ok;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::settings::{Password, RedisSettings};

/// The idle time of a connection before the kernel sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// The interval of keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time after which unacknowledged data breaks the connection (`TCP_USER_TIMEOUT`).
const TCP_USER_TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// The address of one server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ServerAddr {
    /// A host name or an IP address.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Opens connections to the servers that share a login and the use of TLS.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    user_timeout: Duration,
    login: RedisConnectionInfo,
}

/// An open connection. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Sends commands and awaits their replies.
    pub(crate) commands: MultiplexedConnection,
    meter: Arc<Meter>,
    /// The task that carries commands and replies; dropping it closes the socket.
    _driver: Arc<AbortOnDropHandle<()>>,
}

impl ServerAddr {
    /// Parses `host:port` or `rediss://host:port`; true if it begins with `rediss://`.
    pub(crate) fn parse(text: &str) -> Result<(Self, bool), BoxError> {
        let url = match text.starts_with("rediss://") {
            true => text.to_owned(),
            false => format!("redis://{text}"),
        };
        let info = url.into_connection_info()?;
        let (host, port, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (host, port, false),
            ConnectionAddr::TcpTls { host, port, insecure: false, .. } => (host, port, true),
            _ => return Err("only host:port and rediss://host:port are supported".into()),
        };
        if tls {
            ServerName::try_from(host.as_str())?;
        }
        Ok((Self { host: host.clone(), port: *port }, tls))
    }
}

impl Connector {
    /// Opens connections with TLS if `tls`, and logs in as the default user with this password.
    pub(crate) fn new(
        tls: bool,
        password: Option<&Password>,
        settings: &RedisSettings,
    ) -> Result<Self, BoxError> {
        let config =
            || ClientConfig::with_platform_verifier().map(|config| TlsConnector::from(Arc::new(config)));
        let login = password.map(|password| RedisConnectionInfo::default().set_password(&password.0));
        Ok(Self {
            tls: if tls { Some(config()?) } else { None },
            user_timeout: settings.operation_timeout.max(TCP_USER_TIMEOUT_MIN),
            login: login.unwrap_or_default(),
        })
    }

    /// Selects the database with this number on each connection.
    pub(crate) fn with_db(mut self, db: i64) -> Self {
        self.login = self.login.set_db(db);
        self
    }

    /// Connects to the first address of the host that responds, and logs in.
    pub(crate) async fn connect(&self, server: &ServerAddr) -> Result<Connection, BoxError> {
        let tls = match &self.tls {
            None => None,
            Some(connector) => Some((connector, ServerName::try_from(server.host.clone())?)),
        };
        let addresses: Vec<_> = lookup_host((server.host.as_str(), server.port)).await?.collect();
        if addresses.is_empty() {
            return Err("the host name has no address".into());
        }
        let attempts = addresses.into_iter().map(|address| Box::pin(self.connect_to(address, tls.as_ref())));
        let (stream, _) = select_ok(attempts).await?;
        let meter = Arc::new(Meter::default());
        let stream = Metered { stream, meter: Arc::clone(&meter) };
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (commands, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        Ok(Connection { commands, meter, _driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))) })
    }

    async fn connect_to(
        &self,
        address: SocketAddr,
        tls: Option<&(&TlsConnector, ServerName<'static>)>,
    ) -> io::Result<SocketStream> {
        let stream = TcpStream::connect(address).await?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        Ok(match tls {
            None => Box::pin(stream),
            Some((connector, name)) => Box::pin(connector.connect(name.clone(), stream).await?),
        })
    }
}

impl Connection {
    /// Starts counting: the connection breaks once more than `limit` bytes have arrived from now on.
    pub(crate) fn allow(&self, limit: usize) {
        self.meter.received.store(0, Ordering::SeqCst);
        self.meter.limit.store(limit, Ordering::SeqCst);
    }

    /// The number of bytes that have arrived since [`Connection::allow`].
    pub(crate) fn received(&self) -> usize {
        self.meter.received.load(Ordering::SeqCst)
    }

    /// True if the connection broke because more bytes arrived than allowed.
    pub(crate) fn exceeded(&self) -> bool {
        self.received() > self.meter.limit.load(Ordering::SeqCst)
    }
}

/// The received bytes, and their limit.
#[derive(Debug)]
struct Meter {
    received: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for Meter {
    fn default() -> Self {
        Self { received: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX) }
    }
}

type SocketStream = Pin<Box<dyn AsyncStream + Send + Sync>>;

struct Metered {
    stream: SocketStream,
    meter: Arc<Meter>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let ready = self.stream.as_mut().poll_read(cx, buf);
        let arrived = buf.filled().len() - before;
        let received = self.meter.received.fetch_add(arrived, Ordering::SeqCst).wrapping_add(arrived);
        if arrived > 0 && received > self.meter.limit.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::Error::other("the reply is larger than its reader allows")));
        }
        ready
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}
