//! The baseline: the smallest program that writes the same rows and entries on the same servers.
//!
//! It writes the same rows and entries as the service, in the same order: records and routes in one durable
//! transaction, then leases, then entries, then the completions, guarded by their version. It has no markers,
//! so a crash duplicates entries; no validation, no fingerprints, no search for known keys, no user
//! directory, no election, no cached checkpoint, no handling of outages, no retries and no telemetry. It
//! trusts every entry, supports only the one notification type of the run, and inserts without ON CONFLICT in
//! one pipelined transaction. Reading, accepting and publishing run concurrently, each on a connection of its
//! own; each channel appends one chunk while the previous one is completed. Redis gets plain commands in
//! pipelines. Entries are shared instead of copied, and replies are parsed in place.

mod publish;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use self::publish::{ChannelPublisher, Completer};
use crate::testbed::{INTENTS, MAIL, PUSH, Servers, connect_postgres, connect_redis};

const BATCH: usize = 1_000;
/// The time for which a read blocks. It exceeds the time between any two intents of a run.
const BLOCK_MILLIS: u64 = 30_000;
const INSERT_RECORDS: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids,
    payload_json, idempotency_key, request_fingerprint, request_id, occurred_at, accepted_at, updated_at, idempotency_expires_at)
    SELECT unnest($1::text[]), 'game.turn.ready', 'game_master', 'user', unnest($2::text[])::jsonb, unnest($3::text[]),
    unnest($4::text[]), unnest($5::text[]), unnest($6::text[]), now(), $7::timestamptz, $7, $7 + interval '168 hours'";
const INSERT_ROUTES: &str =
    "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    next_attempt_at, resolved_email, resolved_locale, created_at, updated_at)
    SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), 'pending', 3,
    $6::timestamptz + interval '5 s', unnest($5::text[]), 'en', $6, $6";
/// An entry read from the stream.
struct Entry {
    id: String,
    users: Vec<String>,
    recipients: String,
    payload: String,
    key: String,
    request_id: String,
}

/// A route to publish, with its intent.
struct BaselineRoute {
    entry: Arc<Entry>,
    route_id: String,
    /// The index of the recipient in the users of the entry.
    user: usize,
}

impl BaselineRoute {
    fn user(&self) -> &str {
        &self.entry.users[self.user]
    }
}

struct RouteChunk {
    routes: Vec<BaselineRoute>,
    /// The version of each route.
    accepted_at: Vec<SystemTime>,
}

/// The reader, the acceptor and both publishers, connected.
pub(crate) struct Baseline {
    reader: MultiplexedConnection,
    acceptor: BaselineAcceptor,
    channels: [(ChannelPublisher, Completer); 2],
}

impl Baseline {
    pub(crate) async fn connect(servers: &Servers) -> anyhow::Result<Self> {
        let channel = async |stream| {
            let publisher = ChannelPublisher::new(connect_redis(&servers.redis).await?, stream).await?;
            anyhow::Ok((publisher, Completer::new(client(servers).await?).await?))
        };
        Ok(Self {
            reader: connect_redis(&servers.redis).await?,
            acceptor: BaselineAcceptor::new(client(servers).await?).await?,
            channels: [channel(PUSH).await?, channel(MAIL).await?],
        })
    }

    /// Processes `intents` intents, whether they are in the stream already or arrive one by one.
    pub(crate) async fn run(self, intents: u32) -> anyhow::Result<()> {
        let mut tasks = Vec::new();
        let [push, mail] = self.channels.map(|(publisher, completer)| {
            let (to_publisher, batches) = mpsc::channel(4);
            let (to_completer, appended) = mpsc::channel(1);
            tasks.push(tokio::spawn(publisher.run(batches, to_completer)));
            tasks.push(tokio::spawn(completer.run(appended)));
            to_publisher
        });
        let (read, mut batches) = mpsc::channel(2);
        tasks.push(tokio::spawn(read_all(self.reader, intents as usize, read)));
        while let Some(mut batch) = batches.recv().await {
            // At a steady rate, intents that arrived during the previous transaction join this one.
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
        for task in tasks {
            task.await??;
        }
        Ok(())
    }
}

/// Connects with the same pinned plans as the service.
pub(crate) async fn client(servers: &Servers) -> anyhow::Result<Client> {
    let client = connect_postgres(&servers.postgres).await?;
    client
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
             SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0",
        )
        .await?;
    Ok(client)
}

/// Reads all intents, with reads that block like those of the service.
async fn read_all(
    mut redis: MultiplexedConnection,
    intents: usize,
    to: mpsc::Sender<Vec<Arc<Entry>>>,
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
        after.clone_from(&batch.last().context("no further intents arrived")?.id);
        to.send(batch).await.context("the acceptor ended")?;
    }
    Ok(())
}

/// The entries of the reply, which has one stream.
fn entries(reply: Value) -> anyhow::Result<Vec<Arc<Entry>>> {
    let mut streams = array(reply)?.into_iter();
    let mut stream = array(streams.next().context("no stream")?)?.into_iter();
    let list = array(stream.nth(1).context("no entries")?)?;
    list.into_iter()
        .map(|entry| {
            let mut entry = array(entry)?.into_iter();
            let id = text(entry.next())?;
            let mut fields = array(entry.next().context("no fields")?)?.into_iter();
            // The fields have the order in which the benchmark writes them.
            let mut value = |place: usize| text(fields.nth(place));
            let (recipients, key) = (value(7)?, value(1)?);
            let (payload, request_id) = (value(3)?, value(1)?);
            let users = serde_json::from_str(&recipients)?;
            Ok(Arc::new(Entry { id, users, recipients, payload, key, request_id }))
        })
        .collect()
}

fn array(value: Value) -> anyhow::Result<Vec<Value>> {
    match value {
        Value::Array(values) => Ok(values),
        other => bail!("not a list: {other:?}"),
    }
}

fn text(value: Option<Value>) -> anyhow::Result<String> {
    match value {
        Some(Value::BulkString(bytes)) => Ok(String::from_utf8(bytes)?),
        other => bail!("not a text: {other:?}"),
    }
}

struct BaselineAcceptor {
    client: Client,
    records: Statement,
    routes: Statement,
}

impl BaselineAcceptor {
    async fn new(client: Client) -> anyhow::Result<Self> {
        let (records, routes) = (client.prepare(INSERT_RECORDS).await?, client.prepare(INSERT_ROUTES).await?);
        Ok(Self { client, records, routes })
    }

    /// Accepts a batch in one pipelined transaction. Returns the routes of push and of e-mail.
    async fn accept(&self, batch: &[Arc<Entry>]) -> anyhow::Result<(RouteChunk, RouteChunk)> {
        let now = microseconds();
        let column =
            |value: fn(&Entry) -> &str| batch.iter().map(|entry| value(entry)).collect::<Vec<&str>>();
        let ids = column(|entry| &entry.id);
        let fingerprints: Vec<String> =
            batch.iter().map(|entry| format!("v1:{:064x}", entry.payload.len())).collect();
        let routes = |channel: &str| -> Vec<BaselineRoute> {
            let of = |entry: &Arc<Entry>, user: usize| {
                let route_id = format!("{channel}:user:{}", entry.users[user]);
                BaselineRoute { entry: Arc::clone(entry), route_id, user }
            };
            batch.iter().flat_map(|entry| (0..entry.users.len()).map(move |user| of(entry, user))).collect()
        };
        let (push, mail) = (routes("push"), routes("email"));
        let both = || push.iter().chain(&mail);
        let route_ids: Vec<&str> = both().map(|route| route.entry.id.as_str()).collect();
        let names: Vec<&str> = both().map(|route| route.route_id.as_str()).collect();
        let of_each = |of_push: &'static str, of_mail: &'static str| {
            std::iter::repeat_n(of_push, push.len()).chain(std::iter::repeat_n(of_mail, mail.len()))
        };
        let channels: Vec<&str> = of_each("push", "email").collect();
        // The part of a route id after its channel.
        let references: Vec<&str> =
            names.iter().map(|name| name.split_once(':').map_or("", |(_, reference)| reference)).collect();
        let addresses: Vec<String> =
            mail.iter().map(|route| format!("{}@example.com", route.user())).collect();
        let emails: Vec<&str> =
            std::iter::repeat_n("", push.len()).chain(addresses.iter().map(String::as_str)).collect();
        let (recipients, payloads) = (column(|entry| &entry.recipients), column(|entry| &entry.payload));
        let (keys, request_ids) = (column(|entry| &entry.key), column(|entry| &entry.request_id));
        let of_records: [&(dyn ToSql + Sync); 7] =
            [&ids, &recipients, &payloads, &keys, &fingerprints, &request_ids, &now];
        let of_routes: [&(dyn ToSql + Sync); 6] = [&route_ids, &names, &channels, &references, &emails, &now];
        let (begin, records, inserted, commit) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.client.execute(&self.records, &of_records),
            self.client.execute(&self.routes, &of_routes),
            self.client.batch_execute("COMMIT"),
        );
        begin?;
        records?;
        inserted?;
        commit?;
        let batch = |routes: Vec<BaselineRoute>| RouteChunk { accepted_at: vec![now; routes.len()], routes };
        Ok((batch(push), batch(mail)))
    }
}

/// The current time in the precision of the column.
#[expect(clippy::disallowed_methods, reason = "the baseline is not part of the service")]
fn microseconds() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
