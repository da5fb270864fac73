//! Sends the sample intent and prints the published entries.

use std::time::Duration;

use ambient::{Clock, SystemClock};
use domain::intent::{IntentDraft, Recipients};
use domain::ports::{IntentProducer, StoreError};
use redis::Value;
use store_redis::{RedisClient, RedisIntentProducer};
use tokio_util::sync::CancellationToken;

use super::samples::malformed;
use super::{PRODUCER, USERS};

/// The pause between two reads of the outbound streams.
const OUTBOUND_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The most entries of one stream that one read shows; the next read shows the rest.
const MAX_ENTRIES_PER_READ: u32 = 100;

/// Prints the published entries.
pub(super) struct Watch {
    pub(super) streams: [String; 2],
    pub(super) stop: CancellationToken,
    /// Text printed once the sample has been published.
    pub(super) invitation: String,
}

impl Watch {
    pub(super) async fn show(self, redis: RedisClient, intents: String) {
        if let Err(error) = send_sample(&redis, &intents).await {
            println!("The sample intent could not be sent: {}", domain::ports::error_chain(&error));
            return;
        }
        println!("\n→ {intents}\n    game.turn.ready for {} and {}", USERS[0].0, USERS[1].0);
        println!("    (two users, each by push and by e-mail: four entries will come out)\n");
        let mut seen = [String::from("0-0"), String::from("0-0")];
        let (mut shown, mut invited) = (0, false);
        while !self.stop.is_cancelled() {
            for (stream, last) in self.streams.iter().zip(&mut seen) {
                let mut range = redis::cmd("XRANGE");
                range.arg(stream).arg(format!("({last}")).arg("+").arg("COUNT").arg(MAX_ENTRIES_PER_READ);
                // A failed read is repeated.
                let Ok(Value::Array(entries)) = redis.command("read an outbound stream", &range).await else {
                    continue;
                };
                for entry in entries {
                    if let Some((id, fields)) = readable(entry) {
                        print_entry(stream, &id, &fields);
                        *last = id;
                        shown += 1;
                    }
                }
            }
            if shown >= 4 && !invited {
                println!("{}", self.invitation);
                invited = true;
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(OUTBOUND_POLL_INTERVAL)).await.is_none() {
                break;
            }
        }
    }
}

/// Sends a malformed intent and a good one, under a key that no example of the pages has: an example with the
/// key of another intent would be a conflict.
async fn send_sample(redis: &RedisClient, intents: &str) -> Result<(), StoreError> {
    let draft = IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: PRODUCER.to_owned(),
        recipients: Recipients::Users(USERS.map(|(id, _)| id.to_owned()).into()),
        idempotency_key: "game-123:turn-51".to_owned(),
        occurred_at_ms: SystemClock.now().as_millis().to_string(),
        payload_json: r#"{"game_id":"game-123","game_name":"Nova","turn_number":51}"#.to_owned(),
        request_id: None,
        trace_id: None,
    };
    let producer = RedisIntentProducer::new(redis, intents.to_owned());
    producer.append(&malformed().into_entry()).await?;
    producer.append(&draft.into_entry()).await.map(drop)
}

fn readable(entry: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = entry else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    match parts.as_slice() {
        [id, Value::Array(fields)] => Some((text(id), fields.iter().map(text).collect())),
        _ => None,
    }
}

fn print_entry(stream: &str, id: &str, fields: &[String]) {
    println!("← {stream} {id}");
    for pair in fields.chunks_exact(2) {
        println!("    {:<16} {}", pair[0], pair[1]);
    }
    println!();
}
