//! Intents to send.

use domain::intent::{IntentDraft, Recipients};

/// A well-formed `game.turn.ready` for these users. A different `turn` under the same key is a conflict.
pub fn turn_ready<U: Into<String>>(
    users: impl IntoIterator<Item = U>,
    idempotency_key: &str,
    turn: u32,
) -> IntentDraft {
    IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: "game_master".to_owned(),
        recipients: Recipients::Users(users.into_iter().map(Into::into).collect()),
        idempotency_key: idempotency_key.to_owned(),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: format!(r#"{{"game_id":"game-1","game_name":"Nova","turn_number":{turn}}}"#),
        request_id: None,
        trace_id: None,
    }
}
