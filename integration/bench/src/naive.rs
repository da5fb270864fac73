//! The naive implementation: a transaction for each intent with a statement for each row, and four round
//! trips for each route. It writes the same rows, entries and leases as the service, without batches. Like
//! the baseline, it has no validation, no election and no handling of failures.

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamReadReply};
use tokio::sync::mpsc;
use tokio_postgres::{Client, Statement};

use crate::testbed::{INTENTS, MAIL, PUSH, Servers, connect_postgres, connect_redis};

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

/// A route to publish, with the values of its entry.
struct NaiveRoute {
    notification_id: String,
    route_id: String,
    user: String,
    payload: String,
    request_id: String,
}

/// A reader, an acceptor and a publisher for each channel, connected.
pub(crate) struct Naive {
    reader: MultiplexedConnection,
    acceptor: NaiveAcceptor,
    channels: [NaivePublisher; 2],
}

impl Naive {
    pub(crate) async fn connect(servers: &Servers) -> anyhow::Result<Self> {
        Ok(Self {
            reader: connect_redis(&servers.redis).await?,
            acceptor: NaiveAcceptor::new(connect_postgres(&servers.postgres).await?).await?,
            channels: [
                NaivePublisher::connect(servers, PUSH).await?,
                NaivePublisher::connect(servers, MAIL).await?,
            ],
        })
    }

    /// Processes `intents` intents.
    pub(crate) async fn run(mut self, intents: u32) -> anyhow::Result<()> {
        let mut publishers = Vec::new();
        let [push, mail] = self.channels.map(|publisher| {
            let (to, routes) = mpsc::channel(1_000);
            publishers.push(tokio::spawn(publisher.run(routes)));
            to
        });
        let mut after = "0-0".to_owned();
        for _ in 0..intents {
            let entry = read_one(&mut self.reader, &after).await?;
            for (channel, route) in self.acceptor.accept(&entry).await? {
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
}

async fn read_one(redis: &mut MultiplexedConnection, after: &str) -> anyhow::Result<StreamId> {
    let mut read = redis::cmd("XREAD");
    read.arg("COUNT").arg(1).arg("STREAMS").arg(INTENTS).arg(after);
    let reply: Option<StreamReadReply> = read.query_async(redis).await?;
    let mut entries = reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids);
    entries.next().context("the stream ended early")
}

struct NaiveAcceptor {
    client: Client,
    record: Statement,
    route: Statement,
}

impl NaiveAcceptor {
    async fn new(client: Client) -> anyhow::Result<Self> {
        let (record, route) = (client.prepare(INSERT_RECORD).await?, client.prepare(INSERT_ROUTE).await?);
        Ok(Self { client, record, route })
    }

    /// Accepts one intent in one transaction, row by row. Returns its routes, each with its channel.
    async fn accept(&self, entry: &StreamId) -> anyhow::Result<Vec<(&'static str, NaiveRoute)>> {
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
                let route = NaiveRoute {
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

/// Publishes the routes of one channel.
struct NaivePublisher {
    client: Client,
    redis: MultiplexedConnection,
    stream: &'static str,
    complete: Statement,
}

impl NaivePublisher {
    async fn connect(servers: &Servers, stream: &'static str) -> anyhow::Result<Self> {
        let client = connect_postgres(&servers.postgres).await?;
        let complete = client.prepare(COMPLETE).await?;
        Ok(Self { client, redis: connect_redis(&servers.redis).await?, stream, complete })
    }

    /// Acquires the lease, appends the entry, completes the route and releases the lease, for each route.
    async fn run(mut self, mut routes: mpsc::Receiver<NaiveRoute>) -> anyhow::Result<()> {
        while let Some(route) = routes.recv().await {
            let lease = format!("notification:route_leases:{}:{}", route.notification_id, route.route_id);
            let mut take = redis::cmd("SET");
            take.arg(&lease).arg("token").arg("NX").arg("PX").arg(LEASE_MILLIS);
            let taken: Option<String> = take.query_async(&mut self.redis).await?;
            ensure!(taken.is_some(), "the lease of a route is held");
            let mut append = redis::cmd("XADD");
            append.arg(self.stream).arg("*");
            for (name, value) in outbound(self.stream, &route) {
                append.arg(name).arg(value);
            }
            let entry_id: String = append.query_async(&mut self.redis).await?;
            self.client
                .execute(&self.complete, &[&route.notification_id, &route.route_id, &entry_id])
                .await?;
            redis::cmd("DEL").arg(&lease).query_async::<()>(&mut self.redis).await?;
        }
        Ok(())
    }
}

/// The fields that the service appends to `stream` for a route.
fn outbound(stream: &str, route: &NaiveRoute) -> Vec<(&'static str, String)> {
    let id = format!("{}/{}", route.notification_id, route.route_id);
    if stream == PUSH {
        return vec![
            ("event_id", id),
            ("event_type", "game.turn.ready".to_owned()),
            ("user_id", route.user.clone()),
            ("notification_id", route.notification_id.clone()),
            ("route_id", route.route_id.clone()),
            ("payload_json", route.payload.clone()),
            ("occurred_at_ms", "1775121700000".to_owned()),
            ("attempt", "1".to_owned()),
            ("request_id", route.request_id.clone()),
        ];
    }
    let payload = format!(
        r#"{{"to":["{}@example.com"],"cc":[],"bcc":[],"reply_to":[],"template_id":"game.turn.ready","locale":"en","variables":{},"attachments":[]}}"#,
        route.user, route.payload
    );
    vec![
        ("idempotency_key", format!("notification:{id}")),
        ("delivery_id", id),
        ("source", "notification".to_owned()),
        ("payload_mode", "template".to_owned()),
        ("requested_at_ms", "1775121700000".to_owned()),
        ("payload_json", payload),
        ("request_id", route.request_id.clone()),
    ]
}
