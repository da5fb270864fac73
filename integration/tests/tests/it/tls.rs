//! Redis by TLS: the certificate is checked against the roots of the machine, or those in `SSL_CERT_FILE`.
//!
//! `testdata` contains a root, whose key was deleted, and a certificate for `localhost` with a key that is
//! used only here.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::world::*;

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");

/// Accepts TLS on the returned port and forwards as plain text to `port`, for as long as the test runs.
async fn terminate_tls(port: u16) -> u16 {
    let file = |name: &str| format!("{TESTDATA}/{name}");
    let certificate = CertificateDer::from_pem_file(file("localhost.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file("localhost.key")).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("they belong together")));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let own_port = listener.local_addr().expect("it has an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the certificate disconnects here.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("Redis is there");
                drop(copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    own_port
}

#[tokio::test]
async fn intents_are_read_and_published_by_tls() {
    let world = World::new().await;
    let port = terminate_tls(world.redis.port()).await;
    let _service = world
        .service()
        .env("NOTIFICATION_REDIS_MASTER_ADDR", format!("rediss://localhost:{port}"))
        .env("SSL_CERT_FILE", format!("{TESTDATA}/root.pem"))
        .start()
        .await;
    world.send(0..5).await;
    world.settled(5).await;
    world.check(0..5).await;
}

#[tokio::test]
async fn a_redis_whose_certificate_is_not_trusted_is_not_spoken_to() {
    let world = World::new().await;
    let port = terminate_tls(world.redis.port()).await;
    let mut service =
        world.service().env("NOTIFICATION_REDIS_MASTER_ADDR", format!("rediss://localhost:{port}")).spawn();
    assert_eq!(service.wait_exit(Duration::from_secs(60)).await.code(), Some(1));
    let output = service.output().join("\n");
    assert!(output.contains("invalid peer certificate"), "{output}");
}
