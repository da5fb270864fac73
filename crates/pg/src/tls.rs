//! TLS of a connection: what a mode promises, and the certificates of both sides.
//!
//! The modes are those of libpq, and none promises less than there: `require` verifies the certificate and
//! the host's name, as `verify-full` does, because encryption to an unknown peer protects nobody. Only
//! `verify-ca` with the file of a private authority skips the name. `allow` and `prefer` are the same: TLS
//! without verification if the server offers it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;

use crate::DsnError;

/// The mode of a connection string.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum TlsMode {
    /// Plain text.
    #[default]
    Disable,
    /// TLS if the server offers it; nothing is verified.
    Allow,
    /// As [`TlsMode::Allow`].
    Prefer,
    /// As [`TlsMode::VerifyFull`].
    Require,
    /// The authority; with the roots of the system also the name of the host.
    VerifyCa,
    /// The authority and the name of the host.
    VerifyFull,
}

impl TlsMode {
    const ALL: [(&'static str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    pub(crate) fn parse(text: &str) -> Result<Self, DsnError> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, mode)| mode).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            DsnError::Parameter(format!("its sslmode must be one of {names}"))
        })
    }

    pub(crate) fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }

    /// The mode of the driver, which knows whether to ask for TLS but not what to verify.
    pub(crate) fn of_driver(self) -> SslMode {
        match self {
            Self::Disable => SslMode::Disable,
            Self::Allow | Self::Prefer => SslMode::Prefer,
            Self::Require | Self::VerifyCa | Self::VerifyFull => SslMode::Require,
        }
    }

    fn verifies(self) -> bool {
        self.of_driver() == SslMode::Require
    }
}

/// The TLS parameters of a connection string, with the files that they name.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) mode: TlsMode,
    /// The root certificates that replace the system's, with the path of their file.
    roots: Option<(String, Arc<RootCertStore>)>,
    /// True if the string asks for the system's roots by name.
    system_roots: bool,
    client: Option<Client>,
}

/// The certificate by which the server recognises this client.
#[derive(Clone)]
struct Client {
    certificate_path: String,
    key_path: String,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

/// The TLS parameters as they stand in a connection string.
#[derive(Default)]
pub(crate) struct TlsParameters {
    pub(crate) mode: Option<String>,
    pub(crate) root: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

/// The value of `sslrootcert` for the roots of the system.
const SYSTEM: &str = "system";

impl Tls {
    /// Checks the parameters against each other, and reads the files.
    pub(crate) fn read(given: TlsParameters) -> Result<Self, DsnError> {
        let problem = |text: &str| Err(DsnError::Parameter(text.to_owned()));
        let root = given.root.filter(|path| !path.is_empty());
        let system_roots = root.as_deref() == Some(SYSTEM);
        let mode = match &given.mode {
            Some(mode) => TlsMode::parse(mode)?,
            None if system_roots => TlsMode::VerifyFull,
            None => TlsMode::Disable,
        };
        if root.is_some() && !mode.verifies() {
            return problem(
                "it has sslrootcert, but its sslmode verifies nothing: set sslmode=verify-full (or require, verify-ca)",
            );
        }
        let client = match (given.certificate, given.key) {
            (None, None) => None,
            (Some(_), Some(_)) if mode == TlsMode::Disable => {
                return problem("it has sslcert, but no sslmode that encrypts");
            }
            (Some(certificate), Some(key)) => Some(Client::read(certificate, key)?),
            _ => return problem("sslcert and sslkey belong together: it has only one of them"),
        };
        let roots = match root.filter(|_| !system_roots) {
            None => None,
            Some(path) => {
                let store = read_roots(&path).map_err(|source| file_error("sslrootcert", &path, source))?;
                Some((path, Arc::new(store)))
            }
        };
        Ok(Self { mode, roots, system_roots, client })
    }

    /// The parameters that are in effect and not the default, for a person.
    pub(crate) fn shown(&self) -> [(&'static str, Option<String>); 4] {
        let mode = (self.mode != TlsMode::Disable).then(|| self.mode.name().to_owned());
        let root = self.roots.as_ref().map(|(path, _)| path.clone());
        let root = root.or_else(|| self.system_roots.then(|| SYSTEM.to_owned()));
        let client = self.client.as_ref();
        [
            ("sslmode", mode),
            ("sslrootcert", root),
            ("sslcert", client.map(|client| client.certificate_path.clone())),
            ("sslkey", client.map(|client| client.key_path.clone())),
        ]
    }

    /// The configuration of the library; `None` for plain text.
    pub(crate) fn config(&self) -> Result<Option<ClientConfig>, DsnError> {
        if self.mode == TlsMode::Disable {
            return Ok(None);
        }
        let config = self.verified();
        config.map(Some).map_err(|error| DsnError::Parameter(format!("TLS cannot be set up: {error}")))
    }

    fn verified(&self) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder();
        let provider = Arc::clone(builder.crypto_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match (&self.roots, self.mode) {
            (_, TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer) => {
                Arc::new(Lenient { roots: None, provider })
            }
            (Some((_, roots)), TlsMode::VerifyCa) => {
                Arc::new(Lenient { roots: Some(Arc::clone(roots)), provider })
            }
            (Some((_, roots)), _) => {
                let built = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider).build();
                built.map_err(|error| Error::General(error.to_string()))?
            }
            (None, _) => Arc::new(rustls_platform_verifier::Verifier::new(provider)?),
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        match &self.client {
            None => Ok(builder.with_no_client_auth()),
            Some(client) => builder.with_client_auth_cert(client.chain.clone(), client.key.clone_key()),
        }
    }
}

impl Client {
    fn read(certificate_path: String, key_path: String) -> Result<Self, DsnError> {
        let chain = read_chain(&certificate_path)
            .map_err(|source| file_error("sslcert", &certificate_path, source))?;
        let key = PrivateKeyDer::from_pem_file(&key_path)
            .map_err(|error| file_error("sslkey", &key_path, error.into()))?;
        Ok(Self { certificate_path, key_path, chain, key: Arc::new(key) })
    }
}

type FileError = Box<dyn std::error::Error + Send + Sync>;

fn file_error(parameter: &'static str, path: &str, source: FileError) -> DsnError {
    DsnError::File { parameter, path: path.to_owned(), source }
}

fn read_chain(path: &str) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let chain = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() { Err("it holds no certificate".into()) } else { Ok(chain) }
}

fn read_roots(path: &str) -> Result<RootCertStore, FileError> {
    let mut store = RootCertStore::empty();
    for certificate in read_chain(path)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// Verifies less than the name of the host: the authority alone, or nothing without roots.
#[derive(Debug)]
struct Lenient {
    roots: Option<Arc<RootCertStore>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
