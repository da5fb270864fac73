//! The yardstick: the barest honest code for the same rows, entries and leases on the same servers.
//!
//! It writes what the service writes, in the same order: records and routes in one durable transaction, then leases, then
//! appends that turn leases into receipts, then the completions, guarded by their version. It leaves out what makes a
//! service of it: validation, fingerprints and the look for known ones, the directory, election, bookmark, outages,
//! retries, telemetry. It trusts every entry, knows the one type of the run by heart, inserts without ON CONFLICT in one
//! flight, and overlaps acceptance with publishing. Reading, accepting and each channel have a connection of their own.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use crate::world::{INTENTS, MAIL, PUSH, World};

const BATCH: usize = 1_000;
const CHUNK: usize = 512;
const RECEIPT_MILLIS: u64 = 120_000;
/// Intents of a run are never this far apart.
const BLOCK_MILLIS: u64 = 30_000;
const LEASE_MILLIS: u64 = 5_000;

const LEASES: &str =
    "for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) end return 1";
const APPEND: &str = "
local at, out = 3, {}
for i = 2, #KEYS do
  local n = tonumber(ARGV[at])
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, at + 1, at + n))
    redis.call('SET', KEYS[i], 'published:' .. id, 'PX', ARGV[2])
    out[i - 1] = id
  end
  at = at + n + 1
end
return out";

const INSERT_RECORDS: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids,
    payload_json, idempotency_key, request_fingerprint, request_id, occurred_at, accepted_at, updated_at, idempotency_expires_at)
    SELECT unnest($1::text[]), 'game.turn.ready', 'game_master', 'user', unnest($2::text[])::jsonb, unnest($3::text[]),
    unnest($4::text[]), unnest($5::text[]), unnest($6::text[]), now(), $7::timestamptz, $7, $7 + interval '168 hours'";
const INSERT_ROUTES: &str =
    "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    next_attempt_at, resolved_email, resolved_locale, created_at, updated_at)
    SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), 'pending', 3,
    $6::timestamptz + interval '5 s', unnest($5::text[]), 'en', $6, $6";
const COMPLETE: &str = "UPDATE routes SET status = 'published', next_attempt_at = NULL, published_at = $4,
    published_entry_id = given.entry_id, updated_at = GREATEST($4, routes.updated_at + interval '1 microsecond')
    FROM (SELECT unnest($1::text[]) AS id, unnest($2::text[]) AS route, unnest($3::text[]) AS entry_id,
    unnest($5::timestamptz[]) AS version) given
    WHERE routes.notification_id = given.id AND routes.route_id = given.route AND routes.updated_at = given.version";

/// An entry as it is taken from the stream.
struct Entry {
    id: String,
    users: Vec<String>,
    recipients: String,
    payload: String,
    key: String,
    request_id: String,
}

/// A route on its way out, with what its entry needs.
pub(crate) struct Route {
    pub(crate) notification_id: String,
    pub(crate) route_id: String,
    pub(crate) user: String,
    pub(crate) payload: String,
    pub(crate) request_id: String,
}

struct Parcel {
    routes: Vec<Route>,
    /// Of each route.
    accepted_at: Vec<SystemTime>,
}

/// The parties of a run, connected.
pub(crate) struct Ceiling {
    reader: MultiplexedConnection,
    acceptor: Acceptor,
    push: Publisher,
    mail: Publisher,
}

impl Ceiling {
    pub(crate) async fn connect(world: &World, dsn: &str) -> anyhow::Result<Self> {
        Ok(Self {
            reader: world.redis().await?,
            acceptor: Acceptor::new(client(world, dsn).await?).await?,
            push: Publisher::new(client(world, dsn).await?, world.redis().await?, PUSH).await?,
            mail: Publisher::new(client(world, dsn).await?, world.redis().await?, MAIL).await?,
        })
    }

    /// Brings `intents` intents through, whether they are there already or come one by one.
    pub(crate) async fn run(self, intents: u32) -> anyhow::Result<()> {
        let (push, push_parcels) = mpsc::channel(4);
        let (mail, mail_parcels) = mpsc::channel(4);
        let push_publisher = tokio::spawn(self.push.run(push_parcels));
        let mail_publisher = tokio::spawn(self.mail.run(mail_parcels));
        let (read, mut batches) = mpsc::channel(2);
        let reader = tokio::spawn(read_all(self.reader, intents as usize, read));
        while let Some(mut batch) = batches.recv().await {
            // At a steady rate: what came meanwhile is not made to wait for a transaction of its own.
            while batch.len() < BATCH
                && let Ok(more) = batches.try_recv()
            {
                batch.extend(more);
            }
            let (to_push, to_mail) = self.acceptor.accept(&batch).await?;
            push.send(to_push).await.context("the push publisher ended")?;
            mail.send(to_mail).await.context("the mail publisher ended")?;
        }
        drop((push, mail));
        reader.await??;
        push_publisher.await??;
        mail_publisher.await?
    }
}

/// With the plans that the service pins, too.
async fn client(world: &World, dsn: &str) -> anyhow::Result<Client> {
    let client = world.postgres(dsn).await?;
    client
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
             SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0",
        )
        .await?;
    Ok(client)
}

/// Blocked while there is nothing, as the service is.
async fn read_all(
    mut redis: MultiplexedConnection,
    intents: usize,
    to: mpsc::Sender<Vec<Entry>>,
) -> anyhow::Result<()> {
    let (mut after, mut read) = ("0-0".to_owned(), 0);
    while read < intents {
        let mut command = redis::cmd("XREAD");
        command
            .arg("COUNT")
            .arg(BATCH)
            .arg("BLOCK")
            .arg(BLOCK_MILLIS)
            .arg("STREAMS")
            .arg(INTENTS)
            .arg(&after);
        let batch = entries(command.query_async(&mut redis).await?)?;
        read += batch.len();
        after = batch.last().context("no more intents come")?.id.clone();
        to.send(batch).await.context("the acceptor ended")?;
    }
    Ok(())
}

fn entries(value: Value) -> anyhow::Result<Vec<Entry>> {
    type Stream = Vec<(String, Vec<(String, Vec<String>)>)>;
    let streams: Option<Stream> = redis::from_redis_value(value)?;
    let list = streams.into_iter().flatten().flat_map(|(_, list)| list);
    list.map(|(id, fields)| {
        let mut fields = fields.into_iter();
        // In the order in which the run's producer writes them.
        let mut value = |place: usize| fields.nth(place).context("an entry is too short");
        let (recipients, key) = (value(7)?, value(1)?);
        let (payload, request_id) = (value(3)?, value(1)?);
        Ok(Entry { id, users: serde_json::from_str(&recipients)?, recipients, payload, key, request_id })
    })
    .collect()
}

struct Acceptor {
    client: Client,
    records: Statement,
    routes: Statement,
}

impl Acceptor {
    async fn new(client: Client) -> anyhow::Result<Self> {
        let (records, routes) = (client.prepare(INSERT_RECORDS).await?, client.prepare(INSERT_ROUTES).await?);
        Ok(Self { client, records, routes })
    }

    /// One transaction in one flight; then what each channel has to publish.
    async fn accept(&self, batch: &[Entry]) -> anyhow::Result<(Parcel, Parcel)> {
        let now = microseconds();
        let column = |value: fn(&Entry) -> &str| batch.iter().map(value).collect::<Vec<&str>>();
        let ids = column(|entry| &entry.id);
        let fingerprints: Vec<String> =
            batch.iter().map(|entry| format!("v1:{:064x}", entry.payload.len())).collect();
        let (mut push, mut mail) = (Vec::new(), Vec::new());
        for entry in batch {
            for user in &entry.users {
                let route = |channel: &str| Route {
                    notification_id: entry.id.clone(),
                    route_id: format!("{channel}:user:{user}"),
                    user: user.clone(),
                    payload: entry.payload.clone(),
                    request_id: entry.request_id.clone(),
                };
                push.push(route("push"));
                mail.push(route("email"));
            }
        }
        let both =
            || push.iter().map(|route| (route, "push")).chain(mail.iter().map(|route| (route, "email")));
        let route_ids: Vec<&str> = both().map(|(route, _)| route.notification_id.as_str()).collect();
        let names: Vec<&str> = both().map(|(route, _)| route.route_id.as_str()).collect();
        let channels: Vec<&str> = both().map(|(_, channel)| channel).collect();
        let references: Vec<String> = both().map(|(route, _)| format!("user:{}", route.user)).collect();
        let emails: Vec<String> = both()
            .map(
                |(route, channel)| {
                    if channel == "email" { format!("{}@example.com", route.user) } else { String::new() }
                },
            )
            .collect();
        let (recipients, payloads) = (column(|entry| &entry.recipients), column(|entry| &entry.payload));
        let (keys, request_ids) = (column(|entry| &entry.key), column(|entry| &entry.request_id));
        let of_records: [&(dyn ToSql + Sync); 7] =
            [&ids, &recipients, &payloads, &keys, &fingerprints, &request_ids, &now];
        let of_routes: [&(dyn ToSql + Sync); 6] = [&route_ids, &names, &channels, &references, &emails, &now];
        let (begin, records, routes, commit) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.client.execute(&self.records, &of_records),
            self.client.execute(&self.routes, &of_routes),
            self.client.batch_execute("COMMIT"),
        );
        begin?;
        records?;
        routes?;
        commit?;
        let parcel = |routes: Vec<Route>| Parcel { accepted_at: vec![now; routes.len()], routes };
        Ok((parcel(push), parcel(mail)))
    }
}

/// As fine as the column keeps it.
#[expect(clippy::disallowed_methods, reason = "the yardstick stands outside the house")]
fn microseconds() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// One channel.
struct Publisher {
    client: Client,
    redis: MultiplexedConnection,
    stream: &'static str,
    complete: Statement,
}

impl Publisher {
    async fn new(client: Client, redis: MultiplexedConnection, stream: &'static str) -> anyhow::Result<Self> {
        let complete = client.prepare(COMPLETE).await?;
        Ok(Self { client, redis, stream, complete })
    }

    async fn run(mut self, mut parcels: mpsc::Receiver<Parcel>) -> anyhow::Result<()> {
        let (leases, append) = (Script::new(LEASES), Script::new(APPEND));
        while let Some(mut parcel) = parcels.recv().await {
            while parcel.routes.len() < CHUNK
                && let Ok(more) = parcels.try_recv()
            {
                parcel.routes.extend(more.routes);
                parcel.accepted_at.extend(more.accepted_at);
            }
            for (chunk, accepted_at) in parcel.routes.chunks(CHUNK).zip(parcel.accepted_at.chunks(CHUNK)) {
                self.publish(chunk, accepted_at, &leases, &append).await?;
            }
        }
        Ok(())
    }

    /// Leases, then entries, then completions.
    async fn publish(
        &mut self,
        chunk: &[Route],
        accepted_at: &[SystemTime],
        leases: &Script,
        append: &Script,
    ) -> anyhow::Result<()> {
        let keys: Vec<String> = chunk
            .iter()
            .map(|route| format!("notification:route_leases:{}:{}", route.notification_id, route.route_id))
            .collect();
        leases.key(&keys).arg("token").arg(LEASE_MILLIS).invoke_async::<()>(&mut self.redis).await?;
        let mut call = append.prepare_invoke();
        call.key(self.stream).arg("token").arg(RECEIPT_MILLIS);
        for (key, route) in keys.iter().zip(chunk) {
            call.key(key);
            let fields = outbound(self.stream, route);
            call.arg(fields.len() * 2);
            for (name, value) in fields {
                call.arg(name).arg(value);
            }
        }
        let entry_ids: Vec<String> = call.invoke_async(&mut self.redis).await?;
        let ids: Vec<&str> = chunk.iter().map(|route| route.notification_id.as_str()).collect();
        let routes: Vec<&str> = chunk.iter().map(|route| route.route_id.as_str()).collect();
        let now = microseconds();
        self.client.execute(&self.complete, &[&ids, &routes, &entry_ids, &now, &accepted_at]).await?;
        Ok(())
    }
}

/// What the service appends to `stream` for a route.
pub(crate) fn outbound(stream: &str, route: &Route) -> Vec<(&'static str, String)> {
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
