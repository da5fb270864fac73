//! Every `sslmode` against a real server with a certificate of a private authority, and client certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use local_servers::{Postgres, PostgresOptions};
use pg::{Dsn, PgError, PgPool, PoolSettings, SessionSettings};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A private authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for a host or a role, and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server, with its authority, another authority, and the certificate of the role `certified`.
struct World {
    server: Postgres,
    folder: TempDir,
}

impl World {
    async fn new(encrypts: bool) -> Self {
        let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
        let world = Self { server, folder: tempfile::tempdir().expect("a temporary folder") };
        let [ours, other] = ["ours", "other"].map(Authority::new);
        let (certificate, key) = ours.issue("localhost");
        let (client, client_key) = ours.issue("certified");
        for (name, pem) in
            [("ours", &ours.pem), ("other", &other.pem), ("client", &client), ("client.key", &client_key)]
        {
            fs::write(world.path(name), pem).expect("written");
        }
        if encrypts {
            let hba = "local all all trust\nhostssl all certified all cert\nhost all all all trust";
            for (name, content) in [
                ("server.crt", &*certificate),
                ("server.key", &*key),
                ("root.crt", &*ours.pem),
                ("pg_hba.conf", hba),
            ] {
                world.write(name, content).await;
            }
            for sql in [
                "CREATE ROLE certified LOGIN",
                "ALTER SYSTEM SET ssl_ca_file = 'root.crt'",
                "ALTER SYSTEM SET ssl = on",
                "SELECT pg_reload_conf()",
            ] {
                world.server.execute("postgres", sql).await.expect("it is allowed");
            }
        }
        world
    }

    /// Writes a file of the server, as its own user.
    async fn write(&self, name: &str, content: &str) {
        let sql = format!(
            "COPY (SELECT regexp_split_to_table('{content}', E'\\n')) TO PROGRAM 'umask 077; cat > {name}'"
        );
        self.server.execute("postgres", &sql).await.expect("written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Connects with these parameters, and returns true if the connection is encrypted.
    async fn connect(&self, host: &str, user: &str, parameters: &str) -> Result<bool, String> {
        let port = self.server.port();
        let text = format!("host={host} port={port} user={user} dbname=postgres {parameters}");
        let dsn = Dsn::parse(&text).expect("a connection string");
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: Duration::from_secs(20),
            session: SessionSettings::default(),
        };
        let pool = PgPool::new(&dsn, settings).expect("a pool");
        let asked = async {
            let sql = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            Ok::<_, PgError>(pool.session("look").await?.raw(sql).await? == ["true"])
        };
        asked.await.map_err(|error| ambient::error_chain(&error))
    }
}

fn root(path: &Path) -> String {
    format!("sslrootcert={}", path.display())
}

/// Waits until the server accepts TLS: it reads its configuration again a moment after it was told to.
async fn encrypting() -> World {
    let world = World::new(true).await;
    let bound = std::time::Instant::now() + Duration::from_secs(60);
    while world.connect("localhost", "postgres", "sslmode=prefer").await != Ok(true) {
        assert!(std::time::Instant::now() < bound, "it does not encrypt");
    }
    world
}

#[tokio::test]
async fn each_mode_verifies_what_it_promises() {
    let world = encrypting().await;
    let (ours, other) = (root(&world.path("ours")), root(&world.path("other")));
    for (host, parameters) in [
        ("localhost", format!("sslmode=require {ours}")),
        ("localhost", format!("sslmode=verify-ca {ours}")),
        ("localhost", format!("sslmode=verify-full {ours}")),
        ("127.0.0.1", format!("sslmode=verify-ca {ours}")),
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", "sslmode=allow".to_owned()),
        // The name counts, not the address.
        ("localhost", format!("hostaddr=127.0.0.1 sslmode=verify-full {ours}")),
    ] {
        assert_eq!(world.connect(host, "postgres", &parameters).await, Ok(true), "{host} {parameters}");
    }
    assert_eq!(world.connect("localhost", "postgres", "sslmode=disable").await, Ok(false));
    for (host, parameters, cause) in [
        ("localhost", format!("sslmode=require {other}"), "UnknownIssuer"),
        ("localhost", format!("sslmode=verify-ca {other}"), "UnknownIssuer"),
        ("localhost", format!("sslmode=verify-full {other}"), "UnknownIssuer"),
        ("127.0.0.1", format!("sslmode=require {ours}"), "not valid for name"),
        ("127.0.0.1", format!("sslmode=verify-full {ours}"), "not valid for name"),
        ("localhost", "sslmode=require".to_owned(), "UnknownIssuer"),
        ("localhost", "sslmode=verify-ca".to_owned(), "UnknownIssuer"),
        ("localhost", "sslrootcert=system".to_owned(), "UnknownIssuer"),
    ] {
        let refused = world.connect(host, "postgres", &parameters).await.expect_err(&parameters);
        assert!(refused.contains(cause), "{host} {parameters}: {refused}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_used_only_by_a_mode_that_does_not_insist() {
    let world = World::new(false).await;
    for mode in ["disable", "allow", "prefer"] {
        let parameters = format!("sslmode={mode}");
        assert_eq!(world.connect("localhost", "postgres", &parameters).await, Ok(false), "{mode}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let refused = world.connect("localhost", "postgres", &format!("sslmode={mode}")).await;
        let refused = refused.expect_err(mode);
        assert!(refused.contains("server does not support TLS"), "{mode}: {refused}");
    }
}

#[tokio::test]
async fn a_client_certificate_logs_its_role_in() {
    let world = encrypting().await;
    let verified = format!("sslmode=verify-full {}", root(&world.path("ours")));
    let refused = world.connect("localhost", "certified", &verified).await.expect_err("it has none");
    assert!(refused.contains("client certificate"), "{refused}");
    let (certificate, key) = (world.path("client"), world.path("client.key"));
    let client = format!("{verified} sslcert={} sslkey={}", certificate.display(), key.display());
    assert_eq!(world.connect("localhost", "certified", &client).await, Ok(true));
}
