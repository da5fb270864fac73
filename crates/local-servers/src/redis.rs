//! A private Redis.

use std::process::Child;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::binaries;
use crate::process::{Home, PORT_TRIES, StartError, end, free_port, signal, wait_ready};

/// Settings of the server.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// The password of the default user.
    pub password: Option<String>,
    /// True to keep its data over a restart, in a log that is written before each response.
    pub appendonly: bool,
    /// Further arguments.
    pub arguments: Vec<String>,
}

/// A running server. When dropped, it is stopped and its folder removed.
#[derive(Debug)]
pub struct Redis {
    home: Home,
    options: RedisOptions,
    port: u16,
    child: Option<Child>,
}

impl Redis {
    /// Starts an empty server.
    pub async fn start(options: RedisOptions) -> Result<Self, StartError> {
        let mut server = Self { home: Home::new()?, options, port: 0, child: None };
        for _ in 0..PORT_TRIES {
            server.port = free_port()?;
            match server.start_again().await {
                Err(_) if server.home.log_says("Address already in use") => server.home.clear_log(),
                other => return other.map(|()| server),
            }
        }
        Err(server.home.not_ready("redis-server"))
    }

    /// Starts the stopped or killed server again, on its port and with the data that it kept.
    pub async fn start_again(&mut self) -> Result<(), StartError> {
        let mut command = self.home.command(&binaries::redis("redis-server")?)?;
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--daemonize",
            "no",
        ]);
        // The operating system decides when to flush the log: the folder need not survive a power loss. With
        // `everysec` Redis responds before it has written while a flush is under way, and a kill could lose
        // writes.
        command.args([
            "--appendonly",
            if self.options.appendonly { "yes" } else { "no" },
            "--appendfsync",
            "no",
        ]);
        command.arg("--dir").arg(self.home.path());
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password]);
        }
        command.args(&self.options.arguments);
        let mut child = self.home.spawn(command)?;
        let (pid, port, password) = (child.id(), self.port, self.options.password.as_deref());
        let ready = wait_ready(&mut child, async || answers(pid, port, password).await).await;
        self.child = Some(child);
        if ready { Ok(()) } else { Err(self.home.not_ready("redis-server")) }
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its address, `host:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the id of its process while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
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

/// Returns true if the process `pid` responds on `port` and has finished loading. The process is compared
/// because another server that took the port first would also respond.
async fn answers(pid: u32, port: u16, password: Option<&str>) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        if let Some(password) = password {
            let length = password.len();
            let authenticate = format!("*2\r\n$4\r\nAUTH\r\n${length}\r\n{password}\r\n");
            stream.write_all(authenticate.as_bytes()).await?;
        }
        stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let process = format!("\r\nprocess_id:{pid}\r\n");
        std::io::Result::Ok(answer.contains("+PONG\r\n") && answer.contains(&process))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
}
