//! Connection strings, with parameters that the driver does not support.
//!
//! The driver rejects `search_path`, `sslmode=verify-full` and `sslrootcert`, which operators use. They are
//! removed from the string here and passed to the driver in its own form. TLS always verifies: `require`,
//! `verify-ca` and `verify-full` are the same, and a mode that could silently fall back to plain text is
//! rejected. Without a mode the connection is plain text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use crate::hosts::LastGood;
use crate::pooler::Comparisons;

/// A parsed connection string. `Debug` and `Display` show it without its password.
#[derive(Clone)]
pub struct Dsn {
    config: Config,
    search_path: Option<String>,
    /// The `options` of the connection string, without `search_path`.
    options: Option<String>,
    roots: Option<Roots>,
    /// The host that worked last, shared by all clones.
    last_good: LastGood,
    comparisons: Comparisons,
}

/// The root certificates that replace the system's roots.
#[derive(Clone)]
struct Roots {
    path: String,
    store: Arc<RootCertStore>,
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
    /// The file named by `sslrootcert` cannot be used.
    #[error("sslrootcert {path} cannot be read as PEM certificates")]
    RootCertificate {
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
/// The parameters that the driver supports.
const DRIVER_PARAMETERS: [&str; 21] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslmode",
    "sslcert",
    "sslkey",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

impl Dsn {
    /// Parses a URL (`postgres://…`) or a list of `key=value`, and reads the certificates that it names.
    pub fn parse(text: &str) -> Result<Self, DsnError> {
        let text = text.trim();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Self::from_url(text)
        } else {
            // Plain text unless the string sets a mode: of two values the later one counts.
            Self::from_config(&format!("sslmode=disable {text}"), Extras::default())
        }
    }

    fn from_url(text: &str) -> Result<Self, DsnError> {
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        // The driver would treat the text after the first `@` as a host, and hosts are not kept secret.
        if base.matches('@').count() > 1 {
            return Err(DsnError::Parameter(
                "it holds more than one @: an @ in the password must be written %40".to_owned(),
            ));
        }
        let mut extras = Extras::default();
        let mut rest = url::form_urlencoded::Serializer::new(String::new());
        // A '+' in a connection string is a plus, not a space.
        for (name, value) in url::form_urlencoded::parse(query.replace('+', "%2B").as_bytes()) {
            if extras.take(&name, &value) || name.starts_with(IGNORED_PREFIX) {
                continue;
            }
            let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            // Text that is not a name may be part of a password that was not escaped.
            if is_name && !DRIVER_PARAMETERS.contains(&&*name) {
                return Err(DsnError::Parameter(format!("its parameter {name} is not known")));
            }
            rest.append_pair(&name, &value);
        }
        rest.append_pair("sslmode", extras.ssl_mode);
        // The driver decodes %20 but not '+'.
        Self::from_config(&format!("{base}?{}", rest.finish().replace('+', "%20")), extras)
    }

    fn from_config(text: &str, extras: Extras) -> Result<Self, DsnError> {
        let mut config = Config::from_str(text).map_err(|error| DsnError::Syntax(error.into()))?;
        if config.get_hosts().is_empty() {
            return Err(DsnError::Parameter("names no host".to_owned()));
        }
        if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Require) {
            return Err(DsnError::Parameter(
                "sslmode must be disable or require (which verifies); prefer could fall back to plain text"
                    .to_owned(),
            ));
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
        let roots = extras.root_certificate.map(Roots::read).transpose()?;
        let search_path = extras.search_path;
        let (last_good, comparisons) = Default::default();
        Ok(Self { config, search_path, options, roots, last_good, comparisons })
    }

    /// The driver's settings.
    pub(crate) fn config(&self) -> &Config {
        &self.config
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
        if self.config.get_ssl_mode() == SslMode::Disable {
            return Ok(None);
        }
        use rustls_platform_verifier::ConfigVerifierExt;
        let config = match &self.roots {
            Some(roots) => {
                let builder = ClientConfig::builder().with_root_certificates(Arc::clone(&roots.store));
                Ok(builder.with_no_client_auth())
            }
            None => ClientConfig::with_platform_verifier(),
        };
        config.map(Some).map_err(|error| DsnError::Parameter(format!("TLS cannot be set up: {error}")))
    }
}

impl Roots {
    fn read(path: String) -> Result<Self, DsnError> {
        match read_certificates(&path) {
            Ok(store) => Ok(Self { path, store: Arc::new(store) }),
            Err(source) => Err(DsnError::RootCertificate { path, source }),
        }
    }
}

fn read_certificates(path: &str) -> Result<RootCertStore, Box<dyn std::error::Error + Send + Sync>> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path)? {
        store.add(certificate?)?;
    }
    if store.is_empty() { Err("it holds no certificate".into()) } else { Ok(store) }
}

/// The parameters that the driver does not support, or not in the form that operators use.
struct Extras {
    search_path: Option<String>,
    /// The mode in the driver's spelling.
    ssl_mode: &'static str,
    root_certificate: Option<String>,
}

impl Default for Extras {
    fn default() -> Self {
        Self { search_path: None, ssl_mode: "disable", root_certificate: None }
    }
}

impl Extras {
    /// Stores a parameter of this struct and returns true; returns false for any other name.
    fn take(&mut self, name: &str, value: &str) -> bool {
        match name {
            "search_path" => self.search_path = Some(value.to_owned()),
            "sslrootcert" => self.root_certificate = Some(value.to_owned()),
            "sslmode" => {
                self.ssl_mode = match value {
                    "disable" => "disable",
                    "require" | "verify-ca" | "verify-full" => "require",
                    _ => "prefer",
                };
            }
            _ => return false,
        }
        true
    }
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
        let tls = (config.get_ssl_mode() == SslMode::Require).then(|| "require".to_owned());
        let session = match config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => Some("read-write".to_owned()),
            TargetSessionAttrs::ReadOnly => Some("read-only".to_owned()),
            _ => None,
        };
        let random = config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        let parameters = [
            ("search_path", self.search_path.clone()),
            ("sslmode", tls),
            ("sslrootcert", self.roots.as_ref().map(|roots| roots.path.clone())),
            ("target_session_attrs", session),
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
            "postgres://me:****@db:5433/galaxy?search_path=notification&sslmode=require&application_name=x"
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
            "postgres://me:s3cret@db/x?sslmode=prefer",
            "postgres://me:p@s3cret@db/x",
            "postgres://me:p@/s3cret@db/x",
            "postgres://me:p@a/x,postgres://me:s3cret@b/x",
        ] {
            let error = Dsn::parse(text).expect_err("does not parse");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[test]
    fn plain_text_is_used_only_where_nothing_else_was_asked_for() {
        assert_eq!(Dsn::parse("postgres://db/x").expect("parses").config().get_ssl_mode(), SslMode::Disable);
        for text in
            ["postgres://db/x?sslmode=prefer", "postgres://db/x?sslmode=allow", "host=db sslmode=prefer"]
        {
            assert!(matches!(Dsn::parse(text), Err(DsnError::Parameter(_))), "{text}");
        }
        let named_so = "host=db user=sslmode password='sslmode=require' dbname=x";
        assert_eq!(Dsn::parse(named_so).expect("parses").config().get_ssl_mode(), SslMode::Disable);
        let asked = Dsn::parse("host=db sslmode=require").expect("parses");
        assert_eq!(asked.config().get_ssl_mode(), SslMode::Require);
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
            assert!(matches!(&error, DsnError::RootCertificate { path, .. } if path == wrong), "{error:?}");
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
        assert!(error.to_string().contains("timezone"), "{error}");
        // The text after a ? in a password looks like a parameter.
        let error = Dsn::parse("postgres://me:pa?S3cret@db/x").expect_err("has a strange host");
        assert!(!ambient::error_chain(&error).contains("S3cret"), "{error}");
    }

    #[test]
    fn what_is_shown_is_what_is_in_effect() {
        let text = "postgres://me@a:1,b:2/x?search_path=s&target_session_attrs=read-write&load_balance_hosts=random&connect_timeout=7&options=-c geqo=off";
        assert_eq!(Dsn::parse(text).expect("parses").to_string(), text);
    }
}
