//! Opening one connection to Redis, and counting the bytes that arrive on it.
//!
//! The client library reads a whole reply, however large it is, and the service cannot control the size of
//! the entries that producers append. So the socket is opened here and counts the received bytes: a reply
//! that exceeds the limit of its reader closes the connection while it arrives.

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

use crate::settings::RedisSettings;

/// The idle time of a connection before the kernel sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// The interval of keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time after which unacknowledged data breaks the connection (`TCP_USER_TIMEOUT`).
const TCP_USER_TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// The address of Redis, and how to connect and log in.
pub(crate) struct RedisEndpoint {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
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

impl RedisEndpoint {
    pub(crate) fn new(settings: &RedisSettings) -> Result<Self, BoxError> {
        let url = match settings.addr.starts_with("rediss://") {
            true => settings.addr.clone(),
            false => format!("redis://{}", settings.addr),
        };
        let info = url.into_connection_info()?;
        let (host, port, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (host.clone(), *port, None),
            ConnectionAddr::TcpTls { host, port, insecure: false, .. } => {
                let connector = TlsConnector::from(Arc::new(ClientConfig::with_platform_verifier()?));
                (host.clone(), *port, Some((connector, ServerName::try_from(host.clone())?)))
            }
            _ => return Err("only host:port and rediss://host:port are supported".into()),
        };
        let mut login = info.redis_settings().clone().set_db(settings.db);
        if let Some(password) = &settings.password {
            login = login.set_password(password);
        }
        Ok(Self {
            host,
            port,
            tls,
            user_timeout: settings.operation_timeout.max(TCP_USER_TIMEOUT_MIN),
            login,
        })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Connects to the first address of the host that responds, and logs in.
    pub(crate) async fn connect(&self) -> Result<Connection, BoxError> {
        let addresses: Vec<_> = lookup_host((self.host.as_str(), self.port)).await?.collect();
        if addresses.is_empty() {
            return Err("the host name has no address".into());
        }
        let attempts = addresses.into_iter().map(|address| Box::pin(self.connect_to(address)));
        let (stream, _) = select_ok(attempts).await?;
        let meter = Arc::new(Meter::default());
        let stream = Metered { stream, meter: Arc::clone(&meter) };
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (commands, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        Ok(Connection { commands, meter, _driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))) })
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<SocketStream> {
        let stream = TcpStream::connect(address).await?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        Ok(match &self.tls {
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
