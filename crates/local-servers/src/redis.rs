//! A private Redis: a server, a node of a Cluster or a Sentinel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError};

use crate::binaries;
use crate::process::{Home, PORT_TRIES, StartError, end, free_port, io_error, signal, wait_ready};

/// The time for a response to a command of [`Redis::ask`].
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a starting server to respond.
const START_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The configuration of a Sentinel, which it rewrites itself.
const SENTINEL_FILE: &str = "sentinel.conf";

/// Settings of the server.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// The password of the default user.
    pub password: Option<String>,
    /// True to keep its data over a restart, in a log that is written before each response.
    pub appendonly: bool,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Variables for its environment, as `name` and `value`.
    pub environment: Vec<(String, String)>,
    /// The certificate with which it also listens by TLS, on a port of its own, as `localhost`. Replication,
    /// Sentinels and the bus of a Cluster use TLS then.
    pub tls: Option<RedisTls>,
}

/// Files in PEM of a certificate for `localhost`.
#[derive(Clone, Debug)]
pub struct RedisTls {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that issued it.
    pub authority: PathBuf,
}

/// The mode in which the program runs.
#[derive(Clone, Debug)]
pub(crate) enum RedisMode {
    /// A server.
    Server,
    /// A node of a Cluster.
    ClusterNode,
    /// A Sentinel, with these lines of configuration at its first start.
    Sentinel(String),
}

/// The ports on 127.0.0.1.
#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    plain: u16,
    tls: Option<u16>,
    bus: Option<u16>,
}

/// A running server. When dropped, it is stopped and its folder removed.
#[derive(Debug)]
pub struct Redis {
    home: Home,
    mode: RedisMode,
    options: RedisOptions,
    ports: Ports,
    child: Option<Child>,
}

impl Redis {
    /// Starts an empty server.
    pub async fn start(options: RedisOptions) -> Result<Self, StartError> {
        Self::start_as(RedisMode::Server, options).await
    }

    pub(crate) async fn start_as(mode: RedisMode, options: RedisOptions) -> Result<Self, StartError> {
        let mut server = Self { home: Home::new()?, mode, options, ports: Ports::default(), child: None };
        for _ in 0..PORT_TRIES {
            server.ports = server.free_ports()?;
            match server.start_again().await {
                Err(_) if server.home.log_says("Address already in use") => server.home.clear_log(),
                other => return other.map(|()| server),
            }
        }
        Err(server.home.not_ready("redis-server"))
    }

    fn free_ports(&self) -> Result<Ports, StartError> {
        Ok(Ports {
            plain: free_port()?,
            tls: if self.options.tls.is_some() { Some(free_port()?) } else { None },
            bus: if matches!(self.mode, RedisMode::ClusterNode) { Some(free_port()?) } else { None },
        })
    }

    /// Starts the stopped or killed server again, on its ports and with the data that it kept.
    pub async fn start_again(&mut self) -> Result<(), StartError> {
        let mut command = self.home.command(&binaries::redis("redis-server")?)?;
        if let RedisMode::Sentinel(lines) = &self.mode {
            let file = self.home.path().join(SENTINEL_FILE);
            if !file.exists() {
                self.home.write(SENTINEL_FILE, lines.as_bytes())?;
            }
            command.arg(file).arg("--sentinel");
        }
        command.args(self.arguments()?).args(&self.options.arguments);
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        let mut child = self.home.spawn(command)?;
        let pid = child.id();
        let ready = wait_ready(&mut child, async || self.answers_as(pid).await.unwrap_or(false)).await;
        self.child = Some(child);
        if ready { Ok(()) } else { Err(self.home.not_ready("redis-server")) }
    }

    fn arguments(&self) -> Result<Vec<String>, StartError> {
        let mut arguments = Vec::new();
        let mut set = |name: &str, value: &str| arguments.extend([format!("--{name}"), value.to_owned()]);
        set("port", &self.ports.plain.to_string());
        set("bind", "127.0.0.1");
        set("daemonize", "no");
        let folder = self.home.path();
        set("dir", &folder.display().to_string());
        if let Some(password) = &self.options.password {
            set("requirepass", password);
        }
        if let (Some(tls), Some(port)) = (&self.options.tls, self.ports.tls) {
            set("tls-port", &port.to_string());
            set("tls-auth-clients", "no");
            set("tls-replication", "yes");
            let files =
                [("cert-file", &tls.certificate), ("key-file", &tls.key), ("ca-cert-file", &tls.authority)];
            for (name, source) in files {
                // The user that the server runs as may not be able to read the original.
                self.home.write(name, &fs::read(source).map_err(io_error("read a certificate"))?)?;
                set(&format!("tls-{name}"), &folder.join(name).display().to_string());
            }
        }
        if matches!(self.mode, RedisMode::Sentinel(_)) {
            return Ok(arguments);
        }
        set("save", "");
        set("appendonly", if self.options.appendonly { "yes" } else { "no" });
        // The operating system decides when to flush the log: the folder need not survive a power loss. With
        // `everysec` Redis responds before it has written while a flush is under way, and a kill could lose
        // writes.
        set("appendfsync", "no");
        // A replica need not wait for others.
        set("repl-diskless-sync-delay", "0");
        if let Some(password) = &self.options.password {
            set("masterauth", password);
        }
        if let Some(port) = self.ports.bus {
            set("cluster-enabled", "yes");
            set("cluster-port", &port.to_string());
            if self.options.tls.is_some() {
                set("tls-cluster", "yes");
                set("cluster-announce-hostname", "localhost");
                set("cluster-preferred-endpoint-type", "hostname");
            }
        } else if self.options.tls.is_some() {
            set("replica-announce-ip", "localhost");
        }
        Ok(arguments)
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.plain
    }

    /// Returns its port on 127.0.0.1 for TLS.
    pub fn tls_port(&self) -> Option<u16> {
        self.ports.tls
    }

    /// Returns the port of the Cluster's bus.
    pub(crate) fn bus_port(&self) -> Option<u16> {
        self.ports.bus
    }

    /// Returns its address, `host:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// Returns the address for clients: `rediss://localhost:port` if it listens by TLS.
    pub fn client_addr(&self) -> String {
        self.ports.tls.map_or_else(|| self.addr(), |port| format!("rediss://localhost:{port}"))
    }

    /// Returns the host and the port by which other servers reach it.
    pub(crate) fn peer_addr(&self) -> (&'static str, u16) {
        self.ports.tls.map_or(("127.0.0.1", self.ports.plain), |port| ("localhost", port))
    }

    /// Returns the folder of its files.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Returns the id of its process while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Opens a connection, without TLS, that waits this long for each response.
    pub async fn connect(&self, timeout: Duration) -> Result<MultiplexedConnection, RedisError> {
        let mut login = redis::RedisConnectionInfo::default();
        if let Some(password) = &self.options.password {
            login = login.set_password(password);
        }
        let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), self.ports.plain);
        let info = redis::IntoConnectionInfo::into_connection_info(address)?.set_redis_settings(login);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout));
        redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Runs a command on a connection of its own.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, RedisError> {
        let mut command = redis::Cmd::new();
        command.arg(words).query_async(&mut self.connect(RESPONSE_TIMEOUT).await?).await
    }

    /// Returns true if the process `pid` responds and has finished loading. The process is compared because
    /// another server that took the port first would also respond.
    async fn answers_as(&self, pid: u32) -> Result<bool, RedisError> {
        let mut connection = self.connect(START_RESPONSE_TIMEOUT).await?;
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        Ok(info.contains(&format!("\r\nprocess_id:{pid}\r\n")))
    }

    /// Stops it like an administrator: the data that it keeps is flushed.
    pub async fn stop(&mut self) {
        end(&self.home, &mut self.child, "TERM").await;
    }

    /// Ends it like a crash.
    pub async fn kill(&mut self) {
        end(&self.home, &mut self.child, "KILL").await;
    }

    /// Suspends the process: connections stay open and get no response.
    pub fn pause(&self) {
        signal("STOP", self.pid().as_slice());
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        signal("CONT", self.pid().as_slice());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It must be gone before its folder is removed. It may have ended already.
            drop(child.kill());
            drop(child.wait());
            self.home.forget();
        }
    }
}
