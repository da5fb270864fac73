//! A private PgBouncer in front of a private PostgreSQL.

use std::fs;
use std::process::Child;

use crate::binaries;
use crate::process::{Home, PORT_TRIES, StartError, end, free_port, io_error, signal, wait_ready};

/// Settings of the pooler.
#[derive(Clone, Debug)]
pub struct PgBouncerOptions {
    /// `session`, `transaction` or `statement`.
    pub pool_mode: &'static str,
    /// The largest number of connections to the server for each role and database.
    pub pool_size: usize,
    /// Further settings, as `name` and `value`.
    pub settings: Vec<(&'static str, &'static str)>,
    /// The roles that may connect, besides `postgres`.
    pub roles: Vec<&'static str>,
}

/// A running pooler. When dropped, it is stopped and its folder removed.
#[derive(Debug)]
pub struct PgBouncer {
    home: Home,
    options: PgBouncerOptions,
    server_port: u16,
    port: u16,
    child: Option<Child>,
}

impl PgBouncer {
    /// Starts a pooler in front of the server at this port of 127.0.0.1.
    pub async fn start(server_port: u16, options: PgBouncerOptions) -> Result<Self, StartError> {
        let mut pooler = Self { home: Home::new()?, options, server_port, port: 0, child: None };
        for _ in 0..PORT_TRIES {
            pooler.port = free_port()?;
            match pooler.run().await {
                Err(_) if pooler.home.log_says("Address already in use") => pooler.home.clear_log(),
                other => return other.map(|()| pooler),
            }
        }
        Err(pooler.home.not_ready("pgbouncer"))
    }

    async fn run(&mut self) -> Result<(), StartError> {
        self.write_configuration()?;
        let mut command = self.home.command(&binaries::pgbouncer()?)?;
        command.arg("pgbouncer.ini");
        let mut child = self.home.spawn(command)?;
        // A connection that only tests whether it listens would count against max_client_conn for a while.
        let ready = wait_ready(&mut child, async || self.home.log_says("process up")).await;
        self.child = Some(child);
        if ready { Ok(()) } else { Err(self.home.not_ready("pgbouncer")) }
    }

    fn write_configuration(&self) -> Result<(), StartError> {
        let PgBouncerOptions { pool_mode, pool_size, settings, roles } = &self.options;
        let (port, server_port) = (self.port, self.server_port);
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = users.txt\nadmin_users = postgres\nmax_client_conn = 500\n\
             pool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\n"
        );
        for (name, value) in settings {
            text.push_str(&format!("{name} = {value}\n"));
        }
        let users: String =
            roles.iter().chain(&["postgres"]).map(|role| format!("\"{role}\" \"\"\n")).collect();
        for (file, text) in [("pgbouncer.ini", text), ("users.txt", users)] {
            fs::write(self.home.path().join(file), text).map_err(io_error("configure a pooler"))?;
        }
        Ok(())
    }

    /// Changes mode and size while clients are connected, like an administrator.
    pub fn set_pool(&mut self, pool_mode: &'static str, pool_size: usize) -> Result<(), StartError> {
        self.options.pool_mode = pool_mode;
        self.options.pool_size = pool_size;
        self.write_configuration()?;
        let pid = self.child.as_ref().map(Child::id);
        signal("HUP", pid.as_slice());
        Ok(())
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops it.
    pub async fn stop(&mut self) {
        end(&self.home, &mut self.child, "INT").await;
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            signal("KILL", &[child.id()]);
            drop(child.wait());
            self.home.forget();
        }
    }
}
