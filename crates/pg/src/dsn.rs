//! Connection strings, with what the driver does not know about them.
//!
//! The driver refuses `search_path`, `sslmode=verify-full` and `sslrootcert`, which operators write; they are taken
//! out of the string here and given to it in its own words. TLS always verifies: `require`, `verify-ca` and
//! `verify-full` are the same, and a mode that would fall back to plain text unasked is refused.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// A parsed connection string. `Debug` and `Display` show it without its password.
#[derive(Clone)]
pub struct Dsn {
    config: Config,
    search_path: Option<String>,
    root_certificate: Option<String>,
}

/// Why a connection string cannot be used. Never repeats the string.
#[derive(Debug, thiserror::Error)]
pub enum DsnError {
    /// Not a connection string.
    #[error(
        "not a PostgreSQL connection string (postgres://user:password@host:port/database?search_path=schema)"
    )]
    Syntax(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A value that one of its parameters cannot have.
    #[error("{0}")]
    Parameter(String),
    /// The file named by `sslrootcert` cannot be used.
    #[error("sslrootcert {path} cannot be read as PEM certificates")]
    RootCertificate {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Dsn {
    /// Reads a URL (`postgres://…`) or a list of `key=value`.
    pub fn parse(text: &str) -> Result<Self, DsnError> {
        let text = text.trim();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Self::from_url(text)
        } else {
            Self::from_config(text, Extras::default())
        }
    }

    fn from_url(text: &str) -> Result<Self, DsnError> {
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let mut extras = Extras::default();
        let mut rest = url::form_urlencoded::Serializer::new(String::new());
        // A '+' in a connection string is a plus, not a space.
        for (name, value) in url::form_urlencoded::parse(query.replace('+', "%2B").as_bytes()) {
            if !extras.take(&name, &value)? {
                rest.append_pair(&name, &value);
            }
        }
        // The driver decodes %20 but not '+'.
        let rest = rest.finish().replace('+', "%20");
        let text = if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") };
        Self::from_config(&text, extras)
    }

    fn from_config(text: &str, extras: Extras) -> Result<Self, DsnError> {
        let mut config = Config::from_str(text).map_err(|error| DsnError::Syntax(error.into()))?;
        if config.get_hosts().is_empty() {
            return Err(DsnError::Parameter("names no host".to_owned()));
        }
        let explicit_mode =
            extras.ssl_mode.or_else(|| text.contains("sslmode").then(|| config.get_ssl_mode()));
        match explicit_mode {
            None | Some(SslMode::Disable) => config.ssl_mode(SslMode::Disable),
            Some(SslMode::Require) => config.ssl_mode(SslMode::Require),
            Some(_) => {
                return Err(DsnError::Parameter(
                    "sslmode must be disable or require (which verifies); prefer could fall back to plain text".to_owned(),
                ));
            }
        };
        if let Some(path) = &extras.search_path {
            let given = config.get_options().map(|options| format!("{options} ")).unwrap_or_default();
            config.options(format!("{given}-c search_path={}", escape_option(path)));
        }
        Ok(Self { config, search_path: extras.search_path, root_certificate: extras.root_certificate })
    }

    /// The driver's settings.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// How to connect by TLS; `None` for plain text.
    pub(crate) fn tls(&self) -> Result<Option<rustls::ClientConfig>, DsnError> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            return Ok(None);
        }
        use rustls_platform_verifier::ConfigVerifierExt;
        let Some(path) = &self.root_certificate else {
            let config = rustls::ClientConfig::with_platform_verifier();
            return config
                .map(Some)
                .map_err(|error| DsnError::Parameter(format!("TLS cannot be set up: {error}")));
        };
        let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| DsnError::RootCertificate {
            path: path.clone(),
            source,
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.into()))? {
            let certificate = certificate.map_err(|error| unreadable(error.into()))?;
            roots.add(certificate).map_err(|error| unreadable(error.into()))?;
        }
        Ok(Some(
            rustls::ClientConfig::builder().with_root_certificates(Arc::new(roots)).with_no_client_auth(),
        ))
    }
}

/// The parameters that the driver does not know.
#[derive(Default)]
struct Extras {
    search_path: Option<String>,
    ssl_mode: Option<SslMode>,
    root_certificate: Option<String>,
}

impl Extras {
    /// Whether `name` was one of them.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, DsnError> {
        match name {
            "search_path" => self.search_path = Some(value.to_owned()),
            "sslrootcert" => self.root_certificate = Some(value.to_owned()),
            "sslmode" => {
                self.ssl_mode = Some(match value {
                    "disable" => SslMode::Disable,
                    "require" | "verify-ca" | "verify-full" => SslMode::Require,
                    _ => SslMode::Prefer,
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// In the `options` of a connection, a backslash keeps the next character in the word.
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
        let tls = (config.get_ssl_mode() == SslMode::Require).then_some("sslmode=require".to_owned());
        let path = self.search_path.as_ref().map(|path| format!("search_path={path}"));
        for (separator, parameter) in ["?", "&"].into_iter().zip(path.into_iter().chain(tls)) {
            write!(f, "{separator}{parameter}")?;
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
            "postgres://me:****@db:5433/galaxy?search_path=notification&sslmode=require"
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
        for text in
            ["postgres://me:s3cret@db:port/galaxy", "me:s3cret", "postgres://me:s3cret@db/x?sslmode=prefer"]
        {
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
    }
}
