//! The certificate of a listener, reloaded when its files change.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::reload::{ReloadError, Reloaded};

/// The protocols that a client may choose from, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate chain and its key. Clones share them, and use the new ones when the files change.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Reloaded<ServerConfig>>);

impl Tls {
    /// Reads both PEM files, which must be valid and belong together.
    pub fn load(certificates: &Path, key: &Path) -> Result<Self, ReloadError> {
        let paths = vec![certificates.to_owned(), key.to_owned()];
        Reloaded::load(paths, |files| server_config(&files[0], &files[1])).map(Arc::new).map(Self)
    }

    /// Follows the files until `stop`: a change applies to connections made 10 s later. An invalid pair, for
    /// example because only one of the files was replaced yet, is logged once and the previous pair is kept.
    pub async fn follow(&self, stop: CancellationToken) {
        self.0.follow(stop, || {}).await;
    }

    /// The configuration for a new connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.0.current()
    }
}

fn server_config(certificates: &[u8], key: &[u8]) -> Result<ServerConfig, Vec<String>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.map_err(|error| problem(format!("the certificates are not PEM ({error})")))?;
    if chain.is_empty() {
        return Err(problem("the first file holds no certificate in PEM"));
    }
    // The error is not repeated: it may quote the file.
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| problem("the second file holds no private key in PEM, or an encrypted one"))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(error.to_string()))?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| problem(format!("certificate and key cannot be used together ({error})")))?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

fn problem(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_pair_is_used_within_ten_seconds_and_a_wrong_one_never() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (cert_path, key_path) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let renew = |key_too: bool| {
            let pair = generate_simple_self_signed(vec!["localhost".to_owned()]);
            let CertifiedKey { cert, signing_key } = pair.expect("a certificate");
            std::fs::write(&cert_path, cert.pem()).expect("is written");
            if key_too {
                std::fs::write(&key_path, signing_key.serialize_pem()).expect("is written");
            }
        };
        let after_ten_seconds = || tokio::time::sleep(Duration::from_secs(10));
        renew(true);
        let tls = Tls::load(&cert_path, &key_path).expect("a pair");
        let (first, stop) = (tls.config(), CancellationToken::new());
        let following = tokio::spawn({
            let (tls, stop) = (tls.clone(), stop.clone());
            async move { tls.follow(stop).await }
        });
        renew(false);
        after_ten_seconds().await;
        assert!(Arc::ptr_eq(&first, &tls.config()), "a pair that does not match is used");
        std::fs::remove_file(&key_path).expect("was there");
        after_ten_seconds().await;
        assert!(Arc::ptr_eq(&first, &tls.config()), "half a pair is used");
        renew(true);
        after_ten_seconds().await;
        assert!(!Arc::ptr_eq(&first, &tls.config()), "the new pair is not used");
        stop.cancel();
        following.await.expect("does not panic");
    }
}
