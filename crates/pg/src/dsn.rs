//! Connection strings as libpq and pgx write them: URLs and `key=value` words.
//!
//! The driver rejects or ignores parameters that operators use. They are removed from the string here, and
//! either passed to the driver in its own form or put into effect by this crate. Any other parameter is an
//! error, because a setting that is silently dropped is found out in an incident.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

use crate::conninfo::{self, Pair};
use crate::hosts::LastGood;
use crate::pooler::Comparisons;
use crate::server_kind::ServerKind;
use crate::tls::{Tls, TlsParameters};

/// A parsed connection string. `Debug` and `Display` show it without its password.
#[derive(Clone)]
pub struct Dsn {
    config: Config,
    search_path: Option<String>,
    /// The `options` of the connection string, without `search_path`.
    options: Option<String>,
    tls: Tls,
    /// The kind of server that the string asks for, beyond what the driver checks.
    kind: ServerKind,
    /// The names of the socket parameters that the string sets.
    socket: BTreeSet<&'static str>,
    /// The host that worked last, shared by all clones.
    last_good: LastGood,
    comparisons: Comparisons,
}

/// The reason why a connection string cannot be used. Never contains the string.
#[derive(Debug, thiserror::Error)]
pub enum DsnError {
    /// Not a connection string.
    #[error(
        "not a PostgreSQL connection string (postgres://user:password@host:port/database?search_path=schema)"
    )]
    Syntax(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An invalid value of a parameter.
    #[error("{0}")]
    Parameter(String),
    /// A file that a parameter names cannot be used.
    #[error("{parameter} {path} cannot be read as PEM")]
    File {
        /// The parameter.
        parameter: &'static str,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The prefix of settings for a client's own pool. They are ignored: the pool of this crate has other
/// settings.
const IGNORED_PREFIX: &str = "pool_";
/// Further settings of a client itself (pgx), which are ignored for the same reason.
const IGNORED: [&str; 3] =
    ["default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"];
/// The parameters that the driver puts into effect.
const OF_DRIVER: [&str; 11] = [
    "user",
    "password",
    "dbname",
    "options",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "channel_binding",
    "load_balance_hosts",
];
const TCP_USER_TIMEOUT: &str = "tcp_user_timeout";
/// The parameters of the socket, which override the settings of this crate.
const OF_SOCKET: [&str; 5] =
    [TCP_USER_TIMEOUT, "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"];
/// The parameters that this module reads.
const OF_THIS_CRATE: [&str; 10] = [
    "application_name",
    "fallback_application_name",
    "search_path",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "target_session_attrs",
    "client_encoding",
    "gssencmode",
];
/// The name by which the driver knows `keepalives_count`.
const KEEPALIVES_RETRIES: &str = "keepalives_retries";

impl Dsn {
    /// Parses a URL (`postgres://…`) or a list of `key=value`, and reads the certificates that it names.
    pub fn parse(text: &str) -> Result<Self, DsnError> {
        let text = text.trim();
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            let (rest, extras) = Extras::split(conninfo::of_words(text)?)?;
            return Self::new(&conninfo::to_words(&rest), extras);
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        // The driver would treat the text after the first `@` as a host, and hosts are not kept secret.
        if base.matches('@').count() > 1 {
            return Err(DsnError::Parameter(
                "it holds more than one @: an @ in the password must be written %40".to_owned(),
            ));
        }
        let (rest, extras) = Extras::split(conninfo::of_query(query))?;
        Self::new(&format!("{base}?{}", conninfo::to_query(&rest)), extras)
    }

    fn new(text: &str, extras: Extras) -> Result<Self, DsnError> {
        let mut config = Config::from_str(text).map_err(|error| DsnError::Syntax(error.into()))?;
        if config.get_hosts().is_empty() {
            return Err(DsnError::Parameter("names no host".to_owned()));
        }
        let (hosts, ports, addresses) =
            (config.get_hosts().len(), config.get_ports().len(), config.get_hostaddrs().len());
        if ports > 1 && ports != hosts {
            return Err(DsnError::Parameter(format!("names {hosts} hosts and {ports} ports")));
        }
        if addresses > 0 && addresses != hosts {
            return Err(DsnError::Parameter(format!(
                "names {hosts} hosts and {addresses} addresses of hosts"
            )));
        }
        let options = config.get_options().map(str::to_owned);
        if let Some(path) = &extras.search_path {
            let given = options.as_ref().map(|options| format!("{options} ")).unwrap_or_default();
            config.options(format!("{given}-c search_path={}", escape_option(path)));
        }
        let name = extras.application_name.or(extras.fallback_application_name);
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            config.application_name(name);
        }
        if let Some(limit) = extras.tcp_user_timeout.filter(|limit| !limit.is_zero()) {
            config.tcp_user_timeout(limit);
        }
        let tls = Tls::read(extras.tls)?;
        config.ssl_mode(tls.mode.of_driver()).target_session_attrs(extras.session);
        let (search_path, kind, socket) = (extras.search_path, extras.kind, extras.socket);
        let (last_good, comparisons) = Default::default();
        Ok(Self { config, search_path, options, tls, kind, socket, last_good, comparisons })
    }

    /// The driver's settings.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The kind of server that a connection must lead to, beyond what the driver checks.
    pub(crate) fn kind(&self) -> ServerKind {
        self.kind
    }

    /// True if the string itself sets this parameter of the socket.
    pub(crate) fn sets(&self, parameter: &str) -> bool {
        self.socket.contains(parameter)
    }

    /// The host that worked last.
    pub(crate) fn last_good(&self) -> &LastGood {
        &self.last_good
    }

    /// The results of comparing poolers.
    pub(crate) fn comparisons(&self) -> &Comparisons {
        &self.comparisons
    }

    /// The TLS configuration; `None` for plain text.
    pub(crate) fn tls(&self) -> Result<Option<ClientConfig>, DsnError> {
        self.tls.config()
    }
}

/// The parameters that the driver does not support, or not in the form that operators use.
struct Extras {
    application_name: Option<String>,
    fallback_application_name: Option<String>,
    search_path: Option<String>,
    tls: TlsParameters,
    session: TargetSessionAttrs,
    kind: ServerKind,
    socket: BTreeSet<&'static str>,
    /// The driver would take it for seconds.
    tcp_user_timeout: Option<Duration>,
}

impl Extras {
    /// Divides parameters into those for the driver and the others.
    fn split(pairs: Vec<Pair>) -> Result<(Vec<Pair>, Self), DsnError> {
        let mut extras = Self {
            application_name: None,
            fallback_application_name: None,
            search_path: None,
            tls: TlsParameters::default(),
            session: TargetSessionAttrs::Any,
            kind: ServerKind::Any,
            socket: BTreeSet::new(),
            tcp_user_timeout: None,
        };
        let mut rest = Vec::new();
        for (name, value) in pairs {
            if IGNORED.contains(&&*name) || name.starts_with(IGNORED_PREFIX) {
                continue;
            } else if OF_DRIVER.contains(&&*name) {
                rest.push((name, value));
            } else if let Some(known) = OF_SOCKET.iter().find(|known| **known == name) {
                extras.socket.insert(known);
                if name == TCP_USER_TIMEOUT {
                    extras.tcp_user_timeout = Some(milliseconds(&value)?);
                    continue;
                }
                let of_driver = if name == "keepalives_count" { KEEPALIVES_RETRIES } else { known };
                rest.push((of_driver.to_owned(), value));
            } else {
                extras.take(&name, value)?;
            }
        }
        Ok((rest, extras))
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), DsnError> {
        let problem = |text: &str| Err(DsnError::Parameter(text.to_owned()));
        match name {
            "application_name" => self.application_name = Some(value),
            "fallback_application_name" => self.fallback_application_name = Some(value),
            "search_path" => self.search_path = Some(value),
            "sslmode" => self.tls.mode = Some(value),
            "sslrootcert" => self.tls.root = Some(value),
            "sslcert" => self.tls.certificate = Some(value),
            "sslkey" => self.tls.key = Some(value),
            "target_session_attrs" => (self.session, self.kind) = ServerKind::parse(&value)?,
            "client_encoding" => {
                if !["utf8", "utf-8", "unicode", "auto"].contains(&&*value.to_ascii_lowercase()) {
                    return problem("its client_encoding must be UTF8");
                }
            }
            "gssencmode" if value == "require" => {
                return problem("its gssencmode must not be require: encryption by GSSAPI is not supported");
            }
            "gssencmode" => {}
            other => return Err(unknown(other)),
        }
        Ok(())
    }
}

/// A duration in milliseconds, as libpq has it.
fn milliseconds(text: &str) -> Result<Duration, DsnError> {
    let number = text.parse().map(Duration::from_millis);
    number
        .map_err(|_| DsnError::Parameter(format!("its {TCP_USER_TIMEOUT} must be a number of milliseconds")))
}

/// The error of a parameter that is not known.
fn unknown(name: &str) -> DsnError {
    // Text that is not a name may be part of a password that was not escaped.
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
        return DsnError::Syntax("the name of a parameter has other characters than a to z and _".into());
    }
    let mut known = [&OF_DRIVER[..], &OF_SOCKET, &OF_THIS_CRATE].concat();
    known.sort_unstable();
    DsnError::Parameter(format!("its parameter {name} is not known; known are {}", known.join(", ")))
}

/// Escapes a value for the `options` of a connection, where a backslash keeps the next character in the word.
fn escape_option(value: &str) -> String {
    value.replace('\\', "\\\\").replace(' ', "\\ ")
}

impl fmt::Display for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let password = if config.get_password().is_some() { ":****" } else { "" };
        write!(f, "postgres://{}{password}@", config.get_user().unwrap_or_default())?;
        for (index, host) in config.get_hosts().iter().enumerate() {
            let port = config.get_ports().get(index).or(config.get_ports().first()).copied().unwrap_or(5432);
            let separator = if index == 0 { "" } else { "," };
            match host {
                Host::Tcp(name) => write!(f, "{separator}{name}:{port}")?,
                Host::Unix(path) => write!(f, "{separator}{}:{port}", path.display())?,
            }
        }
        write!(f, "/{}", config.get_dbname().unwrap_or_default())?;
        let random = config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        let [mode, root, certificate, key] = self.tls.shown();
        let parameters = [
            ("search_path", self.search_path.clone()),
            mode,
            root,
            certificate,
            key,
            ("target_session_attrs", self.kind.shown(config.get_target_session_attrs())),
            ("load_balance_hosts", random.then(|| "random".to_owned())),
            ("connect_timeout", config.get_connect_timeout().map(|time| time.as_secs().to_string())),
            ("application_name", config.get_application_name().map(str::to_owned)),
            ("options", self.options.clone()),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        for (index, (name, value)) in given.enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
