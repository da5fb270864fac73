//! The examples of docs/outbox.md, extracted from the page and run: each leads to exactly one notification.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::outbox::*;
use crate::world::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/outbox.md");
/// The folder that pins the packages of the examples.
const PINNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/outbox-examples");
/// The folder in which they are installed.
const INSTALLED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/outbox-examples");

/// The code blocks of the page in this language, in their order.
fn examples(language: &str) -> Vec<String> {
    let page = fs::read_to_string(PAGE).expect("docs/outbox.md");
    let begin = format!("```{language}\n");
    let blocks = page.split(&begin).skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.map(str::to_owned).collect()
}

/// Runs a program and returns its output; panics with the output if it fails.
fn run(command: &mut Command, install: &str) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output =
        output.unwrap_or_else(|error| panic!("{program} cannot be run ({error}): install {install}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} failed with {}:\n{out}\n{err}", output.status);
    out
}

/// The interpreter of a virtual environment that has the packages, which the first call installs.
pub(crate) fn python() -> PathBuf {
    static INSTALLED_ONCE: LazyLock<PathBuf> = LazyLock::new(install_python);
    INSTALLED_ONCE.clone()
}

fn install_python() -> PathBuf {
    let environment = Path::new(INSTALLED).join("python");
    let python = environment.join("bin/python");
    if !python.is_file() {
        let mut make = Command::new("python3");
        run(make.args(["-m", "venv"]).arg(&environment), "python3 and python3-venv");
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]);
    run(install.arg(Path::new(PINNED).join("requirements.txt")), "python3-venv");
    python
}

/// A folder whose `node_modules` has the packages.
fn node_folder() -> PathBuf {
    let folder = Path::new(INSTALLED).join("node");
    fs::create_dir_all(&folder).expect("the folder can be made");
    let lock = |folder: &Path| fs::read(folder.join("package-lock.json")).ok();
    if lock(&folder) != lock(Path::new(PINNED)) || !folder.join("node_modules/pg").is_dir() {
        for file in ["package.json", ".npmrc"] {
            fs::copy(Path::new(PINNED).join(file), folder.join(file)).expect("it can be copied");
        }
        let lock = "package-lock.json";
        fs::copy(Path::new(PINNED).join(lock), folder.join(lock)).expect("it can be copied");
        run(Command::new("npm").arg("ci").current_dir(&folder), "nodejs and npm");
    }
    folder
}

/// An example in a file of this name.
fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    fs::create_dir_all(folder).expect("the folder can be made");
    let path = folder.join(name);
    fs::write(&path, text).expect("it can be written");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_the_page_leads_to_exactly_one_notification() {
    let [sql, python_examples, node] = ["sql", "python", "js"].map(examples);
    assert_eq!((sql.len(), python_examples.len(), node.len()), (1, 2, 1), "the page has these examples");
    let outbox = Outbox::new().await;
    let _service = outbox.service_with_relay().start().await;
    outbox
        .execute(
            "CREATE TABLE games (game_id text PRIMARY KEY, turn_number integer NOT NULL);
             INSERT INTO games VALUES ('game-123', 53);
             GRANT ALL ON games TO notificationservice;
             ALTER ROLE notificationservice SET search_path = notification",
        )
        .await;
    let url = format!(
        "postgres://notificationservice@127.0.0.1:{}/{}",
        outbox.database.port(),
        outbox.database.name()
    );

    let folder = Path::new(INSTALLED).join("run");
    let script = file(&folder, "example.sql", &sql[0]);
    let mut psql = Command::new("psql");
    run(psql.args(["-v", "ON_ERROR_STOP=1", "-d", &url, "-f"]).arg(script), "postgresql-client");
    for (n, text) in (0..).zip(&python_examples) {
        let script = file(&folder, &format!("example_{n}.py"), text);
        run(Command::new(python()).arg(script).env("DATABASE_URL", &url), "python3 and python3-venv");
    }
    let script = file(&node_folder(), "example.mjs", &node[0]);
    run(Command::new("node").arg(script).env("DATABASE_URL", &url), "nodejs");

    outbox.world.settled(4).await;
    assert_eq!(outbox.text("SELECT turn_number::text FROM games").await, "57");
    let turns = "SELECT payload_json::json ->> 'turn_number' FROM records ORDER BY 1";
    assert_eq!(outbox.world.column(turns).await, ["54", "55", "56", "57"]);
    let recipients = "SELECT DISTINCT recipient_user_ids::text FROM records";
    assert_eq!(outbox.world.column(recipients).await, [r#"["u-1", "u-2"]"#]);
    assert_eq!(outbox.count("DELIVERED").await, 4);
}

#[tokio::test]
async fn the_statements_that_are_printed_make_a_table_that_a_relay_empties() {
    let outbox = Outbox { world: World::new().await, database: harness::TestDatabase::empty().await };
    let printed = outbox.command(&["outbox", "migrate", "--print", "--with-notify", "outbox"]).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    outbox.execute(&format!("SET ROLE notificationservice; {}", printed.stdout)).await;
    let _relay = outbox.relay().env("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", "outbox").start().await;
    outbox.insert(0..3).await;
    outbox.drained().await;
    outbox.check_stream(0..3).await;
}
