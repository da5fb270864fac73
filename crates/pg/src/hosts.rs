//! The hosts of a connection string, one by one: the driver's own settings contain all of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::net::lookup_host;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::open_error::OpenFailureCause;

/// The host that worked last, shared by all pools of one connection string.
#[derive(Clone, Debug)]
pub(crate) struct LastGood(pub(crate) Arc<AtomicUsize>);

impl Default for LastGood {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

/// The driver's settings for one host, without options.
pub(crate) struct SingleHost {
    host: Host,
    port: u16,
    pub(crate) config: Config,
}

impl fmt::Display for SingleHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
            Host::Unix(path) => write!(f, "{}:{}", path.display(), self.port),
        }
    }
}

impl SingleHost {
    /// The settings, once for each address to which the host's name resolves now.
    pub(crate) async fn addresses(&self) -> Result<Vec<Config>, OpenFailureCause> {
        let name = match &self.host {
            Host::Tcp(name) if self.config.get_hostaddrs().is_empty() => name,
            _ => return Ok(vec![self.config.clone()]),
        };
        let found = lookup_host((name.as_str(), self.port)).await.map_err(OpenFailureCause::NameLookup)?;
        Ok(found.map(|address| self.config.clone().hostaddr(address.ip()).clone()).collect())
    }
}

/// The settings, once for each host, without the other hosts and without options.
pub(crate) fn hosts_of(config: &Config) -> Vec<SingleHost> {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate();
    hosts
        .map(|(index, host)| {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            let mut single = without_hosts_and_options(config);
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

/// A copy without hosts and options: the driver cannot remove them from its settings.
fn without_hosts_and_options(config: &Config) -> Config {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dsn;

    #[test]
    fn the_settings_of_a_single_host_are_those_of_the_string() {
        let text = "postgres://me:secret@a:7/x?connect_timeout=7&application_name=n&target_session_attrs=read-write&\
            load_balance_hosts=random&options=-c%20geqo%3Doff&sslmode=require&channel_binding=require&hostaddr=10.0.0.1&\
            keepalives_idle=9&keepalives_interval=8&keepalives_count=3&tcp_user_timeout=4&sslnegotiation=direct";
        let dsn = Dsn::parse(text).expect("a connection string");
        let [mut single] = hosts_of(dsn.config()).try_into().map_err(|_| "several hosts").expect("one host");
        assert_eq!(single.config.get_options(), None);
        single.config.options("-c geqo=off");
        assert!(single.config == *dsn.config(), "{:?} and {:?}", single.config, dsn.config());
    }
}
