//! A private PostgreSQL.

use std::fs;
use std::path::Path;
use std::process::Child;

use tokio_postgres::NoTls;

use crate::binaries;
use crate::process::{
    Home, PORT_TRIES, StartError, children_of, end, free_port, io_error, signal, wait_ready,
};

/// Settings of the server.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// True if a commit must survive a power loss. Tests do not need that; a commit survives a crash of the
    /// server in any case.
    pub durable: bool,
    /// Further settings, as `name` and `value`.
    pub settings: Vec<(String, String)>,
    /// Variables for its environment, as `name` and `value`.
    pub environment: Vec<(String, String)>,
}

/// A running server. When dropped, it is stopped and its folder removed.
#[derive(Debug)]
pub struct Postgres {
    home: Home,
    options: PostgresOptions,
    port: u16,
    child: Option<Child>,
}

impl Postgres {
    /// Creates a new cluster and starts it.
    pub async fn start(options: PostgresOptions) -> Result<Self, StartError> {
        let home = Home::new()?;
        let mut initdb = home.command(&binaries::postgres("initdb")?)?;
        initdb.args([
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ]);
        let done = initdb.arg(home.path().join("data")).status().map_err(io_error("run initdb"))?;
        if !done.success() {
            return Err(home.not_ready("initdb"));
        }
        Self::start_first(home, options).await
    }

    /// Copies a running server, and starts the copy as a streaming standby of it, with its settings. The
    /// standby gives no name, so `synchronous_standby_names = '*'` makes it synchronous.
    pub async fn start_standby(primary: &Self) -> Result<Self, StartError> {
        let home = Home::new()?;
        let mut copy = home.command(&binaries::postgres("pg_basebackup")?)?;
        let port = primary.port.to_string();
        copy.args(["--host=127.0.0.1", "--username=postgres", "--port", &port, "--write-recovery-conf"]);
        copy.args(["--checkpoint=fast", "--no-sync", "--pgdata"]).arg(home.path().join("data"));
        let done = copy.status().map_err(io_error("run pg_basebackup"))?;
        if !done.success() {
            return Err(home.not_ready("pg_basebackup"));
        }
        Self::start_first(home, primary.options.clone()).await
    }

    /// Starts it on a free port.
    async fn start_first(home: Home, options: PostgresOptions) -> Result<Self, StartError> {
        let mut server = Self { home, options, port: 0, child: None };
        for _ in 0..PORT_TRIES {
            server.port = free_port()?;
            match server.start_again().await {
                Err(_) if server.home.log_says("could not bind") => server.home.clear_log(),
                other => return other.map(|()| server),
            }
        }
        Err(server.home.not_ready("postgres"))
    }

    /// Makes a standby a primary, as `pg_ctl promote` does, and waits until it is one.
    pub async fn promote(&self) -> Result<(), StartError> {
        self.execute("postgres", "SELECT pg_promote(true, 60)").await
    }

    /// Starts the stopped or killed server again, with its data and on its port.
    pub async fn start_again(&mut self) -> Result<(), StartError> {
        let mut command = self.home.command(&binaries::postgres("postgres")?)?;
        command.arg("-D").arg(self.home.path().join("data")).arg("-k").arg(self.home.path());
        let mut setting = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        setting("port", &self.port.to_string());
        setting("listen_addresses", "127.0.0.1");
        setting("max_connections", "200");
        setting("timezone", "UTC");
        if !self.options.durable {
            // Commits are still written before they are acknowledged: without `synchronous_commit` a kill
            // would lose some.
            for name in ["fsync", "full_page_writes"] {
                setting(name, "off");
            }
        }
        for (name, value) in &self.options.settings {
            setting(name, value);
        }
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        // Left by a server that was killed; its first line must not be taken for the new server's.
        drop(fs::remove_file(self.home.path().join("data/postmaster.pid")));
        let mut child = self.home.spawn(command)?;
        let ready = wait_ready(&mut child, async || self.says_ready()).await;
        self.child = Some(child);
        if ready { Ok(()) } else { Err(self.home.not_ready("postgres")) }
    }

    /// Returns true if the eighth line of its pid file shows that it accepts connections, at least to read.
    fn says_ready(&self) -> bool {
        let file = fs::read_to_string(self.home.path().join("data/postmaster.pid")).unwrap_or_default();
        file.lines().nth(7).is_some_and(|line| ["ready", "standby"].contains(&line.trim()))
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the id of its process while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the ids of all its processes while it runs.
    pub fn pids(&self) -> Vec<u32> {
        self.pid().into_iter().flat_map(|pid| [vec![pid], children_of(pid)].concat()).collect()
    }

    /// Returns a connection string for the superuser.
    pub fn superuser_dsn(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Stops it like an administrator: running transactions are rolled back, connections closed.
    pub async fn stop(&mut self) {
        end(&self.home, &mut self.child, "INT").await;
    }

    /// Ends it like a crash.
    pub async fn kill(&mut self) {
        end(&self.home, &mut self.child, "QUIT").await;
    }

    /// Saves a copy of the data of a stopped server.
    pub fn save(&self) -> Result<(), StartError> {
        self.copy("data", "saved")
    }

    /// Replaces the data of a stopped or killed server with the copy: later commits are lost.
    pub fn restore(&self) -> Result<(), StartError> {
        self.copy("saved", "data")
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), StartError> {
        let home = self.home.path();
        // Uses `cp` as the server's user, who owns the files.
        let script = r#"rm -rf -- "$2" && cp -a -- "$1" "$2""#;
        let mut copy = self.home.command(Path::new("sh"))?;
        copy.args(["-c", script, "copy"]).arg(home.join(from)).arg(home.join(to));
        let done = copy.status().map_err(io_error("copy the data of a server"))?;
        if done.success() { Ok(()) } else { Err(self.home.not_ready("cp")) }
    }

    /// Suspends every process of the server: connections stay open and get no response.
    pub fn pause(&self) {
        let Some(pid) = self.pid() else { return };
        // The parent process is stopped first, so that it cannot start others.
        signal("STOP", &[pid]);
        let mut pids = children_of(pid);
        pids.push(pid);
        // Without the note a watchdog could not wake them; the test continues nevertheless.
        drop(self.home.note_paused(&pids));
        signal("STOP", &pids);
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        let Some(pid) = self.pid() else { return };
        let mut pids = children_of(pid);
        pids.push(pid);
        signal("CONT", &pids);
    }

    /// Prepares the server like a database administrator before the first start: a role that is not a
    /// superuser, a database, and a schema that the role owns.
    pub async fn create_role_and_schema(
        &self,
        database: &str,
        role: &str,
        schema: &str,
    ) -> Result<(), StartError> {
        let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let (database_name, role, schema) = (quote(database), quote(role), quote(schema));
        self.execute("postgres", &format!(
            "DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        ))
        .await?;
        self.execute("postgres", &format!("CREATE DATABASE {database_name}")).await?;
        self.execute(database, &format!("CREATE SCHEMA {schema} AUTHORIZATION {role}")).await
    }

    /// Runs a statement as the superuser.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<(), StartError> {
        const DOING: &str = "prepare the database";
        let refused = |source| StartError::Refused { doing: DOING, source };
        let (client, connection) =
            tokio_postgres::connect(&self.superuser_dsn(database), NoTls).await.map_err(refused)?;
        let connection = tokio::spawn(connection);
        let done = client.batch_execute(sql).await;
        drop(client);
        // After the client is gone, an error of the connection does not matter.
        drop(connection.await);
        done.map_err(refused)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            signal("CONT", &children_of(child.id()));
            signal("CONT", &[child.id()]);
            signal("QUIT", &[child.id()]);
            // It must be gone before its folder is removed; QUIT waits for no client.
            drop(child.wait());
            self.home.forget();
        }
    }
}
