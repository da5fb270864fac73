//! Sources of connections: a TCP port, or a Unix socket (unix.rs).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

/// The number of connections that the operating system queues before they are accepted; it may have a lower
/// limit. The 128 of `TcpListener::bind` are too few for clients that connect at once: while the queue is
/// full, Linux drops the last packet of a handshake that the client considers complete, and may reset the
/// connection when its first bytes arrive.
pub(crate) const LISTEN_BACKLOG: u32 = 4_096;

/// A source of connections for [`serve`](crate::serve).
pub trait ConnectionSource: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A guard that is kept until the last connection is closed.
    type Remains: Send;

    /// Accepts the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The address of the other end of a connection, if it has one.
    fn peer(stream: &Self::Stream) -> Option<IpAddr>;

    /// Stops accepting; further connections are refused.
    fn close(self) -> Self::Remains;
}

impl ConnectionSource for TcpListener {
    type Stream = TcpStream;
    type Remains = ();

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Fails if the connection is already closed, which its first read shows.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    fn peer(stream: &TcpStream) -> Option<IpAddr> {
        stream.peer_addr().ok().map(|addr| addr.ip())
    }

    fn close(self) {}
}

/// Listens on `host` and `port`; without a host on every interface, IPv6 and IPv4 if the machine has both.
/// With port 0 the operating system chooses. Fails with the error of the last address if none can be bound.
pub async fn bind(host: Option<&str>, port: u16) -> io::Result<TcpListener> {
    let every = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
    let addrs = match host {
        Some(host) => lookup_host((host, port)).await?.collect(),
        None => every.to_vec(),
    };
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the host has no address");
    for addr in addrs {
        match listen(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Like `TcpListener::bind`: a restart does not wait for connections that the previous process closed.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(LISTEN_BACKLOG)
}
