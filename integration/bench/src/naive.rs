//! The form that every batch is held against: a transaction for each intent with a statement for each row, and four round
//! trips for each route. It is how such a service is written first. Same tables, rows, entries and leases; like the
//! ceiling, it leaves out all that makes a service of it.

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamReadReply};
use tokio::sync::mpsc;
use tokio_postgres::{Client, Statement};

use crate::ceiling::{Route, outbound};
use crate::world::{INTENTS, MAIL, PUSH, World};

const LEASE_MILLIS: u64 = 5_000;
const INSERT_RECORD: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind,
    recipient_user_ids, payload_json, idempotency_key, request_fingerprint, request_id, occurred_at, accepted_at, updated_at,
    idempotency_expires_at)
    VALUES ($1, 'game.turn.ready', 'game_master', 'user', $2::text::jsonb, $3, $4, 'v1:' || repeat('0', 64), $5, now(), now(),
    now(), now() + interval '168 hours')";
const INSERT_ROUTE: &str =
    "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    next_attempt_at, resolved_email, resolved_locale, created_at, updated_at)
    VALUES ($1, $2, $3, $4, 'pending', 3, now() + interval '5 s', $5, 'en', now(), now())";
const COMPLETE: &str = "UPDATE routes SET status = 'published', next_attempt_at = NULL, published_at = now(),
    published_entry_id = $3, updated_at = GREATEST(now(), updated_at + interval '1 microsecond')
    WHERE notification_id = $1 AND route_id = $2 AND next_attempt_at IS NOT NULL";

/// Brings `intents` intents through: one acceptor, one publisher for each channel.
pub(crate) async fn run(world: &World, dsn: &str, intents: u32) -> anyhow::Result<()> {
    let (push, push_routes) = mpsc::channel(1_000);
    let (mail, mail_routes) = mpsc::channel(1_000);
    let publishers = [
        tokio::spawn(publish(world.postgres(dsn).await?, world.redis().await?, PUSH, push_routes)),
        tokio::spawn(publish(world.postgres(dsn).await?, world.redis().await?, MAIL, mail_routes)),
    ];
    let acceptor = Acceptor::new(world.postgres(dsn).await?).await?;
    let mut redis = world.redis().await?;
    let mut after = "0-0".to_owned();
    for _ in 0..intents {
        let entry = read_one(&mut redis, &after).await?;
        for (channel, route) in acceptor.accept(&entry).await? {
            let to = if channel == "push" { &push } else { &mail };
            to.send(route).await.context("a publisher ended")?;
        }
        after = entry.id;
    }
    drop((push, mail));
    for publisher in publishers {
        publisher.await??;
    }
    Ok(())
}

async fn read_one(redis: &mut MultiplexedConnection, after: &str) -> anyhow::Result<StreamId> {
    let mut read = redis::cmd("XREAD");
    read.arg("COUNT").arg(1).arg("STREAMS").arg(INTENTS).arg(after);
    let reply: Option<StreamReadReply> = read.query_async(redis).await?;
    let mut entries = reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids);
    entries.next().context("the stream ended early")
}

struct Acceptor {
    client: Client,
    record: Statement,
    route: Statement,
}

impl Acceptor {
    async fn new(client: Client) -> anyhow::Result<Self> {
        let (record, route) = (client.prepare(INSERT_RECORD).await?, client.prepare(INSERT_ROUTE).await?);
        Ok(Self { client, record, route })
    }

    /// One intent, one transaction, one row after the other; then its routes, each with its channel.
    async fn accept(&self, entry: &StreamId) -> anyhow::Result<Vec<(&'static str, Route)>> {
        let field = |name: &str| entry.get::<String>(name).context("an entry is too short");
        let (recipients, payload) = (field("recipient_user_ids_json")?, field("payload_json")?);
        let (key, request_id) = (field("idempotency_key")?, field("request_id")?);
        let users: Vec<String> = serde_json::from_str(&recipients)?;
        let mut routes = Vec::new();
        self.client.batch_execute("BEGIN").await?;
        self.client.execute(&self.record, &[&entry.id, &recipients, &payload, &key, &request_id]).await?;
        for user in users {
            for channel in ["push", "email"] {
                let (route_id, reference) = (format!("{channel}:user:{user}"), format!("user:{user}"));
                let email = if channel == "email" { format!("{user}@example.com") } else { String::new() };
                self.client
                    .execute(&self.route, &[&entry.id, &route_id, &channel, &reference, &email])
                    .await?;
                let route = Route {
                    notification_id: entry.id.clone(),
                    route_id,
                    user: user.clone(),
                    payload: payload.clone(),
                    request_id: request_id.clone(),
                };
                routes.push((channel, route));
            }
        }
        self.client.batch_execute("COMMIT").await?;
        Ok(routes)
    }
}

/// Lease, entry, completion, release: each route waits for each of them.
async fn publish(
    client: Client,
    mut redis: MultiplexedConnection,
    stream: &'static str,
    mut routes: mpsc::Receiver<Route>,
) -> anyhow::Result<()> {
    let complete = client.prepare(COMPLETE).await?;
    while let Some(route) = routes.recv().await {
        let lease = format!("notification:route_leases:{}:{}", route.notification_id, route.route_id);
        let mut take = redis::cmd("SET");
        take.arg(&lease).arg("token").arg("NX").arg("PX").arg(LEASE_MILLIS);
        let taken: Option<String> = take.query_async(&mut redis).await?;
        ensure!(taken.is_some(), "somebody else holds a lease of ours");
        let mut append = redis::cmd("XADD");
        append.arg(stream).arg("*");
        for (name, value) in outbound(stream, &route) {
            append.arg(name).arg(value);
        }
        let entry_id: String = append.query_async(&mut redis).await?;
        client.execute(&complete, &[&route.notification_id, &route.route_id, &entry_id]).await?;
        redis::cmd("DEL").arg(&lease).query_async::<()>(&mut redis).await?;
    }
    Ok(())
}
