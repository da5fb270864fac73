//! Poolers between this process and the server.
//!
//! A connection to the server itself keeps what is set and prepared on it. A connection to a pooler may lead
//! to another session of the server with each transaction: settings are gone, or are those of another client,
//! and the name of a prepared statement refers to what another process prepared under it. So the crate uses
//! prepared statements only on a connection that demonstrably leads to the server itself: the server reports
//! the same process id that it gave for cancelling, whereas a pooler gives one of its own. Any other
//! connection sends each statement with its text, and must show that one session of the server belongs to it
//! alone: when it is opened, and whenever it is borrowed. [`OwnSession`] decides this, and nothing else does.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use ambient::{RandomTokens, Tokens};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use crate::ServerError;
use crate::open_error::OpenFailureCause;

/// A setting without a meaning for the server. Its value distinguishes a session from all others.
const MARK: &str = "pg_client.mark";
/// The number of rounds in which the two connections are compared.
const ROUNDS: usize = 4;
/// The pause before the second connection is tried again, if the pooler refused it.
const SECOND_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit for a borrowed connection to show that its session is still its own.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// A random text that identifies a session of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark(String);

/// The session that served a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionSeen {
    mark: Option<String>,
    pid: i32,
}

/// The session of the server that belongs to one connection through a pooler.
#[derive(Debug)]
pub(crate) struct OwnSession {
    seen: SessionSeen,
    comparison: Arc<Comparison>,
}

/// Opens a connection to the pooler.
pub(crate) type Dial<'a> = dyn Fn() -> BoxFuture<'a, Result<Client, OpenFailureCause>> + Sync + 'a;

/// The state of the comparison for one address: shown or not that the pooler keeps a session for each client.
/// It is forgotten with the last connection to that address, and when the pooler ends a connection: it may
/// have been restarted in another mode.
#[derive(Default, Debug)]
pub(crate) struct Comparison {
    passed: AtomicBool,
    /// Connections that are opened at the same time wait for one comparison instead of making one each.
    running: tokio::sync::Mutex<()>,
}

/// The comparisons by address, shared by everything that was made from one connection string.
#[derive(Clone, Default, Debug)]
pub(crate) struct Comparisons(Arc<std::sync::Mutex<HashMap<String, Weak<Comparison>>>>);

impl Comparisons {
    /// The comparison for the address in `config`.
    pub(crate) fn of(&self, config: &Config) -> Arc<Comparison> {
        let address =
            format!("{:?} {:?} {:?}", config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, comparison| comparison.strong_count() > 0);
        if let Some(known) = all.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        let comparison = Arc::default();
        all.insert(address, Arc::downgrade(&comparison));
        comparison
    }
}

impl Comparison {
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::SeqCst)
    }

    /// Forgets the result: the next connection is compared again.
    pub(crate) fn forget(&self) {
        self.passed.store(false, Ordering::SeqCst);
    }
}

impl Mark {
    pub(crate) fn new() -> Self {
        Self(RandomTokens.next().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The option that sets the mark when a connection is opened.
    pub(crate) fn option(&self) -> String {
        format!("-c {MARK}={}", self.0)
    }

    /// True if the session has the mark. Then all options of the connection are in force, otherwise none.
    pub(crate) fn is_on(&self, seen: &SessionSeen) -> bool {
        seen.mark.as_ref() == Some(&self.0)
    }

    /// The setting by name and value, for a session whose options are not in force.
    pub(crate) fn setting(&self) -> (String, String) {
        (MARK.to_owned(), self.0.clone())
    }
}

/// True if a server or a pooler refused the connection because of its options.
pub(crate) fn refuses_options(error: &tokio_postgres::Error) -> bool {
    let refusals = [SqlState::PROTOCOL_VIOLATION, SqlState::FEATURE_NOT_SUPPORTED];
    error.code().is_some_and(|state| refusals.contains(state))
}

/// The session that serves the connection now.
pub(crate) async fn see(client: &Client) -> Result<SessionSeen, OpenFailureCause> {
    let sql = format!("SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('{MARK}', true)");
    let messages = client.simple_query(&sql).await.map_err(OpenFailureCause::driver)?;
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.ok_or(OpenFailureCause::SharedSession)?;
    let column = |index| row.try_get(index).ok().flatten();
    let pid = column(0).and_then(|pid| pid.parse().ok()).ok_or(OpenFailureCause::SharedSession)?;
    // A setting that was reset is empty, not NULL.
    Ok(SessionSeen { mark: column(1).filter(|mark| !mark.is_empty()).map(str::to_owned), pid })
}

/// True if the connection leads to the server itself: then the process id that was sent when the connection
/// was opened is that of the session. A pooler sends an id of its own, because the server process is chosen
/// later.
pub(crate) async fn is_direct(client: &Client, seen: &SessionSeen) -> bool {
    process_id_for_cancelling(client).await == Some(seen.pid)
}

impl OwnSession {
    /// Returns the session that serves `client`, after checking that it has the mark and that the pooler
    /// keeps it for this client. The check needs a second connection, opened by `second`, unless `comparison`
    /// has passed before. If the pooler refuses that connection, opening is retried until the caller stops
    /// waiting, and `refusal` contains the reason. Changes nothing in the session.
    pub(crate) async fn shown(
        client: &Client,
        mark: &Mark,
        comparison: Arc<Comparison>,
        second: &Dial<'_>,
        refusal: &mut Option<OpenFailureCause>,
    ) -> Result<Self, OpenFailureCause> {
        let seen = see(client).await?;
        if !mark.is_on(&seen) {
            return Err(OpenFailureCause::SharedSession);
        }
        let session = Self { seen, comparison };
        session.still_serves(client).await?;
        let running = session.comparison.running.lock().await;
        while !session.comparison.has_passed() {
            match session.compare(client, second).await {
                Ok(()) => session.comparison.passed.store(true, Ordering::SeqCst),
                Err(OpenFailureCause::SharedSession) => return Err(OpenFailureCause::SharedSession),
                Err(cause) if client.is_closed() => return Err(cause),
                Err(cause) => {
                    *refusal = Some(cause);
                    sleep(SECOND_RETRY_INTERVAL).await;
                }
            }
        }
        drop(running);
        Ok(session)
    }

    /// The comparison that showed that the session stays with its client.
    pub(crate) fn comparison(&self) -> Arc<Comparison> {
        Arc::clone(&self.comparison)
    }

    /// Checks that the same session still serves `client`. If not, the next connection to the pooler is
    /// compared again.
    pub(crate) async fn still_serves(&self, client: &Client) -> Result<(), OpenFailureCause> {
        let seen = timeout(CHECK_TIMEOUT, see(client)).await;
        let seen = seen.map_err(|_| OpenFailureCause::late(CHECK_TIMEOUT))??;
        if seen == self.seen {
            return Ok(());
        }
        self.comparison.forget();
        Err(OpenFailureCause::SharedSession)
    }

    /// Checks that the session stays with `client` while a second connection to the same pooler runs
    /// transactions. A pooler lends an idle session to the next client: without a second client, `client`
    /// would get the same session each time.
    async fn compare(&self, client: &Client, second: &Dial<'_>) -> Result<(), OpenFailureCause> {
        let other = second().await?;
        // A pooler accepts a connection before it has a session for it. Once it has one, only a pooler that
        // shares sessions refuses a transaction.
        see(&other).await?;
        for _ in 0..ROUNDS {
            other.batch_execute("BEGIN").await.map_err(no_transactions)?;
            let seen = see(&other).await?;
            if seen.pid == self.seen.pid || seen.mark == self.seen.mark {
                return Err(OpenFailureCause::SharedSession);
            }
            self.still_serves(client).await?;
            other.batch_execute("COMMIT").await.map_err(OpenFailureCause::driver)?;
            self.still_serves(client).await?;
        }
        Ok(())
    }
}

/// The cause of a failed `BEGIN`: a pooler in statement mode refuses transactions.
fn no_transactions(error: tokio_postgres::Error) -> OpenFailureCause {
    match error.as_db_error() {
        Some(said) if *said.code() == SqlState::PROTOCOL_VIOLATION => OpenFailureCause::SharedSession,
        Some(said) => OpenFailureCause::Server(ServerError::new(said)),
        None => OpenFailureCause::Driver(error),
    }
}

/// The process id that came with the connection. The driver discloses it only in a cancel request, which is
/// written to memory here.
async fn process_id_for_cancelling(client: &Client) -> Option<i32> {
    let mut written = Written(Vec::new());
    client.cancel_token().cancel_query_raw(&mut written, Plain).await.ok()?;
    // The request ends with the process id and a secret, of four bytes each.
    let (_, ids) = written.0.split_last_chunk::<8>()?;
    Some(i32::from_be_bytes(*ids.first_chunk()?))
}

/// A socket that keeps what is written to it, and accepts TLS.
struct Written(Vec<u8>);

/// A TLS connector that changes nothing.
struct Plain;

impl AsyncRead for Written {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        const YES: &[u8] = b"S";
        buffer.put_slice(&YES[..buffer.remaining().min(YES.len())]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Written {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for &mut Written {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<'a> TlsConnect<&'a mut Written> for Plain {
    type Stream = &'a mut Written;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Stream>>;

    fn connect(self, stream: &'a mut Written) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}
