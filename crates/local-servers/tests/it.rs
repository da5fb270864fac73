//! Private servers from the machine's own binaries, and the stand-in directory.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::wait_for;
use local_servers::{
    Postgres, PostgresOptions, Redis, RedisCluster, RedisClusterOptions, RedisOptions, RedisTls,
    SentinelGroup, SentinelOptions, StandInDirectory, UserFault,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

/// A limit longer than a busy machine takes for any step here.
const BOUND: Duration = Duration::from_secs(30);
/// The time without a response after which a server counts as unresponsive.
const SILENCE: Duration = Duration::from_millis(300);

async fn postgres() -> Postgres {
    Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL starts")
}

async fn redis(options: RedisOptions) -> Redis {
    Redis::start(options).await.expect("a private Redis starts")
}

async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.superuser_dsn("postgres"), NoTls)
        .await
        .expect("it takes connections");
    // The task ends with the client or with the server.
    tokio::spawn(async { drop(connection.await) });
    client
}

/// A connection to Redis with its inline protocol.
struct Talk(TcpStream);

impl Talk {
    async fn to(server: &Redis) -> Self {
        Self(TcpStream::connect(server.addr()).await.expect("it takes connections"))
    }

    async fn say(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.expect("the connection is open");
    }

    /// Reads as many bytes as `expected` has, and compares them.
    async fn hears(&mut self, expected: &str) -> bool {
        let mut answer = vec![0; expected.len()];
        self.0.read_exact(&mut answer).await.expect("an answer");
        answer == expected.as_bytes()
    }
}

#[tokio::test]
async fn postgresql_keeps_its_data_and_its_port_over_a_kill() {
    let mut server = postgres().await;
    let port = server.port();
    server.execute("postgres", "CREATE TABLE t AS SELECT 7 AS n").await.expect("it runs");
    server.kill().await;
    assert_eq!(server.pid(), None);
    server.execute("postgres", "SELECT 1").await.expect_err("it is gone");
    server.start_again().await.expect("it starts again");
    assert_eq!(server.port(), port);
    let row = connect(&server).await.query_one("SELECT n FROM t", &[]).await.expect("the table is there");
    assert_eq!(row.get::<_, i32>(0), 7);
}

#[tokio::test]
async fn redis_keeps_its_data_and_its_port_over_a_kill() {
    let mut server = redis(RedisOptions { appendonly: true, ..RedisOptions::default() }).await;
    let port = server.port();
    let mut talk = Talk::to(&server).await;
    talk.say("SET a 7").await;
    assert!(talk.hears("+OK\r\n").await);
    server.kill().await;
    assert_eq!(server.pid(), None);
    TcpStream::connect(server.addr()).await.expect_err("it is gone");
    server.start_again().await.expect("it starts again");
    assert_eq!(server.port(), port);
    let mut talk = Talk::to(&server).await;
    talk.say("GET a").await;
    assert!(talk.hears("$1\r\n7\r\n").await);
}

#[tokio::test]
async fn servers_that_were_stopped_start_again_with_their_data() {
    let (mut postgres, mut redis) =
        (postgres().await, redis(RedisOptions { appendonly: true, ..RedisOptions::default() }).await);
    postgres.execute("postgres", "CREATE TABLE t AS SELECT 7 AS n").await.expect("it runs");
    let mut talk = Talk::to(&redis).await;
    talk.say("SET a 7").await;
    assert!(talk.hears("+OK\r\n").await);
    postgres.stop().await;
    redis.stop().await;
    postgres.start_again().await.expect("it starts again");
    redis.start_again().await.expect("it starts again");
    postgres.execute("postgres", "INSERT INTO t VALUES (8)").await.expect("the table is there");
    let mut talk = Talk::to(&redis).await;
    talk.say("GET a").await;
    assert!(talk.hears("$1\r\n7\r\n").await);
}

#[tokio::test]
async fn a_paused_postgresql_answers_nothing_until_it_is_resumed() {
    let server = postgres().await;
    let client = connect(&server).await;
    server.pause();
    let query = client.query_one("SELECT 7", &[]);
    tokio::pin!(query);
    assert!(timeout(SILENCE, &mut query).await.is_err(), "it answers");
    let dsn = server.superuser_dsn("postgres");
    assert!(timeout(SILENCE, tokio_postgres::connect(&dsn, NoTls)).await.is_err(), "it takes connections");
    server.resume();
    let row = timeout(BOUND, query).await.expect("in time").expect("the connection is the same");
    assert_eq!(row.get::<_, i32>(0), 7);
}

#[tokio::test]
async fn a_paused_redis_answers_nothing_until_it_is_resumed() {
    let server = redis(RedisOptions::default()).await;
    let mut talk = Talk::to(&server).await;
    server.pause();
    talk.say("PING").await;
    assert!(timeout(SILENCE, talk.0.readable()).await.is_err(), "it answers");
    server.resume();
    assert!(timeout(BOUND, talk.hears("+PONG\r\n")).await.expect("in time"));
}

#[tokio::test]
async fn a_redis_with_a_password_asks_for_it() {
    let server =
        redis(RedisOptions { password: Some("s3cret \"x".to_owned()), ..RedisOptions::default() }).await;
    let mut talk = Talk::to(&server).await;
    talk.say("PING").await;
    assert!(talk.hears("-NOAUTH").await);
}

#[tokio::test]
async fn a_redis_whose_port_is_taken_by_another_does_not_pass_for_started() {
    let mut mine = redis(RedisOptions::default()).await;
    mine.kill().await;
    let port = mine.port();
    let options =
        RedisOptions { arguments: vec!["--port".into(), port.to_string()], ..RedisOptions::default() };
    // The other server listens on my port instead of its own, so its start never finds it, but my server's
    // start could take it for my server.
    let other = Redis::start(options);
    let mine = async {
        let answers = async || TcpStream::connect(("127.0.0.1", port)).await.ok();
        drop(wait_for("the other one listens", BOUND, answers).await);
        timeout(BOUND, mine.start_again()).await.expect("in time").expect_err("the port is taken")
    };
    tokio::select! {
        other = other => panic!("it cannot be ready: {other:?}"),
        error = mine => assert!(error.to_string().contains("Address already in use"), "{error}"),
    }
}

#[tokio::test]
async fn dropped_servers_leave_neither_a_process_nor_a_folder_even_if_paused() {
    let (postgres, redis) = (postgres().await, redis(RedisOptions::default()).await);
    let pids = [postgres.pid(), redis.pid()].map(|pid| pid.expect("it runs"));
    let folders = pids.map(folder_of);
    postgres.pause();
    redis.pause();
    tokio::task::spawn_blocking(move || drop((postgres, redis))).await.expect("they can be dropped");
    assert_eq!(pids.map(is_alive), [false, false]);
    assert_eq!(folders.map(|folder| folder.exists()), [false, false]);
}

/// Returns the folder of a server, which is its working directory.
fn folder_of(pid: u32) -> PathBuf {
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("it runs");
    folder.ancestors().find(|folder| is_ours(folder)).expect("one of our folders").to_owned()
}

fn is_ours(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("local-server-"))
}

/// Returns true if the process is alive. A zombie is not alive: there may be no process to reap it.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// The child process of `nothing_is_left_after_the_process_that_started_servers_was_killed`, which starts and
/// kills it; tests nothing itself.
#[tokio::test]
async fn child_that_starts_servers() {
    if std::env::var_os("LOCAL_SERVERS_CHILD").is_none() {
        return;
    }
    let (postgres, redis) = (postgres().await, redis(RedisOptions::default()).await);
    let paused = Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL starts");
    paused.pause();
    let pids = [postgres.pid(), redis.pid(), paused.pid()].map(|pid| pid.expect("it runs").to_string());
    println!("\npids {}", pids.join(" "));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn nothing_is_left_after_the_process_that_started_servers_was_killed() {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_that_starts_servers", "--nocapture"])
        .env("LOCAL_SERVERS_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a test can run itself");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let line =
        output.lines().map_while(Result::ok).find(|line| line.starts_with("pids ")).expect("they start");
    let pids: Vec<u32> = line.split(' ').skip(1).map(|pid| pid.parse().expect("a number")).collect();
    let folders: Vec<PathBuf> = pids.iter().copied().map(folder_of).collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().copied().all(is_alive) && folders.iter().all(|folder| folder.exists()));
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    wait_for("processes and folders are gone", BOUND, async || {
        let gone = !pids.iter().copied().any(is_alive) && !folders.iter().any(|folder| folder.exists());
        gone.then_some(())
    })
    .await;
}

/// A persistent HTTP connection.
struct Http(TcpStream);

impl Http {
    async fn to(directory: &StandInDirectory) -> Option<Self> {
        let addr = directory.base_url().strip_prefix("http://").expect("a URL").to_owned();
        TcpStream::connect(addr).await.ok().map(Self)
    }

    /// Returns status and body of the response about a user; `None` if the connection ends instead.
    async fn look_up(&mut self, user: &str) -> Option<(u16, String)> {
        let request = format!("GET /api/v1/internal/users/{user} HTTP/1.1\r\nhost: x\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let length = self.0.read(&mut piece).await.ok().filter(|length| *length > 0)?;
            answer.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
            let length: usize = header("content-length: ").expect("a length").parse().expect("a number");
            if body.len() == length {
                let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
                return Some((status, body.to_owned()));
            }
        }
    }
}

async fn directory() -> (StandInDirectory, Http) {
    let directory = StandInDirectory::start().await.expect("a free port");
    let http = Http::to(&directory).await.expect("it listens");
    (directory, http)
}

fn user(id: &str, email: &str, language: &str) -> Option<(u16, String)> {
    let parts = format!(r#""email":"{email}","preferred_language":"{language}","user_id":"{id}""#);
    Some((200, format!(r#"{{"user":{{{parts}}}}}"#)))
}

#[tokio::test]
async fn every_user_exists_unless_the_directory_is_configured_otherwise() {
    let (directory, mut http) = directory().await;
    assert_eq!(http.look_up("u1").await, user("u1", "u1@example.com", "en"));
    directory.set_user("u1", "a@b.example", "de");
    assert_eq!(http.look_up("u1").await, user("u1", "a@b.example", "de"));
    directory.remove_user("u1");
    let (status, body) = http.look_up("u1").await.expect("an answer");
    assert_eq!(status, 404);
    assert!(body.contains(r#""code":"subject_not_found""#), "{body}");
    directory.set_everybody_exists(false);
    assert_eq!(http.look_up("u2").await.expect("an answer").0, 404);
    assert_eq!((directory.requests_for("u1"), directory.requests_for("u3"), directory.requests()), (3, 0, 4));
}

#[tokio::test]
async fn a_fault_spoils_the_answers_about_its_user_only_and_until_it_is_cleared() {
    let (directory, mut http) = directory().await;
    directory.set_fault("u1", UserFault::Answer(503, r#"{"no":1}"#.to_owned()));
    assert_eq!(http.look_up("u1").await, Some((503, r#"{"no":1}"#.to_owned())));
    directory.set_fault("u1", UserFault::WrongUser);
    assert_eq!(http.look_up("u1").await, user("not-u1", "u1@example.com", "en"));
    let late = Duration::from_millis(200);
    directory.set_fault("u1", UserFault::Slow(late));
    let began = Instant::now();
    assert_eq!(http.look_up("u1").await, user("u1", "u1@example.com", "en"));
    assert!(began.elapsed() >= late, "{:?}", began.elapsed());
    directory.set_fault("u1", UserFault::Hang);
    let mut hanging = Http::to(&directory).await.expect("it listens");
    assert!(timeout(SILENCE, hanging.look_up("u1")).await.is_err(), "it answers");
    assert_eq!(http.look_up("u2").await, user("u2", "u2@example.com", "en"));
    directory.clear_faults();
    assert_eq!(http.look_up("u1").await, user("u1", "u1@example.com", "en"));
}

#[tokio::test]
async fn a_stopped_directory_closes_what_is_open_and_serves_again_on_its_port() {
    let (mut directory, mut http) = directory().await;
    directory.set_user("u1", "a@b.example", "de");
    assert_eq!(http.look_up("u1").await, user("u1", "a@b.example", "de"));
    directory.stop().await;
    assert_eq!(timeout(BOUND, http.look_up("u1")).await.expect("in time"), None);
    assert!(Http::to(&directory).await.is_none(), "it listens");
    directory.start_again().await.expect("its port is free");
    let mut http = Http::to(&directory).await.expect("it listens");
    assert_eq!(http.look_up("u1").await, user("u1", "a@b.example", "de"));
    assert_eq!(directory.requests_for("u1"), 2);
}

#[tokio::test]
async fn servers_started_at_once_have_ports_and_folders_of_their_own() {
    let start = || redis(RedisOptions::default());
    let (one, two, three) = tokio::join!(start(), start(), start());
    let mut ports = [one.port(), two.port(), three.port()];
    ports.sort_unstable();
    assert!(ports[0] != ports[1] && ports[1] != ports[2], "{ports:?}");
    assert!(TcpListener::bind(("127.0.0.1", one.port())).is_err(), "no process listens");
}

/// The certificate of the integration tests.
fn certificate() -> RedisTls {
    let file = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/testdata");
        folder.join(name)
    };
    RedisTls { certificate: file("localhost.pem"), key: file("localhost.key"), authority: file("root.pem") }
}

#[tokio::test]
async fn a_replica_of_a_cluster_takes_the_slots_of_its_killed_primary() {
    for (password, tls) in [(None, None), (Some("pass word".to_owned()), Some(certificate()))] {
        let node = RedisOptions { password, tls, appendonly: true, ..RedisOptions::default() };
        let options = RedisClusterOptions { node, ..RedisClusterOptions::default() };
        let mut cluster = RedisCluster::start(options).await.expect("a private Cluster starts");
        let before = cluster.primary_of("a").await.expect("it responds").expect("every slot has a node");
        assert!(before < 3, "the first nodes are the primaries");
        cluster.nodes[before].ask::<()>(&["SET", "a", "7"]).await.expect("the slot is its own");
        wait_for("the replica has the key", BOUND, async || {
            let replica = &cluster.nodes[before + 3];
            let keys: i64 = replica.ask(&["DBSIZE"]).await.expect("it responds");
            (keys == 1).then_some(())
        })
        .await;
        cluster.nodes[before].kill().await;
        let after = wait_for("another node has the slot", BOUND, async || {
            cluster.primary_of("a").await.ok().flatten().filter(|now| *now != before)
        })
        .await;
        assert_eq!(after, before + 3);
        assert_eq!(cluster.nodes[after].ask::<String>(&["GET", "a"]).await.expect("it responds"), "7");
        cluster.nodes[before].start_again().await.expect("it starts again");
        cluster.complete(3).await.expect("every primary has its replica again");
    }
}

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_killed_primary() {
    for (password, tls) in [(None, None), (Some("servers".to_owned()), Some(certificate()))] {
        let sentinel_password = password.as_ref().map(|_| "sentinels".to_owned());
        let server = RedisOptions { password, tls, appendonly: true, ..RedisOptions::default() };
        let options = SentinelOptions { server, sentinel_password, ..SentinelOptions::default() };
        let mut group = SentinelGroup::start(options).await.expect("a private group starts");
        assert_eq!(group.primary().await.expect("they respond"), 0);
        group.servers[0].kill().await;
        let primary = wait_for("another server is the primary", BOUND, async || {
            group.primary().await.ok().filter(|primary| *primary != 0)
        })
        .await;
        wait_for("it takes writes", BOUND, async || {
            group.servers[primary].ask::<()>(&["SET", "a", "7"]).await.ok()
        })
        .await;
        group.servers[0].start_again().await.expect("it starts again");
        group.replicated().await.expect("it is a replica");
    }
}
