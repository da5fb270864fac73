//! Accepting connections, a bounded number of them, and stopping.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::connection::{Deadline, Timeouts, Watched};

/// How long requests in flight may take once the listener stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a connection could not be accepted, for example because no file descriptor is left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most connections at a time; further ones wait in the backlog of the operating system.
    pub max_connections: usize,
    /// The largest request body that is read, in bytes.
    pub max_body_bytes: usize,
    /// How long a client may take.
    pub timeouts: Timeouts,
    /// The response to a body that is larger or could not be read.
    pub body_too_large: fn() -> Response,
}

/// Listens on `host` and `port`; without a host on every interface, IPv6 and IPv4 where the machine has both. With port 0
/// the operating system chooses.
pub async fn bind(host: Option<&str>, port: u16) -> io::Result<TcpListener> {
    match host {
        Some(host) => TcpListener::bind((host, port)).await,
        None => {
            let every =
                [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
            TcpListener::bind(every.as_slice()).await
        }
    }
}

/// Serves `router` until `stop`, then drains what is in flight.
pub async fn serve(listener: TcpListener, router: Router, settings: Settings, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(settings.max_connections));
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &permits)).await {
        match accepted {
            Ok((stream, permit)) => {
                let serving = serve_connection(stream, router.clone(), settings, stop.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_RETRY_INTERVAL)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, all_ended).await.is_err() {
        tracing::debug!("closed connections with requests in flight while stopping");
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

/// Serves one connection until it ends, its deadline passes, or it is idle and the listener stops.
async fn serve_connection(stream: TcpStream, router: Router, settings: Settings, stop: CancellationToken) {
    let deadline = Deadline::new(settings.timeouts);
    let service = service_fn(|request| answer(request, router.clone(), settings, deadline.clone()));
    let io = TokioIo::new(Watched::new(stream, deadline.clone()));
    // Its own timer for heads is off: see connection.rs.
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let mut asked_to_stop = false;
    loop {
        tokio::select! {
            outcome = &mut connection => {
                if let Err(error) = outcome {
                    tracing::debug!(error = %error, "a connection failed");
                }
                return;
            }
            () = deadline.passed() => return,
            () = stop.cancelled(), if !asked_to_stop => {
                asked_to_stop = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Reads the whole request, then answers it.
async fn answer(
    request: Request<Incoming>,
    router: Router,
    settings: Settings,
    deadline: Deadline,
) -> hyper::Result<Response> {
    deadline.begin_request();
    let (head, body) = request.into_parts();
    let response = match to_bytes(Body::new(body), settings.max_body_bytes).await {
        Ok(body) => router
            .oneshot(Request::from_parts(head, Body::from(body)))
            .await
            .unwrap_or_else(|never| match never {}),
        Err(_) => (settings.body_too_large)(),
    };
    deadline.end_request();
    Ok(response)
}

#[cfg(test)]
mod tests;
