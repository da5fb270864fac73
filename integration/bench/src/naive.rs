//! The form that every batch is held against: a transaction for each intent with a statement for each row, and four round
//! trips for each route. Correct, and how such a service is written first. Same tables, rows, entries and leases.

use std::sync::Arc;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use tokio::sync::mpsc;
use tokio_postgres::Client;

use crate::world::{INTENTS, MAIL, PUSH, World};

/// A route to be published.
struct Route {
    notification_id: String,
    channel: &'static str,
    user: String,
    payload: Arc<str>,
}

/// Brings `intents` intents through: one acceptor, one publisher for each channel.
pub(crate) async fn run(world: &World, dsn: &str, intents: u32) -> anyhow::Result<()> {
    let (push, push_routes) = mpsc::channel(1_000);
    let (mail, mail_routes) = mpsc::channel(1_000);
    let publishers = [
        tokio::spawn(publish(world.postgres(dsn).await?, world.redis().await?, PUSH, push_routes)),
        tokio::spawn(publish(world.postgres(dsn).await?, world.redis().await?, MAIL, mail_routes)),
    ];
    accept(world.postgres(dsn).await?, world.redis().await?, intents, push, mail).await?;
    for publisher in publishers {
        publisher.await??;
    }
    Ok(())
}

async fn accept(
    client: Client,
    mut redis: MultiplexedConnection,
    intents: u32,
    push: mpsc::Sender<Route>,
    mail: mpsc::Sender<Route>,
) -> anyhow::Result<()> {
    let record = client
        .prepare(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
                idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             VALUES ($1, 'game.turn.ready', 'game_master', 'user', $2::text::jsonb, $3, $4, 'v1:', now(), now(), now(), now())",
        )
        .await?;
    let route = client
        .prepare(
            "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
                resolved_locale, created_at, updated_at) VALUES ($1, $2, $3, $4, 'pending', 3, now(), 'en', now(), now())",
        )
        .await?;
    let mut after = "0-0".to_owned();
    for _ in 0..intents {
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT").arg(1).arg("STREAMS").arg(INTENTS).arg(&after);
        let reply: StreamReadReply = read.query_async(&mut redis).await?;
        let entry =
            reply.keys.into_iter().flat_map(|key| key.ids).next().context("the stream ended early")?;
        let field = |name: &str| entry.get::<String>(name).context("an entry is too short");
        let (recipients, payload, key) =
            (field("recipient_user_ids_json")?, field("payload_json")?, field("idempotency_key")?);
        let users: Vec<String> = serde_json::from_str(&recipients)?;
        client.batch_execute("BEGIN").await?;
        client.execute(&record, &[&entry.id, &recipients, &payload, &key]).await?;
        let payload: Arc<str> = payload.into();
        let mut routes = Vec::new();
        for user in users {
            for channel in ["push", "email"] {
                let (id, reference) = (format!("{channel}:user:{user}"), format!("user:{user}"));
                client.execute(&route, &[&entry.id, &id, &channel, &reference]).await?;
                let (notification_id, payload) = (entry.id.clone(), Arc::clone(&payload));
                routes.push(Route { notification_id, channel, user: user.clone(), payload });
            }
        }
        client.batch_execute("COMMIT").await?;
        for route in routes {
            let to = if route.channel == "push" { &push } else { &mail };
            to.send(route).await.context("a publisher ended")?;
        }
        after = entry.id;
    }
    Ok(())
}

async fn publish(
    client: Client,
    mut redis: MultiplexedConnection,
    stream: &'static str,
    mut routes: mpsc::Receiver<Route>,
) -> anyhow::Result<()> {
    let complete = client
        .prepare(
            "UPDATE routes SET status = 'published', next_attempt_at = NULL, published_at = now(), published_entry_id = $3,
                updated_at = now() WHERE notification_id = $1 AND route_id = $2 AND next_attempt_at IS NOT NULL",
        )
        .await?;
    while let Some(route) = routes.recv().await {
        let route_id = format!("{}:user:{}", route.channel, route.user);
        let lease = format!("notification:route_leases:{}:{route_id}", route.notification_id);
        redis::cmd("SET")
            .arg(&lease)
            .arg("token")
            .arg("NX")
            .arg("PX")
            .arg(5_000)
            .query_async::<()>(&mut redis)
            .await?;
        let mut append = redis::cmd("XADD");
        append.arg(stream).arg("*").arg("id").arg(format!("{}/{route_id}", route.notification_id));
        append.arg("payload_json").arg(&*route.payload);
        let entry_id: String = append.query_async(&mut redis).await?;
        client.execute(&complete, &[&route.notification_id, &route_id, &entry_id]).await?;
        redis::cmd("DEL").arg(&lease).query_async::<()>(&mut redis).await?;
    }
    Ok(())
}
