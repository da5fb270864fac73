//! `send`: publishes one intent, after checking it against the rules of the service.
//!
//! A malformed intent is not sent. This command does not check whether the idempotency key is new or the
//! recipients exist; the service decides that when it reads the intent.

use std::fs::File;
use std::io::Write;

use ambient::{Clock, SystemClock};
use anyhow::{Context, anyhow};
use clap::Args;
use domain::entry::{EntryId, RawFields};
use domain::intent::{IntentDraft, Recipients};
use domain::ports::{IntentProducer, StoreError};
use serde::Deserialize;
use serde_json::Number;
use serde_json::value::RawValue;
use store_redis::{RedisClient, RedisIntentProducer};

use super::{Failure, Vars, load};
use crate::config::{Redis, SendConfig, read_bounded};
use crate::wiring;

/// One intent, from flags or from a file.
#[derive(Args, Debug, Default)]
pub struct SendArgs {
    /// The notification type, such as game.turn.ready
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    notification_type: Option<String>,
    /// The sender; one of the producers that the type allows
    #[arg(long, required_unless_present = "file")]
    producer: Option<String>,
    /// A user who is to receive it; may be repeated
    #[arg(long = "user", value_name = "USER_ID", required_unless_present_any = ["admin", "file"])]
    users: Vec<String>,
    /// Send to the administrators of the type instead of users
    #[arg(long, conflicts_with = "users")]
    admin: bool,
    /// The idempotency key; a repetition must be the same in everything, --occurred-at-ms too
    #[arg(long, required_unless_present = "file")]
    key: Option<String>,
    /// The payload, a JSON object with the fields of the type
    #[arg(long, value_name = "JSON", required_unless_present = "file")]
    payload: Option<String>,
    /// When it happened, in Unix milliseconds [default: now]
    #[arg(long, value_name = "MS")]
    occurred_at_ms: Option<String>,
    /// For finding it again in logs
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// For finding it again in traces
    #[arg(long, value_name = "ID")]
    trace_id: Option<String>,
    /// A file with one intent as a JSON object, or - for standard input
    #[arg(long, value_name = "PATH", conflicts_with_all = [
        "notification_type", "producer", "users", "admin", "key", "payload", "occurred_at_ms", "request_id", "trace_id",
    ])]
    file: Option<String>,
}

/// An intent in the form of a file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct IntentFile {
    #[serde(rename = "type")]
    notification_type: String,
    producer: String,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    admin: bool,
    key: String,
    /// The payload exactly as in the file, so that the rules of the service check it.
    payload: Box<RawValue>,
    occurred_at_ms: Option<Number>,
    request_id: Option<String>,
    trace_id: Option<String>,
}

/// Checks the intent, appends it to the stream and prints the id of its entry to `out`.
pub async fn run(args: SendArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let config: SendConfig = load(vars)?;
    let (args, from_file) = match &args.file {
        Some(path) => (read_file(path)?, true),
        None => (args, false),
    };
    let now_ms = SystemClock.now().as_millis();
    let repeat = how_to_repeat(&args, from_file, now_ms);
    let draft = draft(args, now_ms);
    if let Err(rejection) = draft.decode(&config.catalog) {
        return Err(Failure::Usage(format!("failure {rejection}")));
    }
    let id = append(&config.redis, &config.intents_stream, &draft.into_entry(), &repeat).await?;
    writeln!(out, "{id}").context("could not write to standard output")?;
    Ok(())
}

fn read_file(path: &str) -> Result<SendArgs, Failure> {
    let text = match path {
        "-" => read_bounded(std::io::stdin()),
        path => File::open(path).and_then(read_bounded),
    };
    let text = text.map_err(|error| Failure::Usage(format!("error: {path} cannot be read: {error}")))?;
    parse_file(&text).map_err(|reason| Failure::Usage(format!("error: {path} is no intent: {reason}")))
}

fn parse_file(text: &str) -> Result<SendArgs, String> {
    let file: IntentFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.admin != file.users.is_empty() {
        return Err("it takes either users or \"admin\": true".to_owned());
    }
    Ok(SendArgs {
        notification_type: Some(file.notification_type),
        producer: Some(file.producer),
        users: file.users,
        admin: file.admin,
        key: Some(file.key),
        payload: Some(file.payload.get().to_owned()),
        occurred_at_ms: file.occurred_at_ms.map(|number| number.to_string()),
        request_id: file.request_id,
        trace_id: file.trace_id,
        file: None,
    })
}

/// The intent as a producer writes it. An absent value becomes empty, because both break the same rule.
fn draft(args: SendArgs, now_ms: i64) -> IntentDraft {
    IntentDraft {
        notification_type: args.notification_type.unwrap_or_default(),
        producer: args.producer.unwrap_or_default(),
        recipients: if args.admin { Recipients::Administrators } else { Recipients::Users(args.users) },
        idempotency_key: args.key.unwrap_or_default(),
        occurred_at_ms: args.occurred_at_ms.unwrap_or_else(|| now_ms.to_string()),
        payload_json: args.payload.unwrap_or_default(),
        request_id: args.request_id,
        trace_id: args.trace_id,
    }
}

/// Appends the entry and returns its id. `repeat` is the advice to add to the error if the entry may or may
/// not have been appended.
async fn append(redis: &Redis, stream: &str, fields: &RawFields, repeat: &str) -> anyhow::Result<EntryId> {
    let said = || format!("could not append to {stream} on Redis at {}", redis.topology);
    let client = RedisClient::new(wiring::redis_settings(redis)).with_context(said)?;
    // After a successful PING, only the reply to the append can still be lost.
    client.ping().await.with_context(said)?;
    match RedisIntentProducer::new(&client, stream.to_owned()).append(fields).await {
        Ok(id) => Ok(id),
        Err(error @ StoreError::Unavailable { .. }) if !store_redis::is_rejected(&error) => {
            let chain = domain::ports::error_chain(&error);
            Err(anyhow!("{}: {chain}; it may have been appended all the same: {repeat}", said()))
        }
        Err(error) => Err(error).with_context(said),
    }
}

/// The advice for sending an intent, read at `now_ms`, again so that it counts once.
fn how_to_repeat(args: &SendArgs, from_file: bool, now_ms: i64) -> String {
    match (&args.occurred_at_ms, from_file) {
        (Some(_), _) => "it is safe to send the same again".to_owned(),
        (None, false) => format!("to repeat it safely add --occurred-at-ms {now_ms}"),
        (None, true) => format!("to repeat it safely add \"occurred_at_ms\": {now_ms} to the file"),
    }
}

#[cfg(test)]
mod tests;
