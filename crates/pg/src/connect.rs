//! Opening a connection: one host after the other, each with a time of its own.
//!
//! The driver tries several hosts too, but without a deadline for each: a host that drops packets, or accepts and does not
//! answer, uses up the time of all. Here an attempt covers everything up to the first statement (name look-up, TCP, TLS,
//! authentication, the check of `target_session_attrs`). If a host fails or is too slow, the next one is tried.
//! The times of all hosts fit into [`OPEN_TIMEOUT`]. The host that worked last is tried first, by every pool that was made
//! from the same connection string; the others follow as they were given, or shuffled with `load_balance_hosts=random`.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ambient::{Jitter, RandomJitter};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::dsn::Dsn;
use crate::error::{DeadlinePassed, OpenError, OpenFailure, OpenFailureCause};
use crate::{DsnError, PgError};

/// How long one attempt to open a connection takes at most, unless `connect_timeout` says otherwise.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the attempts at all hosts of a connection string take at most, together.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// The host that worked last, shared by all pools of one connection string.
#[derive(Clone, Debug)]
pub(crate) struct LastGood(Arc<AtomicUsize>);

impl Default for LastGood {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

/// A client and the task that carries its traffic.
pub(crate) type Opened = (Client, JoinHandle<()>);

/// Opens connections to the hosts of one connection string.
pub(crate) struct Connector {
    hosts: Vec<SingleHost>,
    tls: Option<MakeRustlsConnect>,
    attempt_timeout: Duration,
    shuffled: bool,
    last_good: LastGood,
    announced: Option<Arc<Notify>>,
}

/// The driver's settings for one host.
struct SingleHost {
    host: Host,
    port: u16,
    config: Config,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.hosts.iter().map(|host| format!("{host}"))).finish()
    }
}

impl fmt::Display for SingleHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
            Host::Unix(path) => write!(f, "{}:{}", path.display(), self.port),
        }
    }
}

impl Connector {
    /// Connections with the settings of `config`, which is based on `dsn`.
    pub(crate) fn new(dsn: &Dsn, config: &Config) -> Result<Self, DsnError> {
        Ok(Self {
            hosts: hosts_of(config),
            tls: dsn.tls()?.map(MakeRustlsConnect::new),
            attempt_timeout: config.get_connect_timeout().copied().unwrap_or(ATTEMPT_TIMEOUT),
            shuffled: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
            last_good: dsn.last_good().clone(),
            announced: None,
        })
    }

    /// The same, and every announcement on a channel that a connection listens to is passed on to `announced`.
    pub(crate) fn announcing_to(self, announced: Arc<Notify>) -> Self {
        Self { announced: Some(announced), ..self }
    }

    /// Opens a connection to the first host that can be used, within [`OPEN_TIMEOUT`].
    pub(crate) async fn open(&self) -> Result<Opened, OpenError> {
        let mut failures = Vec::new();
        for index in self.order(&RandomJitter) {
            match self.try_host(&self.hosts[index]).await {
                Ok(opened) => {
                    self.last_good.0.store(index, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(cause) => failures.push(OpenFailure { host: self.hosts[index].to_string(), cause }),
            }
        }
        Err(OpenError(failures))
    }

    /// The hosts by their index, in the order in which they are tried.
    fn order(&self, jitter: &impl Jitter) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        if self.shuffled {
            for last in (1..order.len()).rev() {
                let chosen = (jitter.fraction() * (last + 1) as f64) as usize;
                order.swap(last, chosen.min(last));
            }
        }
        let last_good = self.last_good.0.load(Ordering::Relaxed);
        // Stable: the others stay in their order.
        order.sort_by_key(|&index| index != last_good);
        order
    }

    /// Tries every address of a host. The error is that of the last one.
    async fn try_host(&self, host: &SingleHost) -> Result<Opened, OpenFailureCause> {
        let started = Instant::now();
        let share = OPEN_TIMEOUT / u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        let look_up_timeout = self.attempt_timeout.min(share);
        let addresses = timeout(look_up_timeout, host.addresses())
            .await
            .map_err(|_| OpenFailureCause::Late(DeadlinePassed(look_up_timeout)))??;
        let mut cause = OpenFailureCause::NoAddress;
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let allowed = self.attempt_timeout.min(share.saturating_sub(started.elapsed()) / count);
        for config in addresses {
            cause = match timeout(allowed, self.connect(&config)).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => OpenFailureCause::driver(error),
                Err(_) => OpenFailureCause::Late(DeadlinePassed(allowed)),
            };
        }
        Err(cause)
    }

    /// Asks the server to cancel what a connection runs. If that fails, the statement runs until it ends.
    pub(crate) async fn cancel(&self, token: CancelToken) {
        drop(match &self.tls {
            None => token.cancel_query(NoTls).await,
            Some(tls) => token.cancel_query(tls.clone()).await,
        });
    }

    async fn connect(&self, config: &Config) -> Result<Opened, tokio_postgres::Error> {
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

/// Carries the traffic of a connection until it ends. Without anyone to tell, announcements are dropped.
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
    // The listener finds out that no further announcement will come.
    drop(connection);
    announced.notify_one();
}

impl SingleHost {
    /// The settings once for each address that the host's name has now.
    async fn addresses(&self) -> Result<Vec<Config>, OpenFailureCause> {
        let name = match &self.host {
            Host::Tcp(name) if self.config.get_hostaddrs().is_empty() => name,
            _ => return Ok(vec![self.config.clone()]),
        };
        let found = lookup_host((name.as_str(), self.port)).await.map_err(OpenFailureCause::NameLookup)?;
        Ok(found.map(|address| self.config.clone().hostaddr(address.ip()).clone()).collect())
    }
}

/// The settings once for each host, with nothing left of the others.
fn hosts_of(config: &Config) -> Vec<SingleHost> {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate();
    hosts
        .map(|(index, host)| {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            let mut single = without_hosts(config);
            match host {
                Host::Tcp(name) => single.host(name),
                Host::Unix(path) => single.host_path(path),
            };
            if let Some(address) = config.get_hostaddrs().get(index) {
                single.hostaddr(*address);
            }
            single.port(port);
            SingleHost { host: host.clone(), port, config: single }
        })
        .collect()
}

/// The driver has no way to take a host out of its settings.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    if let Some(user) = config.get_user() {
        copy.user(user);
    }
    if let Some(password) = config.get_password() {
        copy.password(password);
    }
    if let Some(database) = config.get_dbname() {
        copy.dbname(database);
    }
    if let Some(options) = config.get_options() {
        copy.options(options);
    }
    if let Some(name) = config.get_application_name() {
        copy.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        copy.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        copy.tcp_user_timeout(*limit);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        copy.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        copy.keepalives_retries(retries);
    }
    copy.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    copy
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
    fn the_settings_of_a_single_host_are_those_of_the_string() {
        let text = "postgres://me:secret@a:7/x?connect_timeout=7&application_name=n&target_session_attrs=read-write&\
            load_balance_hosts=random&options=-c%20geqo%3Doff&sslmode=require&channel_binding=require&hostaddr=10.0.0.1&\
            keepalives_idle=9&keepalives_interval=8&keepalives_retries=3&tcp_user_timeout=4&sslnegotiation=direct";
        let dsn = Dsn::parse(text).expect("a connection string");
        let [single] = hosts_of(dsn.config()).try_into().map_err(|_| "several hosts").expect("one host");
        assert!(single.config == *dsn.config(), "{:?} and {:?}", single.config, dsn.config());
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
        // The backlog of the first accepts connections, and nothing answers; the second refuses.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let refusing = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (silent_at, refusing_at) =
            (silent.local_addr().expect("bound"), refusing.local_addr().expect("bound"));
        drop(refusing);
        let connector = connector(&format!("postgres://me:s3cret@{silent_at},{refusing_at},{silent_at}/x"));
        let begun = Instant::now();
        let error = connector.open().await.expect_err("no host serves").to_string();
        assert!(begun.elapsed() <= OPEN_TIMEOUT, "{:?}", begun.elapsed());
        assert_eq!(error.matches(&format!("{silent_at}: no answer within 2s")).count(), 2, "{error}");
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
        assert_eq!(error.matches("no answer within 3s").count(), 5, "{error}");
        assert!(begun.elapsed() <= OPEN_TIMEOUT + Duration::from_millis(100), "{:?}", begun.elapsed());
    }
}
