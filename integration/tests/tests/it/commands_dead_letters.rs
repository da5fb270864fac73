//! `notification dead-letters` run from a shell: concurrently with a service, concurrently with another
//! operator, killed and continued.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Finished, Service, ServiceBuilder, wait_for};
use serde_json::{Value, json};

use crate::dead_letters::*;
use crate::world::*;

/// A size that takes many transactions and little time: ten thousand routes.
const RECORDS: u32 = 5_000;
const ROUTES: i64 = 10_000;

fn command(world: &World, arguments: &[&str]) -> ServiceBuilder {
    let arguments = ["dead-letters"].into_iter().chain(arguments.iter().copied());
    ServiceBuilder::default()
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn())
        .env("USER", "ada")
        .arguments(arguments)
}

async fn run(world: &World, arguments: &[&str]) -> Finished {
    command(world, arguments).run().await
}

/// The JSON output of a command, one document per line.
fn lines(finished: &Finished) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    finished.stdout.lines().map(parse).collect()
}

/// The dead letters of a list.
fn letters(finished: &Finished) -> Vec<Value> {
    lines(finished)[0]["dead_letters"].as_array().expect("a list").clone()
}

/// The number of routes that operators' actions changed, in all.
async fn affected(world: &World) -> i64 {
    world.number("SELECT coalesce(sum(affected), 0)::bigint FROM operator_actions").await
}

async fn of_status(world: &World, status: &str) -> i64 {
    world.number(&format!("SELECT count(*) FROM routes WHERE status = '{status}'")).await
}

/// Waits until a command has changed something.
async fn at_work(world: &World) {
    wait_for("the command is at work", BOUND, async || (affected(world).await > 0).then_some(())).await;
}

/// Waits until no route is live, and checks that each that was replayed was published once.
async fn published_once(world: &World) {
    wait_for("no route is live", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL").await == 0)
            .then_some(())
    })
    .await;
    let outbound = world.outbound().await;
    assert!(outbound.values().all(|entries| entries.len() == 1), "a route was published twice");
    assert_eq!(i64::try_from(outbound.len()), Ok(affected(world).await), "each replayed route is published");
    world.check_tables().await;
}

#[tokio::test]
async fn ten_thousand_dead_letters_are_replayed_beside_a_service_and_each_is_published_once() {
    let world = World::new().await;
    insert_dead_letters(&world, RECORDS).await;
    let _service = world.service().start().await;
    let done = run(&world, &["replay", "--all", "--yes", "--json"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let report = lines(&done).remove(0);
    assert_eq!((&report["replayed"], &report["finished"]), (&json!(ROUTES), &json!(true)));
    published_once(&world).await;
    assert_eq!(of_status(&world, "published").await, ROUTES);
    let actions = world
        .column("SELECT DISTINCT concat_ws('|', action, request_id, split_part(actor, '@', 1)) FROM operator_actions")
        .await;
    let request_id = report["request_id"].as_str().expect("a text");
    assert_eq!(actions, [format!("replay_dead_letters|{request_id}|ada")]);
    let again = run(&world, &["replay", "--all"]).await;
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "there is no such dead letter\n"),
        "nothing is asked: {again:?}"
    );
}

#[tokio::test]
async fn two_operators_who_replay_at_once_replay_each_dead_letter_once() {
    let world = World::new().await;
    insert_dead_letters(&world, RECORDS).await;
    let arguments = ["replay", "--all", "--yes", "--no-wait", "--json"];
    let (one, other) = tokio::join!(run(&world, &arguments), run(&world, &arguments));
    let replayed = |finished: &Finished| lines(finished)[0]["replayed"].as_i64().expect("a number");
    assert_eq!((one.code, other.code), (Some(0), Some(0)), "{one:?} {other:?}");
    assert_eq!(replayed(&one) + replayed(&other), ROUTES);
    assert_eq!((affected(&world).await, of_status(&world, "pending").await), (ROUTES, ROUTES));
    world.check_tables().await;
}

#[tokio::test]
async fn a_replay_that_is_killed_in_the_middle_is_continued_by_the_same_command() {
    let world = World::new().await;
    insert_dead_letters(&world, RECORDS).await;
    let _service = world.service().start().await;
    let arguments = ["replay", "--all", "--yes", "--json"];
    let killed = command(&world, &arguments).spawn();
    at_work(&world).await;
    killed.kill().await;
    let before = affected(&world).await;
    assert!(before < ROUTES, "it was killed too late");
    let rest = run(&world, &arguments).await;
    assert_eq!(rest.code, Some(0), "{rest:?}");
    // A transaction of the killed command may have been committed after its end.
    let replayed = lines(&rest)[0]["replayed"].as_i64().expect("a number");
    assert!((1..=ROUTES - before).contains(&replayed), "{replayed} after {before}");
    assert_eq!(affected(&world).await, ROUTES);
    published_once(&world).await;
}

#[tokio::test]
async fn ctrl_c_ends_a_replay_after_its_transaction_and_it_says_how_to_continue() {
    let world = World::new().await;
    insert_dead_letters(&world, RECORDS).await;
    let mut stopped = command(&world, &["replay", "--channel", "push", "--yes", "--no-wait"]).spawn();
    at_work(&world).await;
    stopped.signal("INT");
    let status = stopped.wait_exit(BOUND).await;
    let output = stopped.output();
    assert_eq!(status.code(), Some(1), "{output:?}");
    let done = affected(&world).await;
    assert!(
        output.iter().any(|line| line.starts_with(&format!("{done} dead letters are replayed"))),
        "{output:?}"
    );
    let rest = output.iter().find_map(|line| line.trim().strip_prefix("notification dead-letters "));
    let rest: Vec<&str> = rest.expect("it says how to continue").split_whitespace().collect();
    assert_eq!(&rest[..4], ["replay", "--channel", "push", "--until"]);
    // Routes that become dead letters meanwhile are not part of the same request.
    world.execute("UPDATE dead_letters SET created_at = now() + interval '1 s' WHERE route_id = 'push:user:u-1' AND notification_id = '1-0'").await;
    assert_eq!(&rest[rest.len() - 2..], ["--no-wait", "--yes"]);
    let rest = run(&world, &rest).await;
    assert_eq!(rest.code, Some(0), "{rest:?}");
    assert_eq!(affected(&world).await, ROUTES / 2 - 1);
    assert_eq!(of_status(&world, "dead_letter").await, ROUTES / 2 + 1);
}

#[tokio::test]
async fn retention_and_a_replay_at_once_leave_no_record_torn_and_no_replayed_route_unpublished() {
    let world = World::new().await;
    insert_dead_letters(&world, 2_000).await;
    // All of them are expired.
    let service =
        world.service().env("NOTIFICATION_IDEMPOTENCY_TTL", "1m").env("NOTIFICATION_RECORD_RETENTION", "1m");
    let service = service.env("NOTIFICATION_CLEANUP_INTERVAL", "1s").spawn();
    let done = run(&world, &["replay", "--all", "--yes", "--no-wait", "--json"]).await;
    let report = lines(&done).remove(0);
    assert_eq!(report["finished"], json!(true), "{done:?}");
    assert_eq!(report["replayed"].as_i64(), Some(affected(&world).await));
    published_once(&world).await;
    wait_for("retention has deleted everything", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await == 0).then_some(())
    })
    .await;
    assert_eq!(of_status(&world, "published").await, 0);
    drop(service);
}

#[tokio::test]
async fn a_plan_counts_by_channel_and_cause_and_changes_nothing() {
    let world = World::new().await;
    insert_dead_letters(&world, 20).await;
    world.execute("UPDATE dead_letters SET failure_classification = 'other' WHERE notification_id = '7-0' AND channel = 'push'").await;
    let dry = run(&world, &["replay", "--channel", "push", "--dry-run", "--json"]).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    let plan = lines(&dry).remove(0);
    let by = json!([
        {"channel": "push", "classification": "gateway_stream_publish_failed", "count": 19},
        {"channel": "push", "classification": "other", "count": 1},
    ]);
    assert_eq!((&plan["count"], &plan["by"], &plan["dry_run"]), (&json!(20), &by, &json!(true)));
    assert_eq!(plan["first"][0], json!("20-0/push:user:u-20"));
    let text = run(&world, &["replay", "--channel", "push", "--dry-run"]).await.stdout;
    assert!(text.contains("20 dead letters would be replayed") && text.contains("other"), "{text}");
    assert_eq!((affected(&world).await, of_status(&world, "dead_letter").await), (0, 40));
}

#[tokio::test]
async fn a_change_is_asked_for_on_a_terminal_and_refused_without_one() {
    let world = World::new().await;
    insert_dead_letters(&world, 2).await;
    let without = run(&world, &["replay", "--all"]).await;
    assert_eq!((without.code, affected(&world).await), (Some(2), 0), "{without:?}");
    assert!(
        without.stdout.contains("4 dead letters are to be replayed"),
        "the plan comes first: {without:?}"
    );
    for (answer, code, expected) in [("no", 1, 0), ("", 1, 0), ("y", 0, 4)] {
        // `script` gives the command a terminal.
        let line = format!("'{}' dead-letters replay --all", harness::service_binary().display());
        let mut script = tokio::process::Command::new("sh");
        let line =
            format!("printf '%s\\n' '{answer}' | script --quiet --return --command \"{line}\" /dev/null");
        script.args(["-c", &line]).env("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn());
        let output = script.output().await.expect("script is there: install bsdutils");
        assert_eq!(output.status.code(), Some(code), "{answer:?}: {output:?}");
        assert_eq!(affected(&world).await, expected, "{answer:?}");
    }
}

#[tokio::test]
async fn dead_letters_are_listed_in_pages_shown_whole_and_discarded_with_a_reason() {
    let world = World::new().await;
    insert_dead_letters(&world, 3).await;
    let page = run(&world, &["list", "--since", "2000-01-01T00:00:00Z", "--limit", "4", "--json"]).await;
    assert_eq!((page.code, letters(&page).len()), (Some(0), 4), "{page:?}");
    let next =
        page.stderr.trim().strip_prefix("next page: notification dead-letters ").expect("there are more");
    let last = run(&world, &next.split(' ').collect::<Vec<_>>()).await;
    let ids: BTreeSet<String> = [letters(&page), letters(&last)]
        .concat()
        .iter()
        .map(|letter| letter["id"].as_str().expect("a text").to_owned())
        .collect();
    assert_eq!((ids.len(), last.stderr.as_str()), (6, ""));

    let id = "2-0/push:user:u-2";
    let shown = run(&world, &["show", id, "--json"]).await;
    let shown = lines(&shown).remove(0);
    assert_eq!((&shown["id"], &shown["failure_message"]), (&json!(id), &json!("WRONGTYPE \u{1b}[31m")));
    let text = run(&world, &["show", id]).await.stdout;
    assert!(text.contains(r"WRONGTYPE \u{1b}[31m"), "what a terminal would act upon is escaped: {text:?}");
    for (missing, why) in
        [("9-0/push:user:u-9", "there is no route"), ("2-0/sms:user:u-2", "there is no route")]
    {
        let missing = run(&world, &["show", missing]).await;
        assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""), "{missing:?}");
        assert!(missing.stderr.contains(why), "{missing:?}");
    }

    let discard =
        ["discard", "--id", id, "--id", "9-0/push:user:u-9", "--reason", "it's over", "--yes", "--json"];
    let done = run(&world, &discard).await;
    assert_eq!(done.code, Some(1), "an unknown id is an error: {done:?}");
    let report = lines(&done).remove(0);
    assert_eq!((&report["discarded"], &report["unknown"]), (&json!(1), &json!(["9-0/push:user:u-9"])));
    let discarded = run(&world, &["list", "--discarded", "--json"]).await;
    let discarded = letters(&discarded).remove(0);
    assert_eq!((&discarded["id"], &discarded["discard_reason"]), (&json!(id), &json!("it's over")));
    assert!(discarded["discarded_by"].as_str().is_some_and(|by| by.starts_with("ada@")), "{discarded}");
    assert_eq!(letters(&run(&world, &["list", "--json"]).await).len(), 5);
    // It can still be replayed by its id, and is then not a dead letter.
    let replayed = run(&world, &["replay", "--id", id, "--yes"]).await;
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    let shown = run(&world, &["show", id]).await;
    assert!(shown.stderr.contains("is no dead letter: it is pending"), "{shown:?}");
    let again = run(&world, &["replay", "--id", id, "--yes", "--json"]).await;
    assert_eq!(again.code, Some(1), "no named dead letter is replayed: {again:?}");
    let report = lines(&again).remove(0);
    let expected = (&json!(0), &json!(1), &json!(null));
    assert_eq!((&report["replayed"], &report["unchanged"], &report["request_id"]), expected);
}

#[tokio::test]
async fn what_another_transaction_has_locked_is_reported_and_the_rest_is_replayed() {
    let world = World::new().await;
    insert_dead_letters(&world, 10).await;
    let editor = world.database.client().await;
    editor
        .batch_execute("BEGIN; UPDATE dead_letters SET recovery_hint = 'x' WHERE notification_id = '5-0'")
        .await
        .expect("it is right");
    let done = run(&world, &["replay", "--all", "--yes"]).await;
    assert_eq!((done.code, affected(&world).await), (Some(1), 18), "{done:?}");
    assert!(
        done.stderr.contains("2 dead letters are not replayed: other transactions have locked them"),
        "{done:?}"
    );
    editor.batch_execute("ROLLBACK").await.expect("it is open");
    let rest = run(&world, &["replay", "--all", "--yes"]).await;
    assert_eq!((rest.code, affected(&world).await), (Some(0), 20), "{rest:?}");
}

#[tokio::test]
async fn dead_letters_that_a_replica_wrote_whose_clock_is_ahead_are_replayed_too() {
    let world = World::new().await;
    insert_dead_letters(&world, 10).await;
    world.execute("UPDATE dead_letters SET created_at = now() + interval '1 hour'").await;
    let done = run(&world, &["replay", "--all", "--yes"]).await;
    assert_eq!((done.code, affected(&world).await), (Some(0), 20), "{done:?}");
}

#[tokio::test]
async fn a_database_that_is_unavailable_or_has_no_tables_is_an_error_that_says_so() {
    let builder = |dsn: &str| ServiceBuilder::default().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", dsn);
    let replay = ["dead-letters", "replay", "--all", "--yes"];
    let refused = builder("postgres://me:s3cret@127.0.0.1:1/x").arguments(replay).run().await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    assert!(!refused.stderr.contains("s3cret"), "{refused:?}");
    let empty = harness::TestDatabase::empty().await;
    let empty = builder(&empty.dsn()).arguments(replay).run().await;
    assert!(empty.code == Some(1) && empty.stderr.contains("notification migrate"), "{empty:?}");
}

#[tokio::test]
async fn a_service_that_stops_beside_a_replay_loses_and_repeats_nothing() {
    let world = World::new().await;
    insert_dead_letters(&world, 2_000).await;
    let mut first: Service = world.service().start().await;
    let running = command(&world, &["replay", "--all", "--yes"]).spawn();
    at_work(&world).await;
    first.signal("TERM");
    first.wait_exit(Duration::from_secs(60)).await;
    let _second = world.service().start().await;
    let mut running = running;
    assert!(running.wait_exit(BOUND).await.success(), "{:?}", running.output());
    published_once(&world).await;
    assert_eq!(of_status(&world, "published").await, 4_000);
}
