//! The Rust program of docs/consumers.md.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use redis::aio::MultiplexedConnection;
use redis::streams::{
    StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamReadOptions, StreamReadReply,
};
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

const REMEMBER_SECONDS: u64 = 90 * 24 * 3600;
const BATCH: usize = 100;
const BLOCK_MS: usize = 1_000;
const PAUSE: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(15);

type Failure = Box<dyn Error>;
type Fields = HashMap<String, String>;

/// The end of a delivery.
enum Delivery {
    Done,
    /// It can never succeed.
    Impossible,
}

struct Consumer {
    server: MultiplexedConnection,
    stream: String,
    group: String,
    name: String,
    take_over_after_ms: usize,
    http: reqwest::Client,
    /// The HTTP API, and the token of this consumer.
    api: Option<(String, String)>,
}

impl Consumer {
    async fn connect() -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
        let client = Client::open(env::var("REDIS_URL")?)?;
        let mut consumer = Self {
            server: client.get_multiplexed_async_connection_with_config(&config).await?,
            stream: env::var("STREAM")?,
            group: env::var("GROUP")?,
            name: env::var("CONSUMER")?,
            take_over_after_ms: env::var("TAKE_OVER_AFTER_MS").map_or(Ok(60_000), |text| text.parse())?,
            http: reqwest::Client::builder().timeout(TIMEOUT).build()?,
            api: env::var("API_URL").ok().zip(env::var("TOKEN").ok()),
        };
        let created: RedisResult<()> =
            consumer.server.xgroup_create_mkstream(&consumer.stream, &consumer.group, "0").await;
        match created {
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(consumer),
            created => Ok(created.map(|()| consumer)?),
        }
    }

    /// Replace this: pass `key` on, so that a repeated delivery is recognised. An entry whose delivery fails
    /// with an error is tried again.
    async fn deliver(&self, key: &str, fields: &Fields) -> Result<Delivery, Failure> {
        let to = match (fields.get("user_id"), fields.get("payload_json")) {
            (Some(user), _) => user.clone(),
            (None, Some(command)) => serde_json::from_str::<Value>(command)?["to"][0].to_string(),
            (None, None) => return Ok(Delivery::Impossible),
        };
        println!("delivered {key} to {to}");
        Ok(Delivery::Done)
    }

    /// Returns entries that others have held for too long, else new ones.
    async fn take(&mut self) -> RedisResult<Vec<StreamId>> {
        let (stream, group, name) = (&self.stream, &self.group, &self.name);
        let options = StreamAutoClaimOptions::default().count(BATCH);
        let taken: StreamAutoClaimReply = self
            .server
            .xautoclaim_options(stream, group, name, self.take_over_after_ms, "0-0", options)
            .await?;
        if !taken.claimed.is_empty() {
            return Ok(taken.claimed);
        }
        let options = StreamReadOptions::default().group(group, name).count(BATCH).block(BLOCK_MS);
        let read: Option<StreamReadReply> = self.server.xread_options(&[stream], &[">"], &options).await?;
        let streams = read.into_iter().flat_map(|reply| reply.keys);
        Ok(streams.flat_map(|stream| stream.ids).collect())
    }

    /// Delivers entries and acknowledges those that are done. The others stay pending and are taken over
    /// later.
    async fn handle(&mut self, entries: Vec<StreamId>) -> Result<(), Failure> {
        let (mut done, mut receipts) = (Vec::new(), Vec::new());
        for entry in entries {
            let fields = entry.map.keys().filter_map(|name| Some((name.clone(), entry.get(name)?)));
            let fields: Fields = fields.collect();
            let Some(key) = fields.get("delivery_id").or(fields.get("event_id")) else { continue };
            let status = match self.deliver_once(key, &fields).await {
                Ok(status) => status,
                Err(error) => {
                    eprintln!("{key} is tried again: {error}");
                    continue;
                }
            };
            let at = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
            receipts.push(json!({"id": key, "status": status, "at": at}));
            done.push(entry.id);
        }
        if !done.is_empty() {
            self.report(receipts).await?;
            let () = self.server.xack(&self.stream, &self.group, &done).await?;
        }
        Ok(())
    }

    /// Delivers an entry unless a note says that it was done. Returns the status for its receipt.
    async fn deliver_once(&mut self, key: &str, fields: &Fields) -> Result<String, Failure> {
        let note = format!("{}:done:{key}", self.group);
        if let Some(status) = self.server.get(&note).await? {
            return Ok(status);
        }
        let status = match self.deliver(key, fields).await? {
            Delivery::Done => "delivered",
            Delivery::Impossible => "failed",
        };
        let () = self.server.set_ex(&note, status, REMEMBER_SECONDS).await?;
        Ok(status.to_owned())
    }

    /// Reports receipts. Fails if the API does not take them, so that the entries stay pending.
    async fn report(&self, receipts: Vec<Value>) -> Result<(), Failure> {
        let Some((url, token)) = &self.api else { return Ok(()) };
        let request = self.http.post(format!("{url}/v1/receipts")).bearer_auth(token);
        let request = request.header("Content-Type", "application/json");
        let response = request.body(json!({"receipts": receipts}).to_string()).send().await?;
        let results: Value = serde_json::from_str(&response.error_for_status()?.text().await?)?;
        for result in results["results"].as_array().into_iter().flatten() {
            if result["outcome"] == "invalid" {
                eprintln!("refused receipt: {result}");
            }
        }
        Ok(())
    }
}

async fn consume(stopping: &AtomicBool) -> Result<(), Failure> {
    let mut consumer = Consumer::connect().await?;
    while !stopping.load(Ordering::Relaxed) {
        let entries = consumer.take().await?;
        consumer.handle(entries).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let stopping = Arc::new(AtomicBool::new(false));
    let (mut terminated, stop) = (signal(SignalKind::terminate())?, Arc::clone(&stopping));
    tokio::spawn(async move {
        terminated.recv().await;
        stop.store(true, Ordering::Relaxed);
    });
    while !stopping.load(Ordering::Relaxed) {
        // A flushed Redis has no group any more, so each attempt creates it.
        if let Err(error) = consume(&stopping).await {
            eprintln!("waiting: {error}");
            sleep(PAUSE).await;
        }
    }
    Ok(())
}
