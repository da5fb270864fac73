//! The three states of the service: the command, the API and the console say the same word, with the cause.

use std::time::Duration;

use harness::{Finished, Service, ServiceBuilder, wait_for};
use serde_json::Value;

use crate::api::{OPERATOR, TokensFile, read, with_api};
use crate::console::Browser;
use crate::world::*;

/// The longest time until a failure is shown: the window of a minute, and an interval of reports.
const SHOWN_WITHIN: Duration = Duration::from_secs(90);

fn with_console(service: ServiceBuilder, tokens: &TokensFile) -> ServiceBuilder {
    with_api(service, tokens).env("NOTIFICATION_CONSOLE", "on")
}

async fn status(world: &World, arguments: &[&str]) -> Finished {
    world.service().arguments(["status"].into_iter().chain(arguments.iter().copied())).run().await
}

/// Waits until `notification status` ends with this exit code, and returns its document.
async fn state(world: &World, code: i32) -> Value {
    wait_for(&format!("status exits with {code}"), SHOWN_WITHIN, async || {
        let found = status(world, &["--json"]).await;
        let document = serde_json::from_str(&found.stdout).unwrap_or_else(|_| panic!("{found:?}"));
        (found.code == Some(code)).then_some(document)
    })
    .await
}

/// The word of the API and the page Overview.
async fn elsewhere(service: &Service) -> (Value, String) {
    let document = read(service, OPERATOR, "/v1/status").await.json();
    let mut browser = Browser::default();
    browser.sign_in(&service.api_addr(), OPERATOR).await;
    let page = browser.get(&service.api_addr(), "/console/").await.body;
    (document["state"].clone(), page)
}

async fn redis(world: &World, words: &[&str]) {
    let mut redis = world.redis().await;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).exec_async(&mut redis).await.expect("Redis carries it out");
}

#[tokio::test]
async fn a_channel_whose_attempts_all_fail_is_failing_everywhere_until_its_cause_is_gone() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_console(world.service(), &tokens).start().await;
    assert_eq!(state(&world, 0).await["state"], "well");
    redis(&world, &["SET", MAIL, "a string"]).await;
    world.send(0..20).await;
    let failing = state(&world, 3).await;
    let finding = &failing["findings"][0];
    assert_eq!((&failing["state"], &finding["parts"][0]), (&"failing".into(), &"email".into()));
    assert_eq!(finding["cause"], "WRONGTYPE Operation against a key holding the wrong kind of value");
    assert_eq!(finding["runbook"], "docs/operations.md#notificationchannelfailing");
    let text = status(&world, &[]).await.stdout;
    assert!(text.starts_with("FAILING  The channel email fails: "), "{text}");
    assert!(text.contains("state   failing\n") && text.contains("failing, see above"), "{text}");
    let (word, page) = elsewhere(&service).await;
    assert_eq!(word, "failing");
    assert!(page.contains("Failing: email") && page.contains("none succeeded: WRONGTYPE"), "{page}");
    assert!(!page.contains("nothing fails") && !page.contains("user_script"), "{page}");
    let (code, _) = service.get("/readyz").await;
    assert_eq!(code, 200, "probes do not depend on it");

    redis(&world, &["DEL", MAIL]).await;
    world.settled(20).await;
    let well = state(&world, 0).await;
    assert_eq!((&well["state"], &well["findings"]), (&"well".into(), &serde_json::json!([])));
    let (word, page) = elsewhere(&service).await;
    assert!(word == "well" && page.contains("nothing is stuck and nothing fails"), "{page}");
}

#[tokio::test]
async fn a_full_redis_is_one_message_and_routes_name_it_as_what_they_wait_for() {
    let world = World::new().await;
    let _service = world.service().start().await;
    world.send(0..1).await;
    world.settled(1).await;
    redis(&world, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    // The routes are in PostgreSQL, and their leases do not fit in Redis any more.
    redis(&world, &["SET", MAIL, "a string"]).await;
    world.send(1..2).await;
    wait_for("a route fails", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE status = 'failed'").await > 0).then_some(())
    })
    .await;
    redis(&world, &["DEL", MAIL]).await;
    redis(&world, &["CONFIG", "SET", "maxmemory", "1"]).await;
    world.execute("UPDATE routes SET status = 'pending', next_attempt_at = now(), published_at = NULL, published_entry_id = '', updated_at = updated_at + interval '1 s'").await;
    let stuck = state(&world, 1).await;
    let findings = stuck["findings"].as_array().expect("a list");
    let full: Vec<&Value> = findings
        .iter()
        .filter(|finding| finding["state"] == "stuck")
        .map(|finding| &finding["sentence"])
        .collect();
    assert_eq!(full.len(), 1, "{stuck}");
    let sentence = full[0].as_str().expect("text");
    assert!(sentence.starts_with("Redis is full: push and email have been blocked"), "{stuck}");
    assert!(!stuck.to_string().contains("'.."), "{stuck}");
    let id =
        world.column("SELECT notification_id FROM routes WHERE status = 'pending' LIMIT 1").await.remove(0);
    let shown = world.service().arguments(["show", &id]).run().await.stdout;
    assert!(shown.contains("waits: Redis is full: "), "{shown}");
    redis(&world, &["CONFIG", "SET", "maxmemory", "0"]).await;
    world.settled(2).await;
}

#[tokio::test]
async fn a_locked_row_is_named_with_the_session_that_holds_it() {
    let world = World::new().await;
    let _service = world.service().start().await;
    redis(&world, &["SET", MAIL, "a string"]).await;
    world.send(0..1).await;
    world.accepted(1).await;
    // The role of the service does not see since when a session of a superuser has its transaction.
    let dsn = world.database.dsn().replace("?search_path=", "?options=-csearch_path%3D");
    let (operator, connection) =
        tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.expect("PostgreSQL is there");
    tokio::spawn(async { drop(connection.await) });
    operator.batch_execute("SET application_name = 'psql'").await.expect("PostgreSQL is there");
    let pid: i32 =
        operator.query_one("SELECT pg_backend_pid()", &[]).await.expect("PostgreSQL is there").get(0);
    operator
        .batch_execute("BEGIN; SELECT 1 FROM routes WHERE channel = 'email' FOR UPDATE")
        .await
        .expect("the rows are free");
    redis(&world, &["DEL", MAIL]).await;
    let named = format!("another transaction holds their rows (pid {pid}, psql, since 2");
    let document = wait_for("the session is named", SHOWN_WITHIN, async || {
        let found = status(&world, &["--json"]).await;
        // An attempt that failed just before the stream was there again is deferred, too.
        found.stdout.contains(&named).then(|| serde_json::from_str::<Value>(&found.stdout).expect("JSON"))
    })
    .await;
    let deferred = &document["replicas"][0]["workers"]["email"]["deferred_completions"];
    assert_eq!(
        (&deferred["held_by"]["pid"], &deferred["completions"]),
        (&pid.into(), &2.into()),
        "{document}"
    );
    let id = deferred["notification_id"].as_str().expect("an id");
    let shown = world.service().arguments(["show", id]).run().await.stdout;
    // The attempt may have failed before the stream was there again.
    let is_published = document.to_string().contains("are published, but another transaction");
    let what = if is_published { "in the outbound stream" } else { "the attempt (1 of 7) failed" };
    let waits = format!("{what}, but another transaction holds its row (pid {pid}, psql, since 2");
    assert!(shown.contains(&waits), "{shown}");
    let text = status(&world, &[]).await.stdout;
    assert!(text.contains(&format!("list: notification show {id}\n")), "{text}");
    operator.batch_execute("ROLLBACK").await.expect("PostgreSQL is there");
    world.settled(1).await;
}

#[tokio::test]
async fn a_replica_that_was_killed_or_stopped_leads_nothing() {
    let world = World::new().await;
    let start = async |name: &str| world.service().env("NOTIFICATION_REPLICA_ID", name).start().await;
    let killed = start("a").await;
    wait_for("it leads", BOUND, async || leads(&killed).await.then_some(())).await;
    let mut other = start("b").await;
    killed.kill().await;
    let leading = async || {
        let document: Value = serde_json::from_str(&status(&world, &["--json"]).await.stdout).expect("JSON");
        let replicas = document["replicas"].as_array().expect("a list").clone();
        let leads = |of: &&Value| of["leader_of"].as_array().expect("a list").contains(&"intake".into());
        let names = replicas.iter().filter(leads).map(|replica| replica["replica"].to_string());
        (document["leader"]["replica"].clone(), names.collect::<Vec<_>>())
    };
    wait_for("the other leads, and it alone", BOUND, async || {
        let (leader, names) = leading().await;
        assert!(names.len() <= 1, "{names:?}");
        (leader == "b" && names == ["\"b\""]).then_some(())
    })
    .await;
    other.signal("TERM");
    other.wait_exit(BOUND).await;
    let text = status(&world, &[]).await.stdout;
    let row = text.lines().find(|line| line.trim_start().starts_with("b ")).expect("a row");
    assert!(row.contains("ago (stopped)") && !row.contains("intake"), "{text}");
}

#[test]
fn every_section_to_which_a_finding_leads_is_a_heading_of_the_runbook() {
    for section in domain::query::RUNBOOK_SECTIONS {
        let (page, wanted) = section.split_once('#').expect("a page and a section");
        let text = crate::docs::read(page);
        let mut headings = text.lines().filter(|line| line.starts_with('#'));
        let is_there =
            headings.any(|line| crate::docs::anchor(line.trim_start_matches('#').trim()) == wanted);
        assert!(is_there, "{section}");
    }
}
