//! The log of a start.

use std::time::Duration;

use harness::{
    Proxy, Redis, RedisOptions, ServiceBuilder, StandInDirectory, TestDatabase, request, wait_for,
};
use tokio::net::TcpListener;

use crate::console::Browser;
use crate::world::*;

const LARGE_VALUES: &str = "Redis takes values of more than 16 MiB, and a replica that reads one needs a multiple of \
     that in memory: CONFIG SET proto-max-bulk-len 16mb, and the same in redis.conf";

async fn world_with(arguments: &[&str]) -> World {
    let options = RedisOptions {
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..RedisOptions::default()
    };
    World {
        database: TestDatabase::new().await,
        redis: Redis::start(options).await.expect("a private Redis starts"),
        sentinels: None,
        cluster: None,
        directory: StandInDirectory::start().await.expect("a stand-in directory starts"),
        postgres: None,
    }
}

#[tokio::test]
async fn a_redis_that_takes_values_of_more_than_16_mib_is_warned_of_and_no_other() {
    for (arguments, expected) in [
        (&["--proto-max-bulk-len", "512mb"][..], Some(512 << 20)),
        (&["--proto-max-bulk-len", "16mb"], None),
        // The restrictions of a managed Redis.
        (&["--rename-command", "CONFIG", ""], None),
    ] {
        let world = world_with(arguments).await;
        let service = world.service().start().await;
        let warning = service.logged(LARGE_VALUES);
        assert_eq!(
            warning.map(|line| line["largest_value_bytes"].as_i64()),
            expected.map(Some),
            "{arguments:?}"
        );
    }
}

/// Over a hundred statements are checked at the start; sequentially they would take longer than one operation
/// may.
#[tokio::test]
async fn a_postgresql_that_is_far_away_is_served() {
    let world = World::new().await;
    let far = Proxy::start(world.database.port()).await;
    far.delay(Duration::from_millis(30));
    let _service = world.service_via(world.redis.port(), far.port()).start().await;
    world.send(0..1).await;
    world.settled(1).await;
}

#[tokio::test]
async fn a_check_that_takes_too_long_is_made_again() {
    let world = World::new().await;
    let slow = Proxy::start(world.database.port()).await;
    // Only the checks prepare this statement as long as no intent is malformed. The delay exceeds the limit
    // of an operation.
    let delayed = slow.delay_request(b"INSERT INTO malformed_intents", Duration::from_secs(4));
    let service = world.service_via(world.redis.port(), slow.port()).start().await;
    delayed.reached(BOUND).await;
    let waited = service.logged("waiting for a dependency").expect("it is logged");
    assert!(waited["error"].as_str().is_some_and(|error| error.contains("check the schema")), "{waited}");
}

#[tokio::test]
async fn a_redis_that_stands_still_while_a_start_claims_the_stream_is_asked_again() {
    let world = World::new().await;
    let slow = Proxy::start(world.redis.port()).await;
    let delayed = slow.delay_request(b"notification:installations:", Duration::from_secs(3));
    let service = world.service_via(slow.port(), world.database.port()).start().await;
    delayed.reached(BOUND).await;
    let waited = service.logged("waiting for a dependency").expect("it is logged");
    assert_eq!(waited["dependency"], "Redis", "{waited}");
}

#[tokio::test]
async fn a_table_that_another_transaction_has_locked_at_the_start_is_waited_for() {
    let world = World::new().await;
    let holder = world.database.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    let service = world.service().spawn();
    wait_for("the check is repeated", BOUND, async || service.logged("waiting for a dependency")).await;
    holder.batch_execute("COMMIT").await.expect("free again");
    wait_for("it is ready", BOUND, async || service.logged("the service is ready")).await;
}

#[tokio::test]
async fn the_name_of_a_replica_is_in_the_log_and_in_readyz() {
    let world = World::new().await;
    let named = world.service().env("NOTIFICATION_REPLICA_ID", "web-1").start().await;
    reads(&named).await;
    for message in ["the service is starting", "leadership won"] {
        assert_eq!(named.logged(message).expect("it is logged")["replica"], "web-1", "{message}");
    }
    assert_eq!(named.get("/readyz").await.1["replica"], "web-1");
    drop(named);

    let unnamed = world.service().start().await;
    let name = unnamed.get("/readyz").await.1["replica"].as_str().map(str::to_owned).expect("it has a name");
    let digits = name.rsplit('-').next().expect("a part");
    assert!(digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
}

#[tokio::test]
async fn dev_sends_traces_to_the_configured_endpoint_and_its_output_stays_readable() {
    let collector = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", collector.local_addr().expect("bound"));
    let mut dev = ServiceBuilder::default()
        .arguments(["dev"])
        .env("OTEL_TRACES_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .spawn();
    tokio::time::timeout(BOUND, collector.accept())
        .await
        .expect("traces are sent")
        .expect("it can be accepted");
    wait_for("the sample comes out", BOUND, async || {
        dev.output()
            .iter()
            .any(|line| line.starts_with("Users that were not imported do not exist"))
            .then_some(())
    })
    .await;
    let output = dev.output();
    assert!(!output.iter().any(|line| line.starts_with('{')), "{output:?}");
    assert!(!output.join("\n").contains(LARGE_VALUES), "{output:?}");
    let command = output.iter().find(|line| line.contains("/v1/intents -H")).expect("a command for curl");
    let addr =
        command.split_once("http://").and_then(|(_, rest)| rest.split('/').next()).expect("an address");
    let bearer = command
        .split('\'')
        .nth(1)
        .and_then(|header| header.strip_prefix("Authorization: "))
        .expect("a token");
    let intent = r#"{"notification_type":"game.turn.ready","audience_kind":"user","recipient_user_ids":["u-1"],
        "occurred_at_ms":1775121700000,"payload":{"game_id":"game-123","game_name":"Nova","turn_number":56}}"#;
    let headers = [
        ("Authorization", bearer),
        ("Idempotency-Key", "game-123:turn-56"),
        ("Content-Type", "application/json"),
    ];
    let accepted = request(addr, "POST", "/v1/intents", &headers, intent).await.expect("the API answers");
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    import_and_send_as_the_readme_says(&dev.output());
    wait_for("the mail to the imported user comes out", BOUND, async || {
        dev.output().iter().any(|line| line.contains("\"ada@example.com\"")).then_some(())
    })
    .await;
    insert_into_the_outbox(&dev.output());
    wait_for("the event of the outbox comes out", BOUND, async || {
        dev.output()
            .iter()
            .any(|line| line.contains(r#""turn_number":57"#) && line.contains("payload_json"))
            .then_some(())
    })
    .await;
    look_at_the_console(&dev.output()).await;
    drop(collector);
    dev.signal("INT");
    assert_eq!(dev.wait_exit(BOUND).await.code(), Some(0), "{:?}", dev.output());
}

/// Runs the first commands of README.md, with the addresses that `dev` printed.
fn import_and_send_as_the_readme_says(output: &[String]) {
    let readme = include_str!("../../../../README.md");
    let section = readme.split("## A first notification").nth(1).expect("the section");
    let commands = section.split("```").nth(1).expect("commands");
    assert!(commands.contains("users import") && commands.contains("notification send"), "{commands}");
    let addresses = output.iter().find(|line| line.trim().starts_with("export ")).expect("the addresses");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binaries = harness::service_binary().parent().expect("it is in a folder").display().to_string();
    let script = format!("set -e\nPATH={binaries}:$PATH\n{addresses}\n{commands}");
    let done = std::process::Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output();
    let done = done.expect("there is a shell");
    assert!(done.status.success(), "{script}: {done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("imported 1, refused 0"), "{done:?}");
    for line in commands.lines().filter(|line| line.contains("--") || line.contains("users import")) {
        let printed = |line: &str| line.trim().trim_start_matches("notification ").to_owned();
        assert!(output.iter().any(|out| out.ends_with(&printed(line))), "`dev` does not print {line}");
    }
}

/// Signs in at the address and with the token that `dev` prints, and finds an item of each kind.
async fn look_at_the_console(output: &[String]) {
    let lines: Vec<&str> = output.iter().map(|line| line.trim()).collect();
    let at = lines.iter().position(|line| line.ends_with("/console/")).expect("the address of the console");
    let addr = lines[at].trim_start_matches("http://").trim_end_matches("/console/");
    let mut browser = Browser::default();
    let answer = browser.sign_in(addr, lines[at + 1]).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    let page = browser.get(addr, "/console/").await.body;
    let kinds = [
        "/console/dead-letters?classification=gateway_stream_publish_failed",
        "/console/dead-letters?classification=mail_stream_publish_failed",
        "/console/malformed?code=",
    ];
    for expected in kinds {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert_eq!(page.matches("<dt>Failing</dt><dd>1</dd>").count(), 2, "{page}");
}

/// Runs the insert command that `dev` printed.
fn insert_into_the_outbox(output: &[String]) {
    let begin = output.iter().position(|line| line.contains("psql postgres://")).expect("a command for psql");
    let command = output[begin..begin + 2].join("\n");
    let done = std::process::Command::new("sh").args(["-c", &command]).output().expect("there is a shell");
    assert!(done.status.success(), "{command}: {done:?}");
}
