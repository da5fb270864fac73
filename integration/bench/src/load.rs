//! The intents of a run: two of 500 users each, on two channels: four routes; half a kilobyte an entry.

use redis::aio::MultiplexedConnection;

use crate::world::INTENTS;

const USERS: u32 = 500;
const PIPELINE: u32 = 1_000;

/// Names and values of intent `n`.
pub(crate) fn fields(n: u32) -> [(&'static str, String); 8] {
    let (one, two) = (n % USERS, (n * 7 + 1) % USERS);
    let two = if one == two { (two + 1) % USERS } else { two };
    [
        ("notification_type", "game.turn.ready".to_owned()),
        ("producer", "game_master".to_owned()),
        ("audience_kind", "user".to_owned()),
        ("recipient_user_ids_json", format!(r#"["user-{one}","user-{two}"]"#)),
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

/// `XADD` of intent `n`.
pub(crate) fn xadd(n: u32) -> redis::Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(INTENTS).arg("*");
    for (name, value) in fields(n) {
        command.arg(name).arg(value);
    }
    command
}

/// Fills the stream.
pub(crate) async fn preload(redis: &mut MultiplexedConnection, intents: u32) -> anyhow::Result<()> {
    for first in (0..intents).step_by(PIPELINE as usize) {
        let mut pipeline = redis::pipe();
        for n in first..(first + PIPELINE).min(intents) {
            pipeline.add_command(xadd(n)).ignore();
        }
        pipeline.query_async::<()>(redis).await?;
    }
    Ok(())
}
