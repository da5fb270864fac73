//! The user directory in the service's own schema: the commands that manage it, and the service that uses it.

use std::io::Write;
use std::path::{Path, PathBuf};

use harness::{Finished, ServiceBuilder, TestDatabase, turn_ready, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{TokensFile, body, is, with_api};
use crate::world::*;

/// The maximum memory of an import, in bytes: its batch, twice, and a debug build with its runtime.
const MAX_IMPORT_BYTES: u64 = 96 << 20;

/// A folder with files to import, and the database to import into.
struct Files {
    folder: TempDir,
    dsn: String,
}

impl Files {
    fn new(database: &TestDatabase) -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), dsn: database.dsn() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("it can be written");
        path
    }

    fn users(&self, arguments: &[&str]) -> ServiceBuilder {
        ServiceBuilder::default()
            .arguments(["users"].iter().chain(arguments).copied())
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", &self.dsn)
    }

    async fn run(&self, arguments: &[&str]) -> Finished {
        self.users(arguments).run().await
    }

    async fn import(&self, name: &str, content: impl AsRef<[u8]>) -> Finished {
        let path = self.write(name, content);
        self.run(&["import", text(&path)]).await
    }

    /// Line, reason and text of rejected lines; `None` if there is no such file.
    fn refused(&self, name: &str) -> Option<Vec<Value>> {
        let refused = std::fs::read_to_string(self.path(&format!("{name}.refused.jsonl"))).ok()?;
        Some(refused.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Code and output of a command that prints no error.
fn fine(finished: &Finished) -> &str {
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{finished:?}");
    &finished.stdout
}

/// A service whose users are in its schema. It has no external user service.
fn service(world: &World) -> ServiceBuilder {
    world.service().env("NOTIFICATION_USER_DIRECTORY", "state").env("NOTIFICATION_USER_SERVICE_BASE_URL", "")
}

async fn send(world: &World, user_ids: &[&str], n: u32) {
    world.add_draft(turn_ready(user_ids.iter().copied().map(str::to_owned), &key(n), n)).await;
}

/// The resulting routes: channel, recipient, status, address and language.
async fn routes(world: &World) -> Vec<String> {
    let sql =
        "SELECT concat_ws(' ', route_id, status, resolved_email, resolved_locale, last_error_classification)
        FROM routes ORDER BY route_id COLLATE \"C\"";
    world.column(sql).await.iter().map(|route| route.trim_end().to_owned()).collect()
}

#[tokio::test]
async fn an_import_takes_what_it_can_and_writes_down_the_rest() {
    let database = TestDatabase::empty().await;
    let files = Files::new(&database);
    let content = "\u{feff}{\"user_id\":\"u-1\",\"email\":\"one@example.com\"}\r\nnonsense\r\n\r\n\
        {\"user_id\":\"u-2\",\"email\":7}\r\n{\"user_id\":\"u-1\",\"email\":\"new@example.com\",\"plan\":1.50}\r\n";
    let finished = files.import("users.jsonl", content).await;
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (Some(1), "imported 2, refused 2\n"),
        "{finished:?}"
    );
    assert!(finished.stderr.starts_with("error: 2 records were refused: see "), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "no progress without a terminal");
    let refused = files.refused("users.jsonl").expect("it is written");
    let lines: Vec<_> = refused.iter().map(|one| (one["line"].as_u64(), one["text"].as_str())).collect();
    assert_eq!(lines, [(Some(2), Some("nonsense")), (Some(4), Some("{\"user_id\":\"u-2\",\"email\":7}"))]);
    assert_eq!(refused[1]["reason"], "its email is no string");

    let document = "{\"plan\": 1.50, \"email\": \"new@example.com\"}";
    assert_eq!(fine(&files.run(&["get", "u-1"]).await), format!("{document}\n"));
    let again = files.import("users.jsonl", "{\"user_id\":\"u-1\"}").await;
    assert_eq!(fine(&again), "imported 1, refused 0\n");
    assert_eq!(files.refused("users.jsonl"), None, "what an earlier import refused");
    assert_eq!(fine(&files.run(&["get", "u-1"]).await), "{}\n");
}

#[tokio::test]
async fn a_csv_file_of_windows_with_quotes_is_imported_by_its_columns() {
    let files = Files::new(&TestDatabase::new().await);
    let content = "\u{feff}user_id,email,preferred_language,note\r\nu-1,ada@example.com,fr,\"a, \"\"b\"\"\r\nc\"\r\nu-2,x\r\nu-3,,,\r\n";
    let path = files.write("users.CSV", content);
    let finished = files.run(&["import", text(&path), "--json"]).await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), "{\"imported\":2,\"refused\":1}\n"));
    let reason = "it has 2 fields, and the header has 4";
    assert_eq!(
        files.refused("users.CSV").expect("it is written"),
        [json!({"line": 4, "reason": reason, "text": "u-2,x"})]
    );
    let shown = files.run(&["get", "u-1", "--json"]).await;
    let shown: Value = serde_json::from_str(fine(&shown)).expect("JSON");
    let expected = json!({"email": "ada@example.com", "preferred_language": "fr", "note": "a, \"b\"\r\nc"});
    assert_eq!((&shown["document"], &shown["user_id"]), (&expected, &json!("u-1")));
}

#[tokio::test]
async fn a_file_of_another_kind_is_exit_code_2_before_anything_is_contacted() {
    let mut files = Files::new(&TestDatabase::empty().await);
    files.dsn = "postgres://me@127.0.0.1:1/nowhere".to_owned();
    for (name, content, reason) in [
        ("users.json", "", "its name must end with .jsonl or .csv"),
        ("jsonl", "", "its name must end with .jsonl or .csv"),
        ("users.csv", "id,email\n", "its header has no column user_id"),
        ("users.csv", "", "it has no header"),
    ] {
        let finished = files.import(name, content).await;
        assert!(finished.code == Some(2) && finished.stderr.contains(reason), "{finished:?}");
    }
    let absent = files.run(&["import", text(&files.path("absent.csv"))]).await;
    assert!(absent.code == Some(1) && absent.stderr.contains("absent.csv could not be read"), "{absent:?}");
    for arguments in [&[][..], &["import"], &["get"], &["delete"], &["list", "u-1"]] {
        assert_eq!(files.run(arguments).await.code, Some(2), "{arguments:?}");
    }
}

#[tokio::test]
async fn users_are_listed_by_their_bytes_and_deleted_once() {
    let files = Files::new(&TestDatabase::new().await);
    let ids = (0..1_100).map(|n| format!("{{\"user_id\":\"n-{n:04}\"}}\n")).collect::<String>();
    let content =
        ids + "{\"user_id\":\"Ü\\n\"}\n{\"user_id\":\"Z\"}\n{\"user_id\":\"a%\"}\n{\"user_id\":\"ab\"}";
    assert_eq!(fine(&files.import("users.jsonl", content).await), "imported 1104, refused 0\n");
    let all = files.run(&["list"]).await;
    let listed: Vec<&str> = fine(&all).lines().collect();
    assert_eq!((listed.len(), &listed[..4], listed[1103]), (1104, &["Z", "a%", "ab", "n-0000"][..], "Ü\\n"));
    assert_eq!(fine(&files.run(&["list", "--prefix", "a%", "--json"]).await), "{\"user_id\":\"a%\"}\n");
    assert_eq!(fine(&files.run(&["list", "--limit", "2"]).await), "Z\na%\n");
    let many = files.run(&["list", "--prefix", "n-", "--limit", "1001"]).await;
    assert_eq!((fine(&many).lines().count(), fine(&many).lines().last()), (1_001, Some("n-1000")));
    assert_eq!(fine(&files.run(&["delete", "a%"]).await), "the user a% is deleted\n");
    let long = "x".repeat(1_019);
    for missing in
        [["get", "a%"], ["delete", "a%"], ["delete", &long], ["get", &long], ["list", "--prefix=a%"]]
    {
        let finished = files.run(&missing).await;
        assert!(finished.code == Some(1) && finished.stderr.contains("there is no user"), "{finished:?}");
        assert_eq!(finished.stdout, "");
    }
    assert_eq!(fine(&files.run(&["delete", "Z", "--json"]).await), "{\"deleted\":true,\"user_id\":\"Z\"}\n");
}

#[tokio::test]
async fn an_import_keeps_a_bounded_part_of_a_file_in_memory() {
    let database = TestDatabase::new().await;
    let files = Files::new(&database);
    let path = files.path("users.csv");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("it can be made"));
    let (rows, junk) = (30_000, "x".repeat(1_000));
    writeln!(file, "user_id,email,note").expect("it is written");
    for n in 0..rows {
        match n % 1_000 {
            // A line as large as the file would otherwise be, a row that is too short, a quote that is not
            // closed.
            7 if n < 1_000 => writeln!(file, "u-{n},{}", junk.repeat(128_000)),
            8 => writeln!(file, "u-{n}"),
            9 if n < 10_000 => writeln!(file, "u-{n},\"a,b"),
            _ => writeln!(file, "u-{n},u-{n}@example.com,{}", &junk[..n % 500]),
        }
        .expect("it is written");
    }
    drop(file);
    let mut import = files.users(&["import", text(&path)]).spawn();
    let mut most = 0;
    wait_for("the import ends", BOUND, async || {
        most = import.peak_memory().unwrap_or(0).max(most);
        import.has_ended().then_some(())
    })
    .await;
    assert!(most > 0 && most < MAX_IMPORT_BYTES, "{most} bytes");
    import.wait_exit(BOUND).await;
    let output = import.output().join("\n");
    // Ten quotes that are not closed within 256 KiB of each other: the first of two opens a row that the
    // second ends.
    assert!(output.contains("imported ") && output.contains(", refused "), "{output}");
    let stored: i64 =
        database.client().await.query_one("SELECT count(*) FROM kv", &[]).await.expect("counted").get(0);
    let refused = files.refused("users.csv").expect("it is written");
    assert!(output.contains(&format!("imported {stored}, refused {}", refused.len())), "{output}");
    assert!(refused.iter().all(|one| one["text"].as_str().is_some_and(|text| text.len() <= 256 * 1024 + 3)));
    let long = refused.iter().find(|one| one["line"] == 9).expect("the long line is refused");
    assert_eq!(long["reason"], "it is longer than 262144 bytes");
}

#[tokio::test]
async fn an_import_without_postgresql_says_how_far_it_came_and_may_be_run_again() {
    let mut world = World::with_own_postgres().await;
    let files = Files::new(&world.database);
    let path = files.path("users.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("there is mkfifo");
    assert!(made.success());
    let mut import = files.users(&["import", text(&path)]).spawn();
    let lines = |range: std::ops::Range<u32>| {
        range.map(|n| format!("{{\"user_id\":\"u-{n}\"}}\n")).collect::<String>()
    };
    let mut pipe = tokio::fs::OpenOptions::new().write(true).open(&path).await.expect("the import reads it");
    let write = async |pipe: &mut tokio::fs::File, text: String| {
        use tokio::io::AsyncWriteExt;
        // Rejected once the import has ended.
        drop(pipe.write_all(text.as_bytes()).await);
        drop(pipe.flush().await);
    };
    write(&mut pipe, lines(0..1_000)).await;
    wait_for("a batch is stored", BOUND, async || {
        (world.number("SELECT count(*) FROM kv").await == 1_000).then_some(())
    })
    .await;
    world.postgres.as_mut().expect("it is the test's own").kill().await;
    write(&mut pipe, lines(1_000..3_000)).await;
    drop(pipe);
    assert_eq!(import.wait_exit(BOUND).await.code(), Some(1));
    let output = import.output().join("\n");
    assert!(output.contains("is imported in part: 1000 users are stored and 0 records refused"), "{output}");
    assert!(output.contains("the records from line 1001 on are not stored"), "{output}");
    world.postgres.as_mut().expect("it is the test's own").start_again().await.expect("it starts");
    std::fs::remove_file(&path).expect("the pipe is there");
    assert_eq!(fine(&files.import("users.jsonl", lines(0..3_000)).await), "imported 3000, refused 0\n");
    assert_eq!(world.number("SELECT count(*) FROM kv").await, 3_000);
}

#[tokio::test]
async fn ctrl_c_ends_an_import_between_two_batches_and_it_says_how_many_are_stored() {
    use tokio::io::AsyncWriteExt;

    let world = World::new().await;
    let files = Files::new(&world.database);
    let path = files.path("users.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("there is mkfifo");
    assert!(made.success());
    let mut import = files.users(&["import", text(&path)]).spawn();
    let mut pipe = tokio::fs::OpenOptions::new().write(true).open(&path).await.expect("the import reads it");
    let users = |range: std::ops::Range<u32>| {
        range.map(|n| format!("{{\"user_id\":\"u-{n}\"}}\n")).collect::<String>()
    };
    pipe.write_all(users(0..1_000).as_bytes()).await.expect("it is read");
    wait_for("a batch is stored", BOUND, async || {
        (world.number("SELECT count(*) FROM kv").await == 1_000).then_some(())
    })
    .await;
    import.signal("INT");
    // The import looks for a signal when it begins a batch.
    let mut next = 1_000;
    wait_for("the import has ended", BOUND, async || {
        drop(pipe.write_all(users(next..next + 1).as_bytes()).await);
        drop(pipe.flush().await);
        next += 1;
        import.has_ended().then_some(())
    })
    .await;
    assert_eq!(import.wait_exit(BOUND).await.code(), Some(1));
    let (output, stored) = (import.output().join("\n"), world.number("SELECT count(*) FROM kv").await);
    assert!(output.contains(&format!("is imported in part: {stored} users are stored")), "{output}");
    assert!(output.contains("Run the command again"), "{output}");
    assert!(output.contains("stopped by a signal before line"), "{output}");
    assert_eq!(stored % 1_000, 0, "batches are whole");
}

#[tokio::test]
async fn one_user_is_added_by_flags_or_by_a_document_under_the_rules_of_an_import() {
    let files = Files::new(&TestDatabase::empty().await);
    let flags = ["add", "u-1", "--email", "ada@example.com", "--preferred-language", "en"];
    assert_eq!(fine(&files.run(&flags).await), "the user u-1 is stored\n");
    let stored = "{\"email\": \"ada@example.com\", \"preferred_language\": \"en\"}\n";
    assert_eq!(fine(&files.run(&["get", "u-1"]).await), stored);
    let document = r#"{"user_id": "u-1", "plan": 1.50}"#;
    let replaced = files.run(&["add", "--document", document, "--json"]).await;
    assert_eq!(fine(&replaced), "{\"stored\":true,\"user_id\":\"u-1\"}\n");
    assert_eq!(fine(&files.run(&["get", "u-1"]).await), "{\"plan\": 1.50}\n");
    let long = "x".repeat(1_019);
    for wrong in [
        &["add"][..],
        &["add", "u-1", "--document", "{}"],
        &["add", "--email", "ada@example.com"],
        &["add", "--document", "{}"],
        &["add", "--document", r#"{"user_id":"u-1","email":7}"#],
        &["add", &long],
    ] {
        let refused = files.run(wrong).await;
        assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{refused:?}");
    }
    assert_eq!(fine(&files.run(&["get", "u-1"]).await), "{\"plan\": 1.50}\n");
}

#[tokio::test]
async fn the_service_reaches_imported_users_and_no_others() {
    let world = World::new().await;
    let files = Files::new(&world.database);
    let content = r#"{"user_id":"u-1","email":"ada@example.com","preferred_language":"fr"}
        {"user_id":"u-2","preferred_language":"fr"}
        {"user_id":"u-4"}"#;
    fine(&files.import("users.jsonl", content).await);
    world
        .execute(
            r#"INSERT INTO kv (key, value) VALUES ('users/u-3', '{"email": 7, "preferred_language": "fr"}')"#,
        )
        .await;
    assert_eq!(fine(&files.run(&["delete", "u-4"]).await), "the user u-4 is deleted\n");
    let service = service(&world).env("NOTIFICATION_LOCALES", "en,fr").start().await;
    send(&world, &["u-1", "u-2", "u-3"], 0).await;
    send(&world, &["u-1", "u-4"], 1).await;
    world.settled(1).await;
    let expected = [
        "email:user:u-1 published ada@example.com fr",
        "email:user:u-2 skipped  fr no_email_address",
        "email:user:u-3 skipped  en no_email_address",
        "push:user:u-1 published  fr",
        "push:user:u-2 published  fr",
        "push:user:u-3 published  en",
    ];
    assert_eq!(routes(&world).await, expected);
    wait_for("the second intent is malformed", BOUND, async || {
        (world.column("SELECT failure_code FROM malformed_intents").await == ["recipient_not_found"])
            .then_some(())
    })
    .await;
    let warning = service
        .logged("documents of users are not as agreed; what cannot be used of them counts as none")
        .expect("it is logged");
    assert_eq!((&warning["users"], &warning["user_id"]), (&json!(1), &json!("u-3")));
    assert_eq!(world.directory.requests(), 0);
}

#[tokio::test]
async fn an_intent_by_http_reaches_an_imported_user_and_is_refused_for_an_unknown_one() {
    let world = World::new().await;
    let files = Files::new(&world.database);
    let content = r#"{"user_id":"u-1","email":"ada@example.com"}"#;
    fine(&files.import("users.jsonl", content).await);
    let tokens = TokensFile::new(&world);
    let service = with_api(service(&world), &tokens).start().await;
    let submit = |key: &'static str, user_id: &str| {
        let mut intent = body(54);
        intent["recipient_user_ids"] = json!([user_id]);
        let service = &service;
        async move { crate::api::send(service, key, &intent).await }
    };
    let accepted = submit("k-1", "u-1").await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    is(&submit("k-2", "u-2").await, 422, "malformed-intent", "recipient_not_found");
    world.settled(1).await;
    let expected = ["email:user:u-1 published ada@example.com en", "push:user:u-1 published  en"];
    assert_eq!(routes(&world).await, expected);
    assert_eq!(world.outbound().await.len(), 2);
    assert_eq!(world.directory.requests(), 0);
}

#[tokio::test]
async fn the_service_on_its_own_users_survives_a_restart_of_postgresql() {
    let mut world = World::with_own_postgres().await;
    let files = Files::new(&world.database);
    let users = (0..50)
        .flat_map(|n| [n, n + 100])
        .map(|n| format!("{{\"user_id\":\"u-{n}\",\"email\":\"u-{n}@example.com\"}}\n"));
    fine(&files.import("users.jsonl", users.collect::<String>()).await);
    let _service = service(&world).start().await;
    world.send(0..10).await;
    world.settled(10).await;
    world.postgres.as_mut().expect("it is the test's own").kill().await;
    world.send(10..30).await;
    world.postgres.as_mut().expect("it is the test's own").start_again().await.expect("it starts");
    world.settled(30).await;
    world.check(0..30).await;
}

#[tokio::test]
async fn users_that_the_role_may_not_read_end_the_start_with_1() {
    let world = World::new().await;
    world.execute("REVOKE SELECT ON kv FROM notificationservice").await;
    let mut on_state = service(&world).spawn();
    assert_eq!(on_state.wait_exit(BOUND).await.code(), Some(1));
    let output = on_state.output().join("\n");
    assert!(output.contains("permission denied: the role lacks SELECT on kv;"), "{output}");
    drop(world.service().start().await);
}
