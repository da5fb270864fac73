//! Leases, appends and completions of one channel.

use std::fmt::Write;

use anyhow::Context;
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio_postgres::{Client, Statement};

use super::{BaselineRoute, RouteChunk, microseconds};
use crate::testbed::PUSH;

const CHUNK: usize = 512;
const LEASE_MILLIS: u64 = 5_000;

const RELEASE: &str = "
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1";
const COMPLETE: &str = "UPDATE routes SET status = 'published', next_attempt_at = NULL, published_at = $4,
    published_entry_id = appended.entry_id, updated_at = GREATEST($4, routes.updated_at + interval '1 microsecond')
    FROM (SELECT unnest($1::text[]) AS id, unnest($2::text[]) AS route, unnest($3::text[]) AS entry_id,
    unnest($5::timestamptz[]) AS version) appended
    WHERE routes.notification_id = appended.id AND routes.route_id = appended.route AND routes.updated_at = appended.version";

/// Acquires leases and appends entries for one channel.
pub(super) struct ChannelPublisher {
    redis: MultiplexedConnection,
    stream: &'static str,
    /// The SHA-1 of the script that releases leases, with which Redis runs it.
    release: String,
}

/// An appended chunk.
pub(super) struct AppendedChunk {
    chunk: RouteChunk,
    entry_ids: Vec<String>,
}

impl ChannelPublisher {
    pub(super) async fn new(mut redis: MultiplexedConnection, stream: &'static str) -> anyhow::Result<Self> {
        let release = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut redis).await?;
        Ok(Self { redis, stream, release })
    }

    pub(super) async fn run(
        mut self,
        mut batches: mpsc::Receiver<RouteChunk>,
        to: mpsc::Sender<AppendedChunk>,
    ) -> anyhow::Result<()> {
        let mut waiting = RouteChunk { routes: Vec::new(), accepted_at: Vec::new() };
        loop {
            while waiting.routes.len() < CHUNK
                && let Ok(more) = batches.try_recv()
            {
                waiting.routes.extend(more.routes);
                waiting.accepted_at.extend(more.accepted_at);
            }
            if waiting.routes.is_empty() {
                let Some(batch) = batches.recv().await else { return Ok(()) };
                waiting = batch;
                continue;
            }
            let length = waiting.routes.len().min(CHUNK);
            let later = RouteChunk {
                routes: waiting.routes.split_off(length),
                accepted_at: waiting.accepted_at.split_off(length),
            };
            let chunk = std::mem::replace(&mut waiting, later);
            let entry_ids = self.publish(&chunk.routes).await?;
            to.send(AppendedChunk { chunk, entry_ids }).await.context("the completer ended")?;
        }
    }

    /// Acquires the leases of a chunk, appends its entries and releases the leases. Returns the ids of the
    /// entries.
    async fn publish(&mut self, chunk: &[BaselineRoute]) -> anyhow::Result<Vec<String>> {
        let keys: Vec<String> = chunk
            .iter()
            .map(|route| format!("notification:route_leases:{}:{}", route.entry.id, route.route_id))
            .collect();
        let mut leases = redis::pipe();
        for key in &keys {
            leases.cmd("SET").arg(key).arg("token").arg("NX").arg("PX").arg(LEASE_MILLIS);
        }
        leases.query_async::<()>(&mut self.redis).await?;
        let mut appends = redis::pipe();
        let write = if self.stream == PUSH { write_push } else { write_mail };
        let (mut id, mut text) = (String::new(), String::new());
        for route in chunk {
            id.clear();
            write!(id, "{}/{}", route.entry.id, route.route_id)?;
            let mut append = redis::cmd("XADD");
            append.arg(self.stream).arg("*");
            write(&mut append, route, &id, &mut text)?;
            appends.add_command(append);
        }
        let ids = appends.query_async(&mut self.redis).await?;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(keys.len()).arg(&keys).arg("token");
        release.query_async::<()>(&mut self.redis).await?;
        Ok(ids)
    }
}

/// Adds the fields that the service appends for a push route.
fn write_push(call: &mut Cmd, route: &BaselineRoute, id: &str, _: &mut String) -> anyhow::Result<()> {
    call.arg("event_id").arg(id).arg("event_type").arg("game.turn.ready");
    call.arg("user_id").arg(route.user()).arg("notification_id").arg(&route.entry.id);
    call.arg("route_id").arg(&route.route_id).arg("payload_json").arg(&route.entry.payload);
    call.arg("occurred_at_ms").arg("1775121700000").arg("attempt").arg("1");
    call.arg("request_id").arg(&route.entry.request_id);
    Ok(())
}

/// Adds the fields that the service appends for an e-mail route.
fn write_mail(call: &mut Cmd, route: &BaselineRoute, id: &str, text: &mut String) -> anyhow::Result<()> {
    text.clear();
    write!(text, "notification:{id}")?;
    call.arg("idempotency_key").arg(text.as_str()).arg("delivery_id").arg(id);
    call.arg("source").arg("notification").arg("payload_mode").arg("template");
    text.clear();
    write!(
        text,
        r#"{{"to":["{}@example.com"],"cc":[],"bcc":[],"reply_to":[],"template_id":"game.turn.ready","locale":"en","variables":{},"attachments":[]}}"#,
        route.user(),
        route.entry.payload
    )?;
    call.arg("requested_at_ms").arg("1775121700000").arg("payload_json").arg(text.as_str());
    call.arg("request_id").arg(&route.entry.request_id);
    Ok(())
}

/// Completes the routes of one channel.
pub(super) struct Completer {
    client: Client,
    complete: Statement,
}

impl Completer {
    pub(super) async fn new(client: Client) -> anyhow::Result<Self> {
        let complete = client.prepare(COMPLETE).await?;
        Ok(Self { client, complete })
    }

    pub(super) async fn run(self, mut appended: mpsc::Receiver<AppendedChunk>) -> anyhow::Result<()> {
        while let Some(AppendedChunk { chunk, entry_ids }) = appended.recv().await {
            let ids: Vec<&str> = chunk.routes.iter().map(|route| route.entry.id.as_str()).collect();
            let routes: Vec<&str> = chunk.routes.iter().map(|route| route.route_id.as_str()).collect();
            let now = microseconds();
            self.client
                .execute(&self.complete, &[&ids, &routes, &entry_ids, &now, &chunk.accepted_at])
                .await?;
        }
        Ok(())
    }
}
