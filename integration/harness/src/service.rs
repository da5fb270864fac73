//! The service's own binary as a child process: started as an operator would start it, and observed through
//! its log and its probes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::memory;
use crate::poll::wait_for;

/// The time limit of a start.
const START_BOUND: Duration = Duration::from_secs(60);
/// The time limit of a command.
const COMMAND_BOUND: Duration = Duration::from_secs(120);
/// The time limit for reading the remaining output of an ended process.
const OUTPUT_BOUND: Duration = Duration::from_secs(60);

/// The `notification` binary of this build: in the folder of the current program, or one folder up from a
/// test.
pub fn service_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test has an executable");
    let places = test.ancestors().skip(1).take(2).map(|folder| folder.join("notification"));
    let found = places.into_iter().find(|binary| binary.is_file());
    found.unwrap_or_else(|| panic!("there is no notification near {}: build `app` first", test.display()))
}

/// A service to be started, in an environment that contains only the given variables.
#[derive(Clone, Debug)]
pub struct ServiceBuilder {
    program: Vec<String>,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    soft_file_limit: Option<u32>,
}

impl Default for ServiceBuilder {
    fn default() -> Self {
        Self {
            program: Vec::new(),
            variables: Vec::new(),
            arguments: vec!["serve".to_owned()],
            soft_file_limit: None,
        }
    }
}

impl ServiceBuilder {
    /// Sets a variable; the last value counts.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the program to run, with its first arguments, instead of the binary of this build: the binary of
    /// another release, or a program that becomes the service by `exec`.
    #[must_use]
    pub fn program<'a>(mut self, line: impl IntoIterator<Item = &'a str>) -> Self {
        self.program = line.into_iter().map(str::to_owned).collect();
        self
    }

    /// Sets the command line, instead of `serve`.
    #[must_use]
    pub fn arguments<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.arguments = arguments.into_iter().map(str::to_owned).collect();
        self
    }

    /// Limits the number of open files until the service raises the limit itself.
    #[must_use]
    pub fn soft_file_limit(mut self, files: u32) -> Self {
        self.soft_file_limit = Some(files);
        self
    }

    fn command(self) -> Command {
        let own = vec![service_binary().to_string_lossy().into_owned()];
        let line = if self.program.is_empty() { own } else { self.program };
        let mut command = match self.soft_file_limit {
            None => Command::new(&line[0]),
            Some(files) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!(r#"ulimit -S -n {files} && exec "$0" "$@""#)]).arg(&line[0]);
                shell
            }
        };
        command.args(&line[1..]).env_clear().args(&self.arguments).envs(self.variables);
        // A child under a debugger or a coverage tool needs these.
        for name in ["PATH", "HOME", "TMPDIR", "LLVM_PROFILE_FILE", "PG_BINDIR", "REDIS_BINDIR"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }

    /// Runs a command that ends by itself, and waits for its end.
    pub async fn run(self) -> Finished {
        self.run_within(COMMAND_BOUND).await
    }

    /// Runs a command that ends within this time.
    pub async fn run_within(self, bound: Duration) -> Finished {
        let mut command = tokio::process::Command::from(self.command());
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(bound, output).await.expect("the command ends");
        let output = output.expect("the service's binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Starts the service without waiting.
    pub fn spawn(self) -> Service {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the service's binary runs");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let collectors = [
            collect(child.stdout.take(), Arc::clone(&lines)),
            collect(child.stderr.take(), Arc::clone(&lines)),
        ];
        Service { child, lines, collectors }
    }

    /// Starts the service and waits until it is ready.
    pub async fn start(self) -> Service {
        let mut service = self.spawn();
        service.wait_ready().await;
        service
    }
}

/// A command that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The exit code; `None` if a signal ended the command.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error output.
    pub stderr: String,
}

/// A response over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// The header lines.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpResponse {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// Sends one request over a connection of its own. `Err` if the connection ends before the whole response.
pub async fn request(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> std::io::Result<HttpResponse> {
    exchange(TcpStream::connect(addr).await?, method, path, headers, body.as_ref()).await
}

/// As [`request`], over a Unix socket.
pub async fn request_unix(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> std::io::Result<HttpResponse> {
    exchange(UnixStream::connect(socket).await?, method, path, headers, body.as_ref()).await
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<HttpResponse> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let cut_short = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_short)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(cut_short)?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers: Vec<_> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let answer = HttpResponse { status, headers, body: body.to_owned() };
    let complete = answer.header("content-length").is_none_or(|length| length == body.len().to_string());
    // The length is that of the response to a GET.
    if complete || method == "HEAD" { Ok(answer) } else { Err(cut_short()) }
}

fn collect(source: Option<impl Read + Send + 'static>, lines: Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let source = BufReader::new(source.expect("it is piped"));
    std::thread::spawn(move || {
        for line in source.lines().map_while(Result::ok) {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}

/// A running service. It is killed when it is dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// The threads that read its output, which end with it.
    collectors: [JoinHandle<()>; 2],
}

impl Service {
    /// The output lines so far.
    pub fn output(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first log line with this message, as JSON.
    pub fn logged(&self, message: &str) -> Option<Value> {
        let lines = self.output();
        lines
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["message"] == message)
    }

    async fn wait_ready(&mut self) {
        wait_for("the service is ready", START_BOUND, async || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the service ended with {status}:\n{}", self.output().join("\n"));
            }
            ["the service is ready", "the relay is ready", "the state store is ready"]
                .iter()
                .find_map(|message| self.logged(message))
        })
        .await;
    }

    /// The address of its probes, from its log.
    pub fn http_addr(&self) -> String {
        let line = self.logged("http listener is ready").expect("it is ready");
        line["http_addr"].as_str().expect("an address").to_owned()
    }

    /// The status and body of a GET from its probes.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = request(&self.http_addr(), "GET", path, &[], "").await.expect("the listener answers");
        (answer.status, answer.json())
    }

    /// The address of its API, from its log.
    pub fn api_addr(&self) -> String {
        let line = self.logged("the API is listening").expect("it is ready");
        line["api_addr"].as_str().expect("an address").to_owned()
    }

    /// The TCP address of its state store, from its log.
    pub fn state_addr(&self) -> String {
        let line = self.logged("the state store listens on TCP").expect("it is ready");
        line["state_addr"].as_str().expect("an address").to_owned()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The peak memory of the process, in bytes; `None` once it has ended. Linux only.
    pub fn peak_memory(&self) -> Option<u64> {
        memory::peak(self.pid())
    }

    /// Sends a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(status.expect("there is a shell").success(), "SIG{name} could not be sent");
    }

    /// Returns true if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.wait_exit(Duration::from_secs(10)).await;
    }

    /// Waits for the process to end. All its output is collected then.
    pub async fn wait_exit(&mut self, bound: Duration) -> ExitStatus {
        let Self { child, collectors, .. } = self;
        let status = wait_for("the service ends", bound, async || child.try_wait().expect("it is our child"));
        let status = status.await;
        wait_for("its output ends", OUTPUT_BOUND, async || {
            collectors.iter().all(JoinHandle::is_finished).then_some(())
        })
        .await;
        status
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the service's output ---\n{}", self.output().join("\n"));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
