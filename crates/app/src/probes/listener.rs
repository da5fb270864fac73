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

use super::connection::{Deadline, Watched};
use super::{ReadyState, refusal, router};
use crate::config::{HttpAddr, HttpTimeouts};

/// The most connections at a time; further ones wait in the backlog of the system.
const MAX_CONNECTIONS: usize = 256;

/// The largest body that is read, in bytes, and thrown away: no endpoint takes one.
const MAX_BODY: usize = 64 * 1024;

/// How long requests in flight may take once the listener stops.
const GRACE: Duration = Duration::from_secs(1);

/// The pause after a connection could not be accepted, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on `addr`: without a host on every interface, IPv6 and IPv4 where the machine has both.
pub async fn bind(addr: &HttpAddr) -> io::Result<TcpListener> {
    match &addr.host {
        Some(host) => TcpListener::bind((host.as_str(), addr.port)).await,
        None => {
            let every = [
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, addr.port)),
                (Ipv4Addr::UNSPECIFIED, addr.port).into(),
            ];
            TcpListener::bind(every.as_slice()).await
        }
    }
}

/// Serves the probes until `stop`, then ends what is in flight.
pub async fn serve(
    listener: TcpListener,
    state: ReadyState,
    timeouts: HttpTimeouts,
    stop: CancellationToken,
) {
    let router = router(state);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &permits)).await {
        match accepted {
            Ok((stream, permit)) => {
                let serving = serve_connection(stream, router.clone(), timeouts, stop.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, all_ended).await.is_err() {
        tracing::debug!("connections were cut while stopping");
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

/// Serves one connection until it ends, its deadline passes, or it is idle and the process stops.
async fn serve_connection(
    stream: TcpStream,
    router: Router,
    timeouts: HttpTimeouts,
    stop: CancellationToken,
) {
    let deadline = Deadline::new(timeouts);
    let service = service_fn(|request| answer(request, router.clone(), deadline.clone()));
    let io = TokioIo::new(Watched::new(stream, deadline.clone()));
    // Its own timer for heads is off: see connection.rs.
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let mut asked_to_stop = false;
    loop {
        tokio::select! {
            outcome = &mut connection => {
                if let Err(error) = outcome {
                    tracing::debug!(error = %error, "a connection ended badly");
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
async fn answer(request: Request<Incoming>, router: Router, deadline: Deadline) -> hyper::Result<Response> {
    deadline.begin_request();
    let (head, body) = request.into_parts();
    let response = match to_bytes(Body::new(body), MAX_BODY).await {
        Ok(_) => router
            .oneshot(Request::from_parts(head, Body::empty()))
            .await
            .unwrap_or_else(|never| match never {}),
        Err(_) => refusal(axum::http::StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
    };
    deadline.end_request();
    Ok(response)
}

#[cfg(test)]
mod tests;
