//! The examples of the page for producers are working programs: each is extracted from the page and run.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use harness::Service;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use crate::api::*;
use crate::world::*;

const PAGE: &str = include_str!("../../../../docs/producers.md");
/// The instruction to install the programs that the examples need.
const INSTALL: &str = "run `sh scripts/ensure-tools.sh --examples`, which installs it or says how";
/// The key of all examples.
const KEY: &str = "game-123:turn-54";

/// An example of the page, in a file of its own.
struct Example {
    name: &'static str,
    program: PathBuf,
    folder: TempDir,
    file: &'static str,
}

impl Example {
    fn new(name: &'static str) -> Self {
        let (program, file) = match name {
            "redis-cli" | "curl" => (installed("sh"), "send.sh"),
            "python" => (installed("python3"), "send.py"),
            "typescript" => (tsx(), "send.mts"),
            other => panic!("nothing runs {other}"),
        };
        if ["redis-cli", "curl"].contains(&name) {
            installed(name);
        }
        let folder = TempDir::new().expect("a temporary folder");
        std::fs::write(folder.path().join(file), code(PAGE, name)).expect("the file is written");
        Self { name, program, folder, file }
    }

    /// Runs the example to its end.
    async fn run(&self, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(&self.program);
        command.arg(self.file).current_dir(self.folder.path()).kill_on_drop(true);
        command.stdin(Stdio::null()).envs(variables.iter().copied());
        // Bypasses a proxy of the machine.
        command.env("no_proxy", "127.0.0.1").env("NO_PROXY", "127.0.0.1");
        let output = timeout(BOUND, command.output()).await.unwrap_or_else(|_| panic!("{} ends", self.name));
        output.unwrap_or_else(|error| panic!("{}: {error}", self.program.display()))
    }
}

/// The code block of a page that follows the mark of an example.
pub(crate) fn code<'a>(page: &'a str, name: &str) -> &'a str {
    let mark = format!("<!-- example: {name} -->\n```");
    let (_, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no example {name}"));
    let (_language, rest) = rest.split_once('\n').expect("a block has lines");
    rest.split("```").next().unwrap_or_default()
}

/// A program on `PATH`.
fn installed(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{program} is not installed: {INSTALL}"))
}

/// The program that runs TypeScript on Node.js.
pub(crate) fn tsx() -> PathBuf {
    installed("node");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder");
    let tsx = target.join("page-examples/node_modules/.bin/tsx");
    assert!(tsx.is_file(), "there is no {}: {INSTALL}", tsx.display());
    tsx
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn assert_ended_well(example: &Example, output: &Output) {
    let (said, failed) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {}\n{said}\n{failed}", example.name, output.status);
}

async fn run_on(example: &Example, service: &Service) -> Value {
    let url = format!("http://{}", service.api_addr());
    let output = example.run(&[("API_URL", &url), ("TOKEN", PRODUCER)]).await;
    assert_ended_well(example, &output);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stdout)))
}

#[tokio::test]
async fn every_example_of_the_page_sends_the_same_intent_and_together_they_make_one_notification() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let by_stream = Example::new("redis-cli");
    let redis = format!("redis://127.0.0.1:{}", world.redis.port());
    let output = by_stream.run(&[("REDIS_URL", &redis)]).await;
    assert_ended_well(&by_stream, &output);
    assert_eq!(text(&output.stdout), world.last_entry().await, "it prints the id of its entry");
    world.settled(1).await;
    let id = world.column("SELECT notification_id FROM records").await.remove(0);
    for name in ["curl", "python", "typescript"] {
        let answer = run_on(&Example::new(name), &service).await;
        assert_eq!(
            (&answer["outcome"], &answer["notification_id"]),
            (&json!("duplicate"), &json!(id)),
            "{name}"
        );
    }
    assert_eq!(world.column("SELECT idempotency_key FROM records").await, [KEY]);
    assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0);
    assert_eq!(world.outbound().await.len(), 4);
}

/// Runs an example twice: the intent is accepted the first time, and replayed the second time.
async fn is_accepted_and_replayed(name: &'static str) {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let example = Example::new(name);
    let first = run_on(&example, &service).await;
    assert_eq!(first["outcome"], "accepted", "{first}");
    assert_eq!(run_on(&example, &service).await, first, "the stored answer is replayed");
    assert_eq!(world.column("SELECT idempotency_key FROM records").await, [KEY]);
}

/// The reaction of a scripted server to one request.
enum Reply {
    /// Closes the connection.
    Nothing,
    /// Responds with this status, with `Retry-After` in seconds if it is not 0, and with a body.
    Answer(u16, u64, Value),
}

/// A received request, without the parts that differ between two connections, and its time.
struct Seen {
    at: Instant,
    key: Option<String>,
    body: String,
}

/// Responds to the next requests with these replies, in their order, and then to no more.
async fn serve(listener: TcpListener, replies: Vec<Reply>) -> Vec<Seen> {
    let mut seen = Vec::new();
    for reply in replies {
        let (mut stream, _) = listener.accept().await.expect("it is open");
        let mut request = Vec::new();
        let (head, body) = loop {
            assert!(stream.read_buf(&mut request).await.expect("it is open") > 0, "the request ends early");
            let text = String::from_utf8_lossy(&request).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = header(head, "content-length").and_then(|length| length.parse().ok());
            if length == Some(body.len()) {
                break (head.to_owned(), body.to_owned());
            }
        };
        assert!(head.starts_with("POST /v1/intents HTTP/1.1"), "{head}");
        assert_eq!(header(&head, "authorization").as_deref(), Some("Bearer producer-token"));
        seen.push(Seen { at: Instant::now(), key: header(&head, "idempotency-key"), body });
        let Reply::Answer(status, retry_after, json) = reply else { continue };
        let pause = if retry_after > 0 { format!("Retry-After: {retry_after}\r\n") } else { String::new() };
        let (json, kind) = (json.to_string(), "application/problem+json");
        let answer = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n{pause}\r\n{json}",
            json.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("it is open");
    }
    seen
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim().to_owned())
}

async fn run_against(example: &Example, replies: Vec<Reply>) -> (Output, Vec<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let serving = tokio::spawn(serve(listener, replies));
    let output = example.run(&[("API_URL", &url), ("TOKEN", PRODUCER)]).await;
    let seen = timeout(BOUND, serving).await.unwrap_or_else(|_| panic!("{} asks for all", example.name));
    (output, seen.expect("no panic"))
}

/// A retryable response makes the example repeat the request with the same bytes, not earlier than
/// `Retry-After`.
async fn retries_as_it_is_told(name: &'static str) {
    let example = Example::new(name);
    let problem = json!({"type": "/problems/unavailable"});
    let accepted = json!({"notification_id": "n-1", "outcome": "accepted", "accepted_at": "", "routes": []});
    // Longer than the example's own first pauses.
    let told = [0, 3, 1, 1, 0];
    let answer = |status, pause: usize| Reply::Answer(status, told[pause], problem.clone());
    let replies = vec![
        Reply::Nothing,
        answer(503, 1),
        answer(409, 2),
        answer(429, 3),
        Reply::Answer(202, 0, accepted.clone()),
    ];
    let (output, seen) = run_against(&example, replies).await;
    assert_ended_well(&example, &output);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON"), accepted);
    for (place, pair) in seen.windows(2).enumerate() {
        assert_eq!((pair[1].key.as_deref(), &pair[1].body), (Some(KEY), &pair[0].body), "{name}");
        // Timers may round.
        let least = Duration::from_secs(told[place]).saturating_sub(Duration::from_millis(5));
        assert!(pair[1].at - pair[0].at >= least, "{name} asked again after {:?}", pair[1].at - pair[0].at);
    }
}

/// A malformed intent is reported with its code and not repeated.
async fn reports_what_is_malformed(name: &'static str) {
    let example = Example::new(name);
    let problem = json!({
        "type": "/problems/malformed-intent", "title": "Malformed intent", "status": 422,
        "code": "payload_schema_violation", "detail": "turn_number is missing",
    });
    let (output, seen) = run_against(&example, vec![Reply::Answer(422, 0, problem)]).await;
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), seen.len()), (Some(1), 1), "{name}: {said}");
    assert!(said.contains("422") && said.contains("payload_schema_violation"), "{name}: {said}");
}

macro_rules! tests_of {
    ($($module:ident)*) => { $(
        mod $module {
            const NAME: &str = stringify!($module);

            #[tokio::test]
            async fn the_example_is_accepted_and_a_second_run_gets_the_same_answer() {
                super::is_accepted_and_replayed(NAME).await;
            }

            #[tokio::test]
            async fn the_example_repeats_the_same_request_when_it_is_told_to_and_not_sooner() {
                super::retries_as_it_is_told(NAME).await;
            }

            #[tokio::test]
            async fn the_example_reports_a_malformed_intent_with_its_code_and_does_not_repeat_it() {
                super::reports_what_is_malformed(NAME).await;
            }
        }
    )* };
}

tests_of!(curl python typescript);

#[test]
fn every_example_of_the_page_is_run() {
    let marked = PAGE.matches("<!-- example: ").count();
    assert_eq!(marked, ["redis-cli", "curl", "python", "typescript"].map(|name| code(PAGE, name)).len());
    assert!(!PAGE.contains("<!-- example: curl -->\n\n"), "a mark stands directly above its block");
}
