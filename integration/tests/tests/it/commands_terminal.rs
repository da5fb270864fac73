//! The commands on a terminal, and in a pipe that its reader closes.

use harness::{Finished, wait_for};

use crate::dead_letters::insert_dead_letters;
use crate::world::*;

/// Runs a command on a terminal of this width. Both outputs of the command are its standard output.
async fn on_terminal(world: &World, columns: usize, line: &str) -> Finished {
    let binary = harness::service_binary();
    let command = format!("stty cols {columns} && exec {} {line}", binary.display());
    // `script` runs a command on a terminal of its own.
    let script = ["script", "--quiet", "--return", "--command", &command, "/dev/null"];
    world.service().program(script).arguments([]).env("NO_COLOR", "1").env("TERM", "xterm").run().await
}

fn shown(finished: &Finished) -> Vec<&str> {
    finished.stdout.lines().map(|line| line.trim_end_matches('\r')).collect()
}

/// True if the text contains a time with a fraction of a second.
fn has_fraction(text: &str) -> bool {
    text.split_whitespace().any(|word| word.len() == 27 && word.ends_with('Z') && word.as_bytes()[19] == b'.')
}

#[tokio::test]
async fn tables_fit_a_terminal_and_are_whole_in_a_pipe() {
    let world = World::new().await;
    insert_dead_letters(&world, 3).await;
    let error =
        "WRONGTYPE Operation against a key holding the wrong kind of value, as the server said: the end";
    world.execute(&format!("UPDATE dead_letters SET failure_message = '{error}'")).await;
    world
        .execute("UPDATE records SET idempotency_key = repeat('k', 200) WHERE notification_id = '1-0'")
        .await;
    world
        .execute(
            "INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, notification_type, producer,
                idempotency_key, failure_code, failure_message, raw_fields, recorded_at)
             VALUES ('notification:intents', '1775121700000-0', 'v1:', 'lobby.runtime_paused_after_start', 'game_lobby',
                'game-123:paused:game-123', 'payload_schema_violation', 'wrong', '[]', now())",
        )
        .await;
    let _service = world.service().start().await;
    wait_for("the replica has reported itself", BOUND, async || {
        (world.number("SELECT count(*) FROM replicas").await > 0).then_some(())
    })
    .await;
    for line in ["list", "dead-letters list", "malformed list", "leader", "show 1-0", "status"] {
        let wide = on_terminal(&world, 80, &format!("{line} --wide")).await;
        let piped = world.service().arguments(line.split_whitespace()).run().await;
        for columns in [80, 40] {
            let fits = on_terminal(&world, columns, line).await;
            assert_eq!((fits.code, &*fits.stderr), (Some(0), ""), "{line}: {fits:?}");
            // A page of a notification or of the status has sentences and members besides the tables.
            let begins = ["  ", "ROUTE  ", "push:user:u-1  ", "email:user:u-1  ", "REPLICA  "];
            let is_table =
                |row: &&str| begins.iter().any(|begin| row.starts_with(begin)) || row.contains(" ago");
            let is_list = line.ends_with("list");
            let is_row = |row: &&str| {
                is_list || is_table(row) && !row.contains(" leads ") && !row.starts_with("leader")
            };
            let rows: Vec<&str> = shown(&fits).into_iter().filter(is_row).collect();
            assert!(rows.len() > 1, "{line}: {fits:?}");
            for row in rows {
                assert!(row.chars().count() <= columns && !has_fraction(row), "{line}: {row}");
            }
        }
        let (wide, piped) = (shown(&wide), shown(&piped));
        assert_eq!(wide.len(), piped.len(), "{line}");
        if line.ends_with("list") {
            assert_eq!(wide, piped, "{line}");
            assert!(wide.iter().any(|row| row.chars().count() > 80 && has_fraction(row)), "{wide:?}");
        }
    }
    let fits = on_terminal(&world, 80, "dead-letters list").await;
    let row = shown(&fits)[1].to_owned();
    assert!(row.starts_with("3-0/push:user:u-3  ") || row.starts_with("3-0/email:user:u-3  "), "{row}");
    assert!(row.ends_with('…') && row.contains("  WRONGTYPE Operation"), "{row}");
    let piped = world.service().arguments(["dead-letters", "list"]).run().await;
    assert!(piped.stdout.contains(error), "{piped:?}");
}

#[tokio::test]
async fn the_progress_of_a_replay_stays_on_its_line() {
    let world = World::new().await;
    insert_dead_letters(&world, 1_000).await;
    let columns = 40;
    let replayed = on_terminal(&world, columns, "dead-letters replay --all --yes --no-wait").await;
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    let drawn: Vec<&str> = replayed.stdout.split('\r').filter(|part| part.contains("\u{1b}[K")).collect();
    assert!(drawn.iter().any(|part| part.contains(" of 2000 dead letters")), "{drawn:?}");
    for part in drawn {
        let text = part.split("\u{1b}[K").next().unwrap_or_default();
        assert!(text.chars().count() < columns, "{text}");
    }
}

#[tokio::test]
async fn a_pipe_that_its_reader_has_closed_ends_a_command_without_a_word() {
    let world = World::new().await;
    insert_dead_letters(&world, 3).await;
    for line in
        ["list", "dead-letters list --json", "check-config", "catalogue --print", "completions bash", "man"]
    {
        // The reader has ended before the command begins.
        let shell = r#"exec 3> >(exit 0); wait $!; "$0" "$@" >&3"#;
        let binary = harness::service_binary();
        let program = ["bash", "-c", shell, binary.to_str().expect("UTF-8")];
        let closed = world.service().program(program).arguments(line.split_whitespace()).run().await;
        assert_eq!((closed.code, &*closed.stderr), (Some(141), ""), "{line}");
    }
}

#[tokio::test]
async fn a_send_that_a_full_redis_refuses_was_not_appended() {
    let world = World::new().await;
    let mut redis = world.redis().await;
    for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "1")] {
        let set = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).to_owned();
        set.query_async::<()>(&mut redis).await.expect("it is set");
    }
    let payload = r#"{"game_id":"g-1","game_name":"Nova","turn_number":54}"#;
    let flags = "send --type game.turn.ready --producer game_master --user u-1 --key g-1:54 --payload";
    let sent = world.service().arguments(flags.split(' ').chain([payload])).run().await;
    assert_eq!((sent.code, &*sent.stdout), (Some(1), ""), "{sent:?}");
    assert!(sent.stderr.contains("OOM") && !sent.stderr.contains("may have been appended"), "{sent:?}");
}
