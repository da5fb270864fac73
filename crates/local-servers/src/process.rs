//! A server process in its own folder, without root's rights, that ends with this process.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::MissingBinary;

/// The time that a server may take to become ready.
pub(crate) const START_BOUND: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The number of ports that are tried if others take them first.
pub(crate) const PORT_TRIES: usize = 5;

/// The error of starting a server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its program is not installed.
    #[error(transparent)]
    Missing(#[from] MissingBinary),
    /// The operating system rejected an operation.
    #[error("could not {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server ended, or was not ready in time.
    #[error("{program} did not start; the end of its log:\n{log}")]
    NotReady {
        /// The program.
        program: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// The server runs but rejects a statement or command.
    #[error("could not {doing}")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The cause.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A Redis runs but rejects a command, or a group of them did not become what it should.
    #[error("could not {doing}")]
    Redis {
        /// The operation.
        doing: &'static str,
        /// The cause.
        #[source]
        source: redis::RedisError,
    },
}

pub(crate) fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { doing, source }
}

/// The folder of a server, and the user that it runs as.
#[derive(Debug)]
pub(crate) struct Home {
    folder: TempDir,
    user: Option<(u32, u32)>,
    /// A process that waits for the end of its standard input, which this process holds; then it cleans up.
    watchdog: Child,
}

/// Ends the server whose pid is in the folder, whatever its state, and removes the folder.
const WATCHDOG: &str = r#"
cat >/dev/null 2>&1
[ -f "$1/paused" ] && kill -CONT $(cat "$1/paused") 2>/dev/null
if [ -f "$1/server.pid" ]; then
  pid=$(cat "$1/server.pid")
  kill -CONT "$pid" 2>/dev/null
  kill -QUIT "$pid" 2>/dev/null
  for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
  kill -KILL "$pid" 2>/dev/null
fi
rm -rf -- "$1"
"#;

impl Home {
    pub(crate) fn new() -> Result<Self, StartError> {
        let folder =
            tempfile::Builder::new().prefix("local-server-").tempdir().map_err(io_error("make a folder"))?;
        let owner = fs::metadata(folder.path()).map_err(io_error("look at a folder"))?.uid();
        let user = if owner == 0 { Some(unprivileged_user()?) } else { None };
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid))
                .map_err(io_error("give a folder to an unprivileged user"))?;
        }
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C on this terminal must not reach it.
            .process_group(0)
            .spawn()
            .map_err(io_error("start the watchdog"))?;
        Ok(Self { folder, user, watchdog })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a command that runs as the server's user, in its folder, with its output in the log.
    pub(crate) fn command(&self, program: &Path) -> Result<Command, StartError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .map_err(io_error("open a log"))?;
        let errors = log.try_clone().map_err(io_error("open a log"))?;
        let mut command = Command::new(program);
        command.current_dir(self.path()).stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        command.env_remove("PGDATA").env_remove("PGPORT").env_remove("PGHOST").env_remove("PGOPTIONS");
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// Writes a file that the server's user owns.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), StartError> {
        let file = self.path().join(name);
        fs::write(&file, content).map_err(io_error("write a file"))?;
        match self.user {
            Some((uid, gid)) => {
                chown(&file, Some(uid), Some(gid)).map_err(io_error("give a file to an unprivileged user"))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child, StartError> {
        let child = command.spawn().map_err(io_error("start a server"))?;
        fs::write(self.path().join("server.pid"), child.id().to_string()).map_err(io_error("note a pid"))?;
        Ok(child)
    }

    /// Removes the pid of an ended server: another process may get the same pid, and the watchdog must not
    /// end it.
    pub(crate) fn forget(&self) {
        // If the folder is gone, the files are gone too.
        drop(fs::remove_file(self.path().join("server.pid")));
        drop(fs::remove_file(self.path().join("paused")));
    }

    /// Writes down the suspended processes, so that the watchdog can wake them.
    pub(crate) fn note_paused(&self, pids: &[u32]) -> io::Result<()> {
        let text: Vec<String> = pids.iter().map(u32::to_string).collect();
        fs::write(self.path().join("paused"), text.join(" "))
    }

    pub(crate) fn not_ready(&self, program: &'static str) -> StartError {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        StartError::NotReady { program, log: lines[lines.len().saturating_sub(15)..].join("\n") }
    }

    pub(crate) fn log_says(&self, text: &str) -> bool {
        fs::read_to_string(self.log_file()).is_ok_and(|log| log.contains(text))
    }

    pub(crate) fn clear_log(&self) {
        // A missing log is as good as an empty one.
        drop(fs::remove_file(self.log_file()));
    }

    fn log_file(&self) -> PathBuf {
        self.path().join("server.log")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        // It ends after its cleanup; a failure has no caller to report to.
        drop(self.watchdog.wait());
    }
}

/// Returns the user for servers, which do not run as root: `postgres` if it exists, otherwise `nobody`.
fn unprivileged_user() -> Result<(u32, u32), StartError> {
    let users = fs::read_to_string("/etc/passwd").map_err(io_error("look for an unprivileged user"))?;
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2);
        Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
    };
    find("postgres").or_else(|| find("nobody")).ok_or_else(|| {
        io_error("find an unprivileged user")(io::Error::new(
            io::ErrorKind::NotFound,
            "neither postgres nor nobody exists",
        ))
    })
}

/// Returns a loopback port that was free a moment ago. Fails only if none is free.
pub fn free_port() -> Result<u16, StartError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io_error("find a free port"))?;
    Ok(listener.local_addr().map_err(io_error("find a free port"))?.port())
}

/// Sends a signal with the shell's `kill`, which always exists. Signalling an ended process is not an error.
pub(crate) fn signal(name: &str, pids: &[u32]) {
    let mut command = Command::new("sh");
    command.args(["-c", r#"name=$1; shift; kill -"$name" "$@" 2>/dev/null"#, "signal", name]);
    command.args(pids.iter().map(u32::to_string)).stdin(Stdio::null());
    drop(command.status());
}

/// Returns the processes whose parent is `pid`.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_child = |pid_of: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid_of}/stat")).unwrap_or_default();
        // The name in parentheses may contain any characters; the state and the parent follow it.
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parent == Some(pid)
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// Waits for the end of a process; `None` after the timeout.
async fn wait_end(child: &mut Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < STOP_TIMEOUT {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    None
}

/// Waits until `ready`; returns false if the process ends or the time is over.
pub(crate) async fn wait_ready(child: &mut Child, mut ready: impl AsyncFnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < START_BOUND {
        if ready().await {
            return true;
        }
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}

/// Ends the server's process by this signal, and by force after a timeout.
pub(crate) async fn end(home: &Home, child: &mut Option<Child>, signal_name: &str) {
    let Some(mut child) = child.take() else { return };
    signal(signal_name, &[child.id()]);
    if wait_end(&mut child).await.is_none() {
        signal("KILL", &[child.id()]);
        wait_end(&mut child).await;
    }
    home.forget();
}
