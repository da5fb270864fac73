//! A million users are imported from a Windows file with bad lines among them, within limited memory.

use std::io::Write;
use std::time::{Duration, Instant};

use harness::{ServiceBuilder, TestDatabase, wait_for};

/// The number of lines, unless the variable sets another, for a short run that only shows that the test
/// works.
const LINES: u32 = 1_000_000;
const LINES_VARIABLE: &str = "TEST_LARGE_IMPORT_LINES";
/// The time limit of an import.
const IMPORT_BOUND: Duration = Duration::from_secs(1_200);
/// The maximum memory that it may ever use, in bytes.
const MAX_MEMORY_BYTES: u64 = 64 << 20;
/// The lines in a group: one is rejected, one is empty, and one repeats the user of the line before it.
const EVERY: u32 = 1_000;

/// A line without its end.
fn line(n: u32) -> String {
    match n % EVERY {
        7 if n.is_multiple_of(2) => format!("{{\"user_id\":\"u-{n}\",\"email\":7}}"),
        7 => format!("{{\"user_id\":\"u-{n}\""),
        8 => String::new(),
        9 => user(n + 1),
        _ => user(n),
    }
}

fn user(n: u32) -> String {
    format!(
        "{{\"user_id\":\"u-{n}\",\"email\":\"u-{n}@example.com\",\"preferred_language\":\"fr\",\"plan\":1.50}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_lines_of_windows_with_bad_ones_among_them_are_imported_twice_with_the_same_end() {
    let lines = std::env::var(LINES_VARIABLE);
    let lines: u32 = lines.map_or(LINES, |text| text.parse().expect("a number"));
    assert!(lines.is_multiple_of(2 * EVERY), "whole groups of lines");
    let database = TestDatabase::new().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("users.jsonl");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("it can be made"));
    file.write_all("\u{feff}".as_bytes()).expect("it is written");
    for n in 0..lines {
        write!(file, "{}\r\n", line(n)).expect("it is written");
    }
    file.into_inner().expect("it is written");

    let client = database.client().await;
    // A repeated user counts each time that it is stored.
    let (groups, imported) = (lines / EVERY, lines - 2 * (lines / EVERY));
    for attempt in ["first", "second"] {
        let begun = Instant::now();
        let mut import = ServiceBuilder::default()
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", database.dsn())
            .arguments(["users", "import", path.to_str().expect("UTF-8")])
            .spawn();
        let mut peak = 0;
        wait_for("the import ends", IMPORT_BOUND, async || {
            peak = import.peak_memory().unwrap_or(0).max(peak);
            import.has_ended().then_some(())
        })
        .await;
        println!("{lines} lines, {attempt} import: {:.1?}, at most {} MiB", begun.elapsed(), peak >> 20);
        let status = import.wait_exit(IMPORT_BOUND).await;
        let output = import.output();
        assert_eq!(status.code(), Some(1), "some were refused: {output:?}");
        assert!(
            output.iter().any(|line| *line == format!("imported {imported}, refused {groups}")),
            "{output:?}"
        );
        assert!((1..MAX_MEMORY_BYTES).contains(&peak), "{peak} bytes");

        let refused =
            std::fs::read_to_string(folder.path().join("users.jsonl.refused.jsonl")).expect("it is written");
        let numbers = refused
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["line"].as_u64());
        let expected = (0..lines).filter(|n| n % EVERY == 7).map(|n| Some(u64::from(n) + 1));
        assert!(numbers.eq(expected), "each bad line by its number");
        let stored: i64 = client.query_one("SELECT count(*) FROM kv", &[]).await.expect("counted").get(0);
        assert_eq!(stored, i64::from(imported - groups));
        let sql = "SELECT value ->> 'email' FROM kv WHERE key = $1";
        let last: String =
            client.query_one(sql, &[&format!("users/u-{}", lines - 1)]).await.expect("stored").get(0);
        assert_eq!(last, format!("u-{}@example.com", lines - 1));
    }
}
