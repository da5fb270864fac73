//! `healthcheck`: checks the health or readiness of a process of this environment, for the health check of a
//! container.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{Failure, Vars};
use crate::config::{self, HealthTarget, HttpAddr, ServiceHealth, StateHealth};

/// The most bytes of a response that are read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The examples of `healthcheck`.
pub const EXAMPLES: &str = "\
Examples:
  notification healthcheck                  is the service or the relay of this environment ready?
  notification healthcheck --live           does its process live?
  notification healthcheck --state          is the state store of this environment ready, and its table there?
  notification healthcheck --state --live   does its process live, whether or not PostgreSQL does?
  HEALTHCHECK CMD [\"notification\", \"healthcheck\"]     in a Containerfile

It asks GET /readyz on NOTIFICATION_INTERNAL_HTTP_ADDR; with --state on CONNECTOR_SOCKET, else on STATE_PROXY_HTTP_ADDR. With --live
it asks GET /healthz. These listeners speak plain HTTP. No other variable is needed. A service or a relay stays ready while a dependency
is unavailable, because a restart would not help. A state store does not: its /readyz reads the table. Where a failed check restarts
the process, use --state --live.
Exit codes: 0 ready; 1 not ready, or no answer in time; 2 bad configuration or usage.";

/// The probe to check.
#[derive(Args, Debug)]
pub struct HealthcheckArgs {
    /// Ask whether the process lives, ready or not
    #[arg(long)]
    live: bool,
    /// Ask the state store, not the service or the relay; it is ready while it can read its table
    #[arg(long)]
    state: bool,
    /// How long the answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: HealthcheckArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    // Warnings are not printed: the process itself prints them, and a health check runs every few seconds.
    let target = match args.state {
        true => config::load::<StateHealth>(vars)?.config.0,
        false => config::load::<ServiceHealth>(vars)?.config.0,
    };
    let path = if args.live { "/healthz" } else { "/readyz" };
    let allowed = Duration::from_secs(args.timeout);
    let asked = timeout(allowed, ask(&target, path)).await;
    let (status, body) =
        asked.with_context(|| format!("{} gave no answer within {allowed:?}", show(&target)))??;
    if status != 200 {
        return Err(anyhow::anyhow!("{} answered {status}: {}", show(&target), body.trim()).into());
    }
    let word = if args.live { "alive" } else { "ready" };
    writeln!(out, "{word}").context("could not print")?;
    Ok(())
}

fn show(target: &HealthTarget) -> String {
    match target {
        HealthTarget::Tcp(addr) => addr.to_string(),
        HealthTarget::Unix(socket) => socket.display().to_string(),
    }
}

/// Sends a GET request and returns the status and the body of the response.
async fn ask(target: &HealthTarget, path: &str) -> anyhow::Result<(u16, String)> {
    match target {
        HealthTarget::Tcp(addr) => exchange(connect(addr).await?, path).await,
        HealthTarget::Unix(socket) => exchange(connect_unix(socket).await?, path).await,
    }
}

async fn connect(addr: &HttpAddr) -> anyhow::Result<TcpStream> {
    let host = reachable(addr.host.as_deref());
    TcpStream::connect((host.as_str(), addr.port))
        .await
        .with_context(|| format!("could not connect to {addr}"))
}

async fn connect_unix(socket: &Path) -> anyhow::Result<UnixStream> {
    UnixStream::connect(socket).await.with_context(|| format!("could not connect to {}", socket.display()))
}

/// The host for connections from the same machine; loopback if the listener is on every interface.
fn reachable(host: Option<&str>) -> String {
    let loopback = match host.map(str::parse::<IpAddr>) {
        None => Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        Some(Ok(IpAddr::V4(addr))) if addr.is_unspecified() => Some(Ipv4Addr::LOCALHOST.into()),
        Some(Ok(IpAddr::V6(addr))) if addr.is_unspecified() => Some(Ipv6Addr::LOCALHOST.into()),
        Some(_) => None,
    };
    loopback.map_or_else(|| host.unwrap_or_default().to_owned(), |loopback| loopback.to_string())
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
) -> anyhow::Result<(u16, String)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("could not ask")?;
    // The task ends with the process, or when the response has been read.
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await.context("there was no answer in HTTP")?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed).context("could not read the answer")?;
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_listener_on_every_interface_is_reached_by_the_loopback() {
        for (host, expected) in [
            (None, "127.0.0.1"),
            (Some("0.0.0.0"), "127.0.0.1"),
            (Some("::"), "::1"),
            (Some("10.0.0.1"), "10.0.0.1"),
            (Some("localhost"), "localhost"),
        ] {
            assert_eq!(reachable(host), expected, "{host:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_no_http_or_cut_short_is_an_error() {
        for (answer, expected) in [
            ("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nstopping", Some((503, "stopping"))),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nready", None),
            ("HTTP/1.1 200 OK\r\nContent-", None),
            ("SSH-2.0\r\n\r\n", None),
            ("", None),
        ] {
            let (here, mut there) = tokio::io::duplex(1024);
            let answering = async {
                // Bytes sent before the request are not a response to it.
                let mut request = [0; 1024];
                let asked = there.read(&mut request).await.expect("it is open");
                assert!(request[..asked].starts_with(b"GET /readyz HTTP/1.1\r\n"), "{asked} bytes");
                there.write_all(answer.as_bytes()).await.expect("there is room");
                there.shutdown().await.expect("it is open");
            };
            let (got, ()) = tokio::join!(exchange(here, "/readyz"), answering);
            let got = got.ok();
            assert_eq!(got.as_ref().map(|(status, body)| (*status, body.as_str())), expected, "{answer}");
        }
    }
}
