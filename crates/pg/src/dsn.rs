//! Connection strings as libpq and pgx write them: URLs and `key=value` words.
//!
//! The driver rejects or ignores parameters that operators use. They are removed from the string here, and
//! either passed to the driver in its own form or put into effect by this crate. Any other parameter is an
//! error, because a setting that is silently dropped is found out in an incident.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

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
const IGNORED: [&str; 3] = ["default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"];
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
/// The parameters of the socket, which override the settings of this crate.
const OF_SOCKET: [&str; 5] =
    ["tcp_user_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"];
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
        };
        let mut rest = Vec::new();
        for (name, value) in pairs {
            if IGNORED.contains(&&*name) || name.starts_with(IGNORED_PREFIX) {
                continue;
            } else if OF_DRIVER.contains(&&*name) {
                rest.push((name, value));
            } else if let Some(known) = OF_SOCKET.iter().find(|known| **known == name) {
                extras.socket.insert(known);
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
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    #[test]
    fn search_path_and_sslmode_of_a_url_reach_the_driver() {
        let dsn = Dsn::parse("postgres://me:s3cret@db:5433/galaxy?search_path=notification&sslmode=verify-full&application_name=x")
            .expect("parses");
        assert_eq!(dsn.config().get_options(), Some("-c search_path=notification"));
        assert_eq!(dsn.config().get_ssl_mode(), SslMode::Require);
        assert_eq!(dsn.config().get_application_name(), Some("x"));
        assert_eq!(
            dsn.to_string(),
            "postgres://me:****@db:5433/galaxy?search_path=notification&sslmode=verify-full&application_name=x"
        );
    }

    #[test]
    fn options_of_the_string_are_kept() {
        let dsn =
            Dsn::parse("postgres://me@db/galaxy?options=-c%20geqo%3Doff&search_path=a,%20b").expect("parses");
        assert_eq!(dsn.config().get_options(), Some("-c geqo=off -c search_path=a,\\ b"));
    }

    #[test]
    fn the_password_is_shown_nowhere() {
        for text in ["postgres://me:s3cret@db/galaxy", "host=db user=me password=s3cret dbname=galaxy"] {
            let dsn = Dsn::parse(text).expect("parses");
            assert_eq!(
                format!("{dsn} {dsn:?}"),
                "postgres://me:****@db:5432/galaxy postgres://me:****@db:5432/galaxy"
            );
        }
        for text in [
            "postgres://me:s3cret@db:port/galaxy",
            "me:s3cret",
            "postgres://me:s3cret@db/x?sslmode=often",
            "postgres://me:pa?s3cret@db/x",
            "host=db password='s3cret",
            "host=db password=my s3cret",
            "host=db password=my s3cret=1",
            "host=db password=s3cret timezone=UTC",
            "postgres://me:p@s3cret@db/x",
            "postgres://me:p@/s3cret@db/x",
            "postgres://me:p@a/x,postgres://me:s3cret@b/x",
        ] {
            let error = Dsn::parse(text).expect_err("does not parse");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[test]
    fn each_mode_asks_the_driver_for_what_it_promises_and_no_other_is_taken() {
        for (mode, of_driver) in [
            ("disable", SslMode::Disable),
            ("allow", SslMode::Prefer),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::Require),
            ("verify-ca", SslMode::Require),
            ("verify-full", SslMode::Require),
        ] {
            for text in [format!("postgres://db/x?sslmode={mode}"), format!("host=db sslmode = '{mode}'")] {
                let dsn = Dsn::parse(&text).expect("parses");
                assert_eq!(dsn.config().get_ssl_mode(), of_driver, "{text}");
                assert_eq!(dsn.tls().expect("it can be set up").is_some(), mode != "disable", "{text}");
            }
        }
        assert_eq!(Dsn::parse("postgres://db/x").expect("parses").config().get_ssl_mode(), SslMode::Disable);
        let named_so = "host=db user=sslmode password='sslmode=require' dbname=x";
        assert_eq!(Dsn::parse(named_so).expect("parses").config().get_ssl_mode(), SslMode::Disable);
        let error = Dsn::parse("host=db sslmode=verify").expect_err("it is none").to_string();
        assert_eq!(error, "its sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full");
    }

    #[test]
    fn certificates_without_a_mode_that_uses_them_are_refused() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/root.pem");
        for text in [
            format!("host=db sslrootcert={root}"),
            format!("host=db sslrootcert={root} sslmode=prefer"),
            "host=db sslrootcert=system sslmode=disable".to_owned(),
            format!("host=db sslcert={root} sslkey={root}"),
            format!("host=db sslcert={root} sslmode=require"),
        ] {
            assert!(matches!(Dsn::parse(&text), Err(DsnError::Parameter(_))), "{text}");
        }
        let system = Dsn::parse("host=db sslrootcert=system").expect("parses");
        assert_eq!(system.to_string(), "postgres://@db:5432/?sslmode=verify-full&sslrootcert=system");
    }

    #[test]
    fn both_forms_take_the_same_parameters() {
        let of_url = Dsn::parse(
            "postgres://me:p%20w@a:1,b:2/x?search_path=s&target_session_attrs=primary&connect_timeout=7&keepalives=0\
             &keepalives_count=3&tcp_user_timeout=9000&fallback_application_name=n&client_encoding=UTF8&gssencmode=prefer",
        );
        let of_words = Dsn::parse(
            "host=a,b port=1,2 user=me password='p w' dbname=x search_path=s target_session_attrs=primary connect_timeout=7 \
             keepalives=0 keepalives_count=3 tcp_user_timeout=9000 fallback_application_name=n client_encoding=UTF8 gssencmode=prefer",
        );
        let (of_url, of_words) = (of_url.expect("parses"), of_words.expect("parses"));
        assert!(of_url.config() == of_words.config(), "{:?}\n{:?}", of_url.config(), of_words.config());
        assert_eq!(of_url.to_string(), of_words.to_string());
        assert_eq!(of_url.config().get_keepalives_retries(), Some(3));
        assert!(!of_url.config().get_keepalives());
        assert_eq!(of_url.config().get_application_name(), Some("n"));
        for wrong in ["client_encoding=LATIN1", "gssencmode=require", "target_session_attrs=master"] {
            assert!(matches!(Dsn::parse(&format!("host=db {wrong}")), Err(DsnError::Parameter(_))), "{wrong}");
        }
    }

    #[test]
    fn an_at_sign_in_a_password_is_taken_if_it_is_encoded_and_explained_if_not() {
        let dsn = Dsn::parse("postgres://me:p%40ss@db/x").expect("parses");
        assert_eq!(dsn.config().get_password(), Some(&b"p@ss"[..]));
        let error = Dsn::parse("postgres://me:p@ss@db/x").expect_err("has a strange host");
        assert!(error.to_string().contains("must be written %40"), "{error}");
    }

    #[test]
    fn certificates_are_read_with_the_string_that_names_them() {
        let dsn = |path: &str| Dsn::parse(&format!("postgres://db/x?sslmode=require&sslrootcert={path}"));
        let roots = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/root.pem");
        let shown = dsn(roots).expect("parses").to_string();
        assert_eq!(shown, format!("postgres://@db:5432/x?sslmode=require&sslrootcert={roots}"));
        for wrong in ["/nowhere/root.pem", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
            let error = dsn(wrong).expect_err("there are no certificates");
            assert!(matches!(&error, DsnError::File { path, .. } if path == wrong), "{error:?}");
        }
    }

    #[test]
    fn a_string_with_more_ports_or_addresses_than_hosts_is_refused() {
        for text in ["host=a,b port=1,2,3", "host=a,b,c port=1,2", "host=a,b hostaddr=10.0.0.1"] {
            assert!(matches!(Dsn::parse(text), Err(DsnError::Parameter(_))), "{text}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_and_those_of_a_clients_own_pool_are_ignored() {
        let dsn = Dsn::parse("postgres://me@db/x?pool_max_conns=10&sslmode=disable&pool_min_conns=1");
        assert_eq!(dsn.expect("parses").config().get_hosts().len(), 1);
        let error = Dsn::parse("postgres://me@db/x?timezone=UTC").expect_err("the driver does not know it");
        let said = error.to_string();
        assert!(said.starts_with("its parameter timezone is not known; known are application_name, "), "{said}");
        let error = Dsn::parse("host=db user=me passfile=/x").expect_err("it is not read").to_string();
        assert!(error.contains("passfile is not known"), "{error}");
        // The text after a ? in a password looks like a parameter.
        let error = Dsn::parse("postgres://me:pa?S3cret@db/x").expect_err("has a strange host");
        assert!(!ambient::error_chain(&error).contains("S3cret"), "{error}");
    }

    #[test]
    fn what_is_shown_is_what_is_in_effect() {
        for attribute in ["read-write", "read-only", "primary", "standby", "prefer-standby"] {
            let text = format!(
                "postgres://me@a:1,b:2/x?search_path=s&sslmode=verify-ca&target_session_attrs={attribute}&load_balance_hosts=random\
                 &connect_timeout=7&options=-c geqo=off"
            );
            assert_eq!(Dsn::parse(&text).expect("parses").to_string(), text);
        }
    }
}
