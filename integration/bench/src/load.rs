//! The intents of a run: one or two of 500 users each, on two channels: two or four routes; half a kilobyte an entry.

use redis::aio::MultiplexedConnection;

use crate::world::INTENTS;

/// Routes of an intent, unless a scenario says otherwise: two users on two channels.
pub(crate) const ROUTES: u32 = 4;

const USERS: u32 = 500;
const PIPELINE: u32 = 1_000;

/// Names and values of intent `n`, which has four routes.
pub(crate) fn fields(n: u32) -> [(&'static str, String); 8] {
    fields_of(n, ROUTES)
}

/// With two routes, which is one user, or with four.
fn fields_of(n: u32, routes: u32) -> [(&'static str, String); 8] {
    let (one, two) = (n % USERS, (n * 7 + 1) % USERS);
    let two = if one == two { (two + 1) % USERS } else { two };
    let users = if routes < ROUTES {
        format!(r#"["user-{one}"]"#)
    } else {
        format!(r#"["user-{one}","user-{two}"]"#)
    };
    [
        ("notification_type", "game.turn.ready".to_owned()),
        ("producer", "game_master".to_owned()),
        ("audience_kind", "user".to_owned()),
        ("recipient_user_ids_json", users),
        ("idempotency_key", format!("game-master:game-{}:turn-{n}", n % 1_000)),
        ("occurred_at_ms", "1775121700000".to_owned()),
        (
            "payload_json",
            format!(
                r#"{{"game_id":"game-{}","game_name":"{}","turn_number":{n}}}"#,
                n % 1_000,
                "Nebula ".repeat(28).trim()
            ),
        ),
        ("request_id", format!("request-{n}")),
    ]
}

/// `XADD` of intent `n`, which has four routes.
pub(crate) fn xadd(n: u32) -> redis::Cmd {
    xadd_of(n, ROUTES)
}

fn xadd_of(n: u32, routes: u32) -> redis::Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(INTENTS).arg("*");
    for (name, value) in fields_of(n, routes) {
        command.arg(name).arg(value);
    }
    command
}

/// Fills the stream with intents of four routes.
pub(crate) async fn preload(redis: &mut MultiplexedConnection, intents: u32) -> anyhow::Result<()> {
    preload_of(redis, intents, ROUTES).await
}

/// Fills the stream with intents of `routes` routes.
pub(crate) async fn preload_of(
    redis: &mut MultiplexedConnection,
    intents: u32,
    routes: u32,
) -> anyhow::Result<()> {
    for first in (0..intents).step_by(PIPELINE as usize) {
        let mut pipeline = redis::pipe();
        for n in first..(first + PIPELINE).min(intents) {
            pipeline.add_command(xadd_of(n, routes)).ignore();
        }
        pipeline.query_async::<()>(redis).await?;
    }
    Ok(())
}
