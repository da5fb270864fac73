//! The commands that manage an outbox, run from a shell.

use harness::ServiceBuilder;
use serde_json::{Value, json};

use crate::outbox::*;

/// An outbox with three DEAD events, one that is PENDING, one DELIVERED, and one scheduled.
async fn outbox_with_dead_events() -> Outbox {
    let outbox = Outbox::new().await;
    outbox.insert(0..6).await;
    outbox
        .execute(&format!(
            "UPDATE openoutbox_events SET status = 'DEAD', attempts = 25, last_error = 'WRONGTYPE no stream', updated_at = now()
                WHERE event_id IN ('{}', '{}');
             UPDATE openoutbox_events SET status = 'DEAD', attempts = 3, last_error = 'lease expired', event_type = 'game.finished',
                updated_at = now() - interval '40 days' WHERE event_id = '{}';
             UPDATE openoutbox_events SET status = 'DELIVERED', delivered_at = now() - interval '8 days' WHERE event_id = '{}';
             UPDATE openoutbox_events SET available_at = now() + interval '1 hour' WHERE event_id = '{}';
             UPDATE openoutbox_events SET created_at = now() - interval '10 minutes' WHERE event_id = '{}'",
            event_id(0),
            event_id(1),
            event_id(2),
            event_id(3),
            event_id(4),
            event_id(5),
        ))
        .await;
    outbox
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[tokio::test]
async fn stats_count_what_is_due_tried_scheduled_and_dead() {
    let outbox = outbox_with_dead_events().await;
    let printed = outbox.command(&["outbox", "stats", "--json"]).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let mut stats = lines(&printed.stdout).remove(0);
    let age = stats["oldest_age_sec"].take().as_f64().expect("a number");
    assert!((600.0..700.0).contains(&age), "{age}");
    let expected = json!({
        "pending_count": 1, "retrying_count": 0, "scheduled_count": 1, "delivering_count": 0, "dead_count": 3,
        "oldest_age_sec": null,
    });
    assert_eq!(stats, expected);
    let text = outbox.command(&["outbox", "stats"]).await;
    assert!(text.stdout.lines().any(|line| line.split_whitespace().eq(["dead", "3"])), "{text:?}");
}

#[tokio::test]
async fn prune_deletes_what_is_older_and_a_dry_run_only_counts() {
    let outbox = outbox_with_dead_events().await;
    let ages = ["outbox", "prune", "--delivered-age", "7d", "--dead-age", "30d", "--json"];
    let dry = outbox.command(&[&ages[..], &["--dry-run"]].concat()).await;
    assert_eq!(lines(&dry.stdout), [json!({"delivered": 1, "dead": 1, "dry_run": true})], "{dry:?}");
    assert_eq!(outbox.number("SELECT count(*) FROM openoutbox_events").await, 6);
    let kept = outbox.command(&["outbox", "prune", "--delivered-age", "9d"]).await;
    assert_eq!((kept.code, outbox.count("DELIVERED").await), (Some(0), 1), "{kept:?}");
    let real = outbox.command(&ages).await;
    assert_eq!(lines(&real.stdout), [json!({"delivered": 1, "dead": 1, "dry_run": false})], "{real:?}");
    assert_eq!((outbox.count("DELIVERED").await, outbox.count("DEAD").await), (0, 2));
    assert_eq!(outbox.count("PENDING").await, 2);
}

#[tokio::test]
async fn dead_events_are_listed_the_latest_first_and_shown_whole() {
    let outbox = outbox_with_dead_events().await;
    let listed = outbox.command(&["outbox", "dead", "list", "--json"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let listed = lines(&listed.stdout);
    assert_eq!(listed.len(), 3);
    assert_eq!(listed[2]["event_id"], json!(event_id(2)));
    assert_eq!((&listed[2]["last_error"], &listed[2]["attempts"]), (&json!("lease expired"), &json!(3)));
    let limited = outbox.command(&["outbox", "dead", "list", "--json", "--limit", "1"]).await;
    assert_eq!(lines(&limited.stdout).len(), 1);

    let text = outbox.command(&["outbox", "dead", "list"]).await.stdout;
    assert!(text.contains("may be on the stream all the same"), "{text}");
    let shown = outbox.command(&["outbox", "dead", "show", &event_id(2), "--json"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let document = lines(&shown.stdout).remove(0);
    assert_eq!((&document["event_type"], &document["status"]), (&json!("game.finished"), &json!("DEAD")));
    assert_eq!(document["payload"], json!(payload(2).to_string()));
    let shown = outbox.command(&["outbox", "dead", "show", &event_id(2)]).await;
    assert!(shown.stdout.contains("may be on the stream all the same"), "{shown:?}");

    for id in [event_id(3), event_id(99)] {
        let missing = outbox.command(&["outbox", "dead", "show", &id]).await;
        assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""), "{missing:?}");
        assert!(missing.stderr.contains(&id), "{missing:?}");
    }
}

#[tokio::test]
async fn requeue_by_id_reports_what_is_unknown_or_not_dead_and_requeues_the_others() {
    let outbox = outbox_with_dead_events().await;
    let done =
        outbox.command(&["outbox", "requeue", &event_id(0), &event_id(3), &event_id(99), "--json"]).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    let expected = [
        json!({"event_id": event_id(0), "result": "requeued"}),
        json!({"event_id": event_id(3), "result": "not_dead"}),
        json!({"event_id": event_id(99), "result": "unknown"}),
    ];
    assert_eq!(lines(&done.stdout), expected);
    let row = "SELECT status || ' ' || attempts || ' ' || (last_error IS NULL)::text || ' ' || (available_at <= now())::text
        FROM openoutbox_events WHERE event_id = ";
    assert_eq!(outbox.text(&format!("{row} '{}'", event_id(0))).await, "PENDING 0 true true");
    let again = outbox.command(&["outbox", "requeue", &event_id(1)]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
}

#[tokio::test]
async fn requeue_of_all_dead_events_asks_and_a_dry_run_changes_nothing() {
    let outbox = outbox_with_dead_events().await;
    let dry = outbox.command(&["outbox", "requeue", "--dead", "--dry-run", "--json"]).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    let plan = lines(&dry.stdout).remove(0);
    assert_eq!((&plan["count"], &plan["dry_run"]), (&json!(3), &json!(true)));
    assert_eq!(plan["first"].as_array().map(Vec::len), Some(3));

    let without_terminal = outbox.command(&["outbox", "requeue", "--dead"]).await;
    assert_eq!(without_terminal.code, Some(2), "{without_terminal:?}");
    assert_eq!(outbox.count("DEAD").await, 3);

    let of_type = ["outbox", "requeue", "--dead", "--type", "game.finished", "--yes", "--json"];
    let done = outbox.command(&of_type).await;
    let expected = json!({"requeued": 1, "locked": 0, "refused": [], "dry_run": false});
    assert_eq!(lines(&done.stdout), [expected], "{done:?}");
    assert_eq!(outbox.count("DEAD").await, 2);
    let done = outbox.command(&["outbox", "requeue", "--dead", "--yes"]).await;
    assert_eq!((done.code, outbox.count("DEAD").await), (Some(0), 0), "{done:?}");
}

#[tokio::test]
async fn on_a_terminal_requeue_is_done_only_after_a_yes() {
    let outbox = outbox_with_dead_events().await;
    for (answer, code, dead) in [("no", 1, 3), ("", 1, 3), ("y", 0, 0)] {
        // `script` gives the command a terminal.
        let command = format!("'{}' outbox requeue --dead", harness::service_binary().display());
        let mut script = tokio::process::Command::new("sh");
        let line =
            format!("printf '%s\\n' '{answer}' | script --quiet --return --command \"{command}\" /dev/null");
        script.args(["-c", &line]).env("NOTIFICATION_OUTBOX_DSN", outbox.database.dsn());
        let output = script.output().await.expect("script is there: install bsdutils");
        assert_eq!(output.status.code(), Some(code), "{answer:?}: {output:?}");
        assert_eq!(outbox.count("DEAD").await, dead, "{answer:?}");
    }
}

#[tokio::test]
async fn an_event_whose_marker_still_lives_is_delivered_without_a_second_entry() {
    let outbox = Outbox::new().await;
    let _relay = outbox.relay().start().await;
    outbox.insert(0..1).await;
    outbox.drained().await;
    outbox
        .execute("UPDATE openoutbox_events SET status = 'DEAD', last_error = 'lease expired', attempts = 25")
        .await;
    let done = outbox.command(&["outbox", "requeue", &event_id(0)]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    outbox.becomes(&event_id(0), "DELIVERED").await;
    outbox.check_stream(0..1).await;
}

#[tokio::test]
async fn migrate_may_be_run_again_and_beside_an_open_transaction() {
    let outbox = Outbox::new().await;
    outbox.insert(0..1).await;
    let open = outbox.database.client().await;
    open.batch_execute(&format!("BEGIN; {INSERT} {}", event_row(1))).await.expect("it is inserted");
    let again = outbox.command(&["outbox", "migrate"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    open.batch_execute("COMMIT").await.expect("it is committed");
    assert_eq!(outbox.count("PENDING").await, 2, "nothing was dropped");
}

#[tokio::test]
async fn migrate_print_needs_no_connection_string_and_names_the_table() {
    let builder = ServiceBuilder::default().env("NOTIFICATION_OUTBOX_TABLE", "shop.events");
    let printed = builder.arguments(["outbox", "migrate", "--print"]).run().await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.contains(r#""shop"."events""#), "{}", printed.stdout);
    assert!(!printed.stdout.contains("DROP"), "{}", printed.stdout);
}

#[tokio::test]
async fn a_command_without_a_connection_string_or_a_table_says_so() {
    let missing = ServiceBuilder::default().arguments(["outbox", "stats"]).run().await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("NOTIFICATION_OUTBOX_DSN is required and not set"), "{missing:?}");

    let outbox =
        Outbox { world: crate::world::World::new().await, database: harness::TestDatabase::empty().await };
    for command in
        [&["stats"][..], &["dead", "list"], &["prune", "--dead-age", "1d"], &["requeue", "--dead", "--yes"]]
    {
        let failed = outbox.command(&[&["outbox"], command].concat()).await;
        assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""), "{failed:?}");
        assert!(failed.stderr.contains("the outbox table openoutbox_events does not exist"), "{failed:?}");
    }
    let refused =
        ServiceBuilder::default().env("NOTIFICATION_OUTBOX_DSN", "postgres://me:s3cret@127.0.0.1:1/x");
    let refused = refused.arguments(["outbox", "stats"]).run().await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(!refused.stderr.contains("s3cret"), "{refused:?}");
}

/// An outbox with the DELIVERED events 0 to 9.
async fn outbox_with_delivered_events() -> Outbox {
    let outbox = Outbox::new().await;
    outbox.insert(0..10).await;
    outbox
        .execute(
            "UPDATE openoutbox_events SET status = 'DELIVERED', delivered_at = now() - interval '1 minute'",
        )
        .await;
    outbox
}

const REQUEUE_DELIVERED: [&str; 4] = ["outbox", "requeue", "--delivered-since", "1h"];

#[tokio::test]
async fn requeue_of_delivered_events_counts_what_is_locked_and_ends_with_1() {
    let outbox = outbox_with_delivered_events().await;
    let open = outbox.database.client().await;
    let lock =
        format!("BEGIN; SELECT 1 FROM openoutbox_events WHERE event_id = '{}' FOR UPDATE", event_id(4));
    open.batch_execute(&lock).await.expect("it is locked");
    let done = outbox.command(&[&REQUEUE_DELIVERED[..], &["--yes", "--json"]].concat()).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    let expected = json!({"requeued": 9, "locked": 1, "refused": [], "dry_run": false});
    assert_eq!(lines(&done.stdout), [expected]);
    assert!(done.stderr.contains("other transactions have locked"), "{done:?}");
    open.batch_execute("COMMIT").await.expect("it is released");
    let done = outbox.command(&[&REQUEUE_DELIVERED[..], &["--yes"]].concat()).await;
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "1 events are requeued"), "{done:?}");
    assert_eq!(outbox.count("PENDING").await, 10);
}

#[tokio::test]
async fn requeue_of_delivered_events_counts_the_same_events_in_a_dry_run_and_without() {
    let outbox = outbox_with_delivered_events().await;
    let future = format!(
        "UPDATE openoutbox_events SET delivered_at = now() + interval '1 hour' WHERE event_id = '{}'",
        event_id(4)
    );
    outbox.execute(&future).await;
    let dry = outbox.command(&[&REQUEUE_DELIVERED[..], &["--dry-run", "--json"]].concat()).await;
    let plan = lines(&dry.stdout).remove(0);
    assert_eq!((&plan["count"], plan["first"].as_array().map(Vec::len)), (&json!(9), Some(9)), "{dry:?}");
    let done = outbox.command(&[&REQUEUE_DELIVERED[..], &["--yes"]].concat()).await;
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "9 events are requeued"), "{done:?}");
}

#[tokio::test]
async fn requeue_of_delivered_events_names_what_a_trigger_refuses_and_requeues_the_others() {
    let outbox = outbox_with_delivered_events().await;
    outbox
        .execute(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON openoutbox_events FOR EACH ROW
                WHEN (OLD.event_id = '{}') EXECUTE FUNCTION refuse()",
            event_id(4)
        ))
        .await;
    let done = outbox.command(&[&REQUEUE_DELIVERED[..], &["--yes"]].concat()).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stdout.contains("9 events are requeued"), "{done:?}");
    assert!(done.stderr.contains(&event_id(4)), "{done:?}");
    assert_eq!(outbox.count("PENDING").await, 9);
}
