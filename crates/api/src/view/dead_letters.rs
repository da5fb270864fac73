//! Dead letters.

use domain::query::{self, Discarded};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, channel_schema};

/// A page of dead letters, newest first.
#[derive(Serialize, JsonSchema)]
pub struct DeadLetters<'a> {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub dead_letters: Vec<DeadLetter<'a>>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// A route whose retry budget is spent.
#[derive(Serialize, JsonSchema)]
pub struct DeadLetter<'a> {
    /// `<notification_id>/<route_id>`: what `ids` of a replay or discard takes.
    id: String,
    notification_id: &'a str,
    route_id: &'a str,
    notification_type: &'a str,
    #[schemars(schema_with = "channel_schema")]
    channel: &'static str,
    recipient_ref: &'a str,
    final_attempt_count: u32,
    max_attempts: u32,
    failure_classification: &'a str,
    failure_message: &'a str,
    /// A hint: the action that an operator can take.
    recovery_hint: &'a str,
    created_at: Time,
    /// When an operator discarded it; `null` if none did.
    discarded_at: Option<Time>,
    /// The name of the operator's token.
    discarded_by: Option<&'a str>,
    discard_reason: Option<&'a str>,
}

impl<'a> DeadLetter<'a> {
    /// Renders a dead letter.
    pub fn new(letter: &'a query::DeadLetter) -> Self {
        let discarded = letter.discarded.as_ref();
        let text = |part: fn(&Discarded) -> &str| discarded.map(part);
        Self {
            id: letter.key.to_string(),
            notification_id: letter.key.notification_id.as_str(),
            route_id: &letter.key.route_id,
            notification_type: &letter.notification_type,
            channel: letter.channel.as_str(),
            recipient_ref: &letter.recipient_ref,
            final_attempt_count: letter.final_attempt_count,
            max_attempts: letter.max_attempts,
            failure_classification: &letter.failure_classification,
            failure_message: &letter.failure_message,
            recovery_hint: &letter.recovery_hint,
            created_at: Time(letter.created_at),
            discarded_at: discarded.map(|discarded| Time(discarded.at)),
            discarded_by: text(|discarded| &discarded.by),
            discard_reason: text(|discarded| &discarded.reason),
        }
    }
}
