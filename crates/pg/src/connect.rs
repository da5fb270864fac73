//! Opening a connection: one host after another, each with its own time limit.
//!
//! The driver tries several hosts too, but without a deadline for each: a host that drops packets, or accepts
//! and does not respond, uses up the time of all. Here an attempt covers everything up to the first statement
//! (name lookup, TCP, TLS, authentication, the check of `target_session_attrs`). If a host fails or is too
//! slow, the next one is tried. The attempts at all hosts fit into [`OPEN_TIMEOUT`]. All pools that were made
//! from the same connection string try the host that worked last first; the other hosts follow in the given
//! order, or shuffled with `load_balance_hosts=random`.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ambient::{Jitter, RandomJitter};
use futures_util::{FutureExt, TryFutureExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::LoadBalanceHosts;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use crate::dsn::Dsn;
use crate::hosts::{LastGood, SingleHost, hosts_of};
use crate::open_error::{OpenError, OpenFailure, OpenFailureCause};
use crate::pooler::{self, Comparison, Comparisons, Mark, OwnSession};
use crate::server_error::DeadlinePassed;
use crate::server_kind::ServerKind;
use crate::{DsnError, PgError, options};

/// The time limit of one attempt to open a connection, unless `connect_timeout` sets another.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of the attempts at all hosts of a connection string together.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// A client, the task that carries its traffic, and, behind a pooler, the session that belongs to it alone.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) connection: JoinHandle<()>,
    pub(crate) pooled: Option<OwnSession>,
}

/// A client and the task that carries its traffic.
type Dialled = (Client, JoinHandle<()>);

/// Opens connections to the hosts of one connection string.
pub(crate) struct Connector {
    hosts: Vec<SingleHost>,
    options: String,
    tls: Option<MakeRustlsConnect>,
    attempt_timeout: Duration,
    shuffled: bool,
    kind: ServerKind,
    last_good: LastGood,
    comparisons: Comparisons,
    announced: Option<Arc<Notify>>,
    /// True if the session is used for a single query: it gets no settings and is not checked.
    plain: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.hosts.iter().map(|host| format!("{host}"))).finish()
    }
}

impl Connector {
    /// A connector to the hosts of `dsn`, with the settings of `config`, which is based on `dsn`.
    pub(crate) fn new(dsn: &Dsn, config: &Config) -> Result<Self, DsnError> {
        Ok(Self {
            hosts: hosts_of(config),
            options: config.get_options().unwrap_or_default().to_owned(),
            tls: dsn.tls()?.map(MakeRustlsConnect::new),
            attempt_timeout: config.get_connect_timeout().copied().unwrap_or(ATTEMPT_TIMEOUT),
            shuffled: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
            kind: dsn.kind(),
            last_good: dsn.last_good().clone(),
            comparisons: dsn.comparisons().clone(),
            announced: None,
            plain: false,
        })
    }

    /// Opens connections without the settings and the check of a session that is kept: a server that is too
    /// old may not support them.
    pub(crate) fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Forwards every notification on a channel that a connection listens to, to `announced`.
    pub(crate) fn announcing_to(self, announced: Arc<Notify>) -> Self {
        Self { announced: Some(announced), ..self }
    }

    /// Opens a connection to the first host that can be used, with its settings in force, within
    /// [`OPEN_TIMEOUT`].
    pub(crate) async fn open(&self) -> Result<Opened, OpenError> {
        let mut failures = Vec::new();
        for kind in self.kind.rounds() {
            failures.clear();
            for index in self.order(&RandomJitter) {
                match self.try_host(&self.hosts[index], *kind).await {
                    Ok(opened) => {
                        self.last_good.0.store(index, Ordering::Relaxed);
                        return Ok(opened);
                    }
                    Err(cause) => failures.push(OpenFailure { host: self.hosts[index].to_string(), cause }),
                }
            }
        }
        Err(OpenError(failures))
    }

    /// The indexes of the hosts in the order in which they are tried.
    fn order(&self, jitter: &impl Jitter) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        if self.shuffled {
            for last in (1..order.len()).rev() {
                let chosen = (jitter.fraction() * (last + 1) as f64) as usize;
                order.swap(last, chosen.min(last));
            }
        }
        let last_good = self.last_good.0.load(Ordering::Relaxed);
        // Stable sort: the other hosts keep their order.
        order.sort_by_key(|&index| index != last_good);
        order
    }

    /// Tries every address of a host. Returns the error of the last attempt.
    async fn try_host(&self, host: &SingleHost, kind: ServerKind) -> Result<Opened, OpenFailureCause> {
        let started = Instant::now();
        let attempts = self.hosts.len() * self.kind.rounds().len();
        let share = OPEN_TIMEOUT / u32::try_from(attempts).unwrap_or(u32::MAX);
        let look_up_timeout = self.attempt_timeout.min(share);
        let addresses = timeout(look_up_timeout, host.addresses())
            .await
            .map_err(|_| OpenFailureCause::late(look_up_timeout))??;
        let mut cause = OpenFailureCause::NoAddress;
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let allowed = self.attempt_timeout.min(share.saturating_sub(started.elapsed()) / count);
        for config in addresses {
            cause = match self.connect(&config, kind, allowed).await {
                Ok(opened) => return Ok(opened),
                Err(cause) => cause,
            };
        }
        Err(cause)
    }

    /// Requests that the server cancel the statement of a connection. If the request fails, the statement
    /// runs on.
    pub(crate) async fn cancel(&self, token: CancelToken) {
        drop(match &self.tls {
            None => token.cancel_query(NoTls).await,
            Some(tls) => token.cancel_query(tls.clone()).await,
        });
    }

    /// Opens a connection with its settings in force, within `allowed`: a pooler may drop the settings, or
    /// refuse a connection that carries some.
    async fn connect(
        &self,
        config: &Config,
        kind: ServerKind,
        allowed: Duration,
    ) -> Result<Opened, OpenFailureCause> {
        let deadline = Instant::now() + allowed;
        let mark = Mark::new();
        let (client, connection) = timeout_at(deadline, self.log_in(config, &mark))
            .await
            .map_err(|_| OpenFailureCause::late(allowed))?
            .map_err(OpenFailureCause::driver)?;
        timeout_at(deadline, kind.check(&client)).await.map_err(|_| OpenFailureCause::late(allowed))??;
        if self.plain {
            return Ok(Opened { client, connection, pooled: None });
        }
        let seen = timeout_at(deadline, pooler::see(&client))
            .await
            .map_err(|_| OpenFailureCause::NoSession(DeadlinePassed::new(allowed)))??;
        let in_force = mark.is_on(&seen);
        let pooled = if in_force && pooler::is_direct(&client, &seen).await {
            None
        } else {
            let comparison = self.comparisons.of(config);
            let mut refusal = None;
            let own = self.own_session(&client, &mark, in_force, config, &mut refusal);
            let own = timeout_at(deadline, own).await.unwrap_or_else(|_| {
                Err(if comparison.has_passed() {
                    OpenFailureCause::late(allowed)
                } else {
                    OpenFailureCause::NotShown(refusal.map(Box::new))
                })
            });
            Some(own?)
        };
        let connection = match &pooled {
            None => connection,
            Some(session) => forget_comparison_at_end(connection, session.comparison()),
        };
        Ok(Opened { client, connection, pooled })
    }

    /// Connects with the options and the mark, or without them if they are refused.
    async fn log_in(&self, config: &Config, mark: &Mark) -> Result<Dialled, tokio_postgres::Error> {
        if self.plain {
            return self.dial(config).await;
        }
        let mut marked = config.clone();
        marked.options(format!("{} {}", self.options, mark.option()));
        match self.dial(&marked).await {
            Err(error) if pooler::refuses_options(&error) => self.dial(config).await,
            dialled => dialled,
        }
    }

    /// The session that belongs to `client` alone, with the settings of `config`.
    async fn own_session(
        &self,
        client: &Client,
        mark: &Mark,
        in_force: bool,
        config: &Config,
        refusal: &mut Option<OpenFailureCause>,
    ) -> Result<OwnSession, OpenFailureCause> {
        let set = async |settings: &[(String, String)]| {
            client.batch_execute(&options::statement(settings)).await.map_err(OpenFailureCause::driver)
        };
        if !in_force {
            set(&[mark.setting()]).await?;
        }
        let second = || {
            let other = async { self.dial(config).await.map(|(other, _)| other) };
            other.map_err(OpenFailureCause::driver).boxed()
        };
        let session = OwnSession::shown(client, mark, self.comparisons.of(config), &second, refusal).await?;
        // Not earlier: the session could still be that of another client, and its settings would change.
        if !in_force {
            let mut settings = vec![mark.setting(), ("client_encoding".to_owned(), "UTF8".to_owned())];
            settings.extend(
                config.get_application_name().map(|name| ("application_name".to_owned(), name.to_owned())),
            );
            settings.extend(options::settings(&self.options).ok_or(OpenFailureCause::Options)?);
            // The previous client's settings, role, locks and prepared statements remain in the session if
            // the pooler does not reset it.
            client.batch_execute("DISCARD ALL").await.map_err(OpenFailureCause::driver)?;
            set(&settings).await?;
            session.still_serves(client).await?;
        }
        Ok(session)
    }

    async fn dial(&self, config: &Config) -> Result<Dialled, tokio_postgres::Error> {
        // The client reports the error that ended its connection.
        Ok(match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                (client, tokio::spawn(carry(connection, self.announced.clone())))
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                (client, tokio::spawn(carry(connection, self.announced.clone())))
            }
        })
    }
}

/// Wraps the task of a connection. If the other side ends the connection, the next connection to the pooler
/// is compared again: the pooler may have been restarted in another mode, and idle connections do not notice.
fn forget_comparison_at_end(connection: JoinHandle<()>, comparison: Arc<Comparison>) -> JoinHandle<()> {
    let connection = AbortOnDropHandle::new(connection);
    tokio::spawn(async move {
        drop(connection.await);
        comparison.forget();
    })
}

/// Carries the traffic of a connection until it ends. Notifications are dropped if `announced` is `None`.
async fn carry<S, T>(mut connection: Connection<S, T>, announced: Option<Arc<Notify>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Some(announced) = announced else {
        drop(connection.await);
        return;
    };
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message {
            announced.notify_one();
        }
    }
    // Dropping the connection ends the wait of the listener: no further notification will come.
    drop(connection);
    announced.notify_one();
}

/// Opens one connection outside any pool.
pub(crate) async fn connect(dsn: &Dsn, config: &Config, operation: &'static str) -> Result<Opened, PgError> {
    let connector = Connector::new(dsn, config).map_err(|error| PgError::unavailable(operation, error))?;
    connector.open().await.map_err(|error| PgError::unavailable(operation, error))
}

#[cfg(test)]
mod tests {
    use ambient::FixedJitter;
    use tokio::net::TcpListener;

    use super::*;

    fn connector(text: &str) -> Connector {
        let dsn = Dsn::parse(text).expect("a connection string");
        Connector::new(&dsn, dsn.config()).expect("no TLS")
    }

    #[test]
    fn hosts_are_tried_in_their_order_but_for_the_last_good_one() {
        let connector = connector("postgres://me@a,b,c,d/x");
        assert_eq!(connector.order(&FixedJitter(0.5)), [0, 1, 2, 3]);
        connector.last_good.0.store(2, Ordering::Relaxed);
        assert_eq!(connector.order(&FixedJitter(0.5)), [2, 0, 1, 3]);
    }

    #[test]
    fn shuffled_hosts_are_all_tried_once_and_the_last_good_one_first() {
        let connector = connector("postgres://me@a,b,c,d/x?load_balance_hosts=random");
        assert_eq!(connector.order(&FixedJitter(0.0)), [1, 2, 3, 0]);
        for fraction in [0.0, 0.3, 0.6, 0.999] {
            connector.last_good.0.store(3, Ordering::Relaxed);
            let mut order = connector.order(&FixedJitter(fraction));
            assert_eq!(order[0], 3);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn what_was_made_from_one_string_shares_the_last_good_host() {
        let dsn = Dsn::parse("postgres://me@a,b/x").expect("a connection string");
        let one = Connector::new(&dsn, dsn.config()).expect("no TLS");
        let other = Connector::new(&dsn.clone(), dsn.config()).expect("no TLS");
        one.last_good.0.store(1, Ordering::Relaxed);
        assert_eq!(other.order(&FixedJitter(0.0)), [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_host_is_tried_and_the_error_names_each_with_its_cause() {
        // The first accepts connections into its backlog and never responds; the second refuses.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let refusing = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (silent_at, refusing_at) =
            (silent.local_addr().expect("bound"), refusing.local_addr().expect("bound"));
        drop(refusing);
        let connector = connector(&format!("postgres://me:s3cret@{silent_at},{refusing_at},{silent_at}/x"));
        let begun = Instant::now();
        let error = connector.open().await.expect_err("no host serves").to_string();
        assert!(begun.elapsed() <= OPEN_TIMEOUT, "{:?}", begun.elapsed());
        assert_eq!(error.matches(&format!("{silent_at}: no response within 2s")).count(), 2, "{error}");
        assert!(
            error.contains(&format!("{refusing_at}: error connecting to server: Connection refused")),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_times_of_all_hosts_fit_whatever_the_string_sets() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("bound");
        let hosts = vec![address.to_string(); 5].join(",");
        let connector = connector(&format!("postgres://me@{hosts}/x?connect_timeout=60"));
        let begun = Instant::now();
        let error = connector.open().await.expect_err("no host serves").to_string();
        assert_eq!(error.matches("no response within 3s").count(), 5, "{error}");
        assert!(begun.elapsed() <= OPEN_TIMEOUT + Duration::from_millis(100), "{:?}", begun.elapsed());
    }
}
