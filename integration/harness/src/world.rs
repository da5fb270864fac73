//! A test's own servers, a producer, and the invariants that must hold in every case.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::entry::RawFields;
use domain::intent::IntentDraft;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use store_redis::append_command;

use crate::{
    Postgres, PostgresOptions, Redis, RedisCluster, RedisClusterOptions, SentinelGroup, SentinelOptions,
    Service, ServiceBuilder, StandInDirectory, TestDatabase, private_redis, turn_ready, wait_for,
};

/// The intents stream.
pub const INTENTS: &str = "notification:intents";
/// The outbound stream of client events.
pub const PUSH: &str = "gateway:client-events";
/// The outbound stream of mail commands.
pub const MAIL: &str = "mail:delivery_commands";
/// A field of each client event: of all requests of the service to Redis, only appends to [`PUSH`] contain
/// it. The name of the stream is also in the key of each lease.
pub const PUSH_APPEND: &str = "event_id";
/// The same of [`MAIL`].
pub const MAIL_APPEND: &str = "delivery_id";
/// The key of the cached checkpoint.
pub const CACHED_CHECKPOINT: &str =
    "notification:stream_offsets:{notification:intents}:bm90aWZpY2F0aW9uOmludGVudHM";
/// The longest wait in a test, on a machine that builds at the same time: an entry of 16 MiB took a debug
/// build over a minute.
pub const BOUND: Duration = Duration::from_secs(180);
/// The lease TTL that the tests configure.
pub const LEASE_TTL: Duration = Duration::from_secs(2);

/// Longer than the age of the events that the tests send.
const AUDIT_RETENTION: &str = "17520h";

/// True if the replica leads.
pub async fn leads(service: &Service) -> bool {
    service.get("/readyz").await.1["leader"] == true
}

/// Sets times that a machine does not exceed even if it pauses for seconds, for tests that are not about
/// time.
pub fn unhurried(service: ServiceBuilder) -> ServiceBuilder {
    service
        .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "10s")
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "10s")
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "20s")
        .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "5m")
}

/// All servers that a service needs, shared with no other test.
pub struct World {
    /// The migrated database.
    pub database: TestDatabase,
    /// The server of streams, leases and the cached checkpoint.
    pub redis: Redis,
    /// The servers that are used instead of `redis`, with their Sentinels.
    pub sentinels: Option<SentinelGroup>,
    /// The Cluster that is used instead of `redis`.
    pub cluster: Option<RedisCluster>,
    /// The directory of users.
    pub directory: StandInDirectory,
    /// Set if the test stops PostgreSQL itself.
    pub postgres: Option<Postgres>,
}

/// Sends intents `range` on this connection, for two users each: four routes.
pub async fn send_intents(redis: &mut MultiplexedConnection, range: impl IntoIterator<Item = u32>) {
    let mut pipeline = redis::pipe();
    for n in range {
        pipeline.add_command(intent(n)).ignore();
    }
    pipeline.query_async::<()>(redis).await.expect("Redis is there");
}

impl World {
    /// A world on the PostgreSQL that all tests of the process share.
    pub async fn new() -> Self {
        Self::with(TestDatabase::new().await, None).await
    }

    /// A world with a PostgreSQL that no other test uses.
    pub async fn with_own_postgres() -> Self {
        let postgres =
            Postgres::start(PostgresOptions::default()).await.expect("a private PostgreSQL starts");
        let database = TestDatabase::on(&postgres).await;
        Self::with(database, Some(postgres)).await
    }

    /// A world on this database; `postgres` is the server that the test stops itself.
    pub async fn with(database: TestDatabase, postgres: Option<Postgres>) -> Self {
        let directory = StandInDirectory::start().await.expect("a stand-in directory starts");
        Self { database, redis: private_redis().await, sentinels: None, cluster: None, directory, postgres }
    }

    /// A world whose Redis has replicas and Sentinels.
    pub async fn with_sentinels(options: SentinelOptions) -> Self {
        let group = SentinelGroup::start(options).await.expect("servers with Sentinels start");
        Self { sentinels: Some(group), ..Self::new().await }
    }

    /// A world whose Redis is a Cluster.
    pub async fn with_cluster(options: RedisClusterOptions) -> Self {
        let cluster = RedisCluster::start(options).await.expect("a private Cluster starts");
        Self { cluster: Some(cluster), ..Self::new().await }
    }

    /// A service on these servers, with times that suit a test.
    pub fn service(&self) -> ServiceBuilder {
        self.on_redis(self.service_via(self.redis.port(), self.database.port()))
    }

    /// Names the Sentinels or the Cluster instead of the one server, if there are any.
    pub fn on_redis(&self, process: ServiceBuilder) -> ServiceBuilder {
        if let Some(cluster) = &self.cluster {
            let process = process.env("NOTIFICATION_REDIS_MASTER_ADDR", "");
            return process.env("NOTIFICATION_REDIS_CLUSTER_ADDRS", cluster.addrs());
        }
        let Some(group) = &self.sentinels else { return process };
        process
            .env("NOTIFICATION_REDIS_MASTER_ADDR", "")
            .env("NOTIFICATION_REDIS_SENTINEL_ADDRS", group.addrs())
            .env("NOTIFICATION_REDIS_SENTINEL_MASTER", &group.master)
    }

    /// A service that connects through proxies.
    pub fn service_via(&self, redis_port: u16, postgres_port: u16) -> ServiceBuilder {
        ServiceBuilder::default()
            .env("NOTIFICATION_REDIS_MASTER_ADDR", format!("127.0.0.1:{redis_port}"))
            .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", self.database.dsn_via(postgres_port))
            .env("NOTIFICATION_USER_SERVICE_BASE_URL", self.directory.base_url())
            .env("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0")
            .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "1s")
            .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "2s")
            .env("NOTIFICATION_ROUTE_LEASE_TTL", "2s")
            .env("NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT", "500ms")
            .env("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED", "ops@example.com")
    }

    /// A connection to the server, with Sentinels to the primary, and in a Cluster to the node of the
    /// intents.
    pub async fn redis(&self) -> MultiplexedConnection {
        self.redis_of(INTENTS).await
    }

    /// A connection to the server that has `key`.
    pub async fn redis_of(&self, key: &str) -> MultiplexedConnection {
        let server = match (&self.sentinels, &self.cluster) {
            (Some(group), _) => &group.servers[group.primary().await.expect("a Sentinel responds")],
            (None, Some(cluster)) => {
                let primary =
                    wait_for("the slot has a node", BOUND, async || cluster.primary_of(key).await.ok()?);
                &cluster.nodes[primary.await]
            }
            (None, None) => &self.redis,
        };
        // A busy machine may need long for a whole stream.
        server.connect(BOUND).await.expect("Redis is there")
    }

    /// Sends intents `range`, for two users each: four routes.
    pub async fn send(&self, range: impl IntoIterator<Item = u32>) {
        send_intents(&mut self.redis().await, range).await;
    }

    /// Adds an entry of any kind and returns its id.
    pub async fn add(&self, fields: &[(&[u8], &[u8])]) -> String {
        let fields = fields.iter().copied().collect();
        append_command(INTENTS, &fields).query_async(&mut self.redis().await).await.expect("Redis is there")
    }

    /// Adds the entry of a draft and returns its id.
    pub async fn add_draft(&self, draft: IntentDraft) -> String {
        let fields: RawFields = draft.into_entry();
        append_command(INTENTS, &fields).query_async(&mut self.redis().await).await.expect("Redis is there")
    }

    /// Waits until there are this many records.
    pub async fn accepted(&self, records: i64) {
        wait_for(&format!("{records} records"), BOUND, async || {
            (self.number("SELECT count(*) FROM records").await == records).then_some(())
        })
        .await;
    }

    /// Waits until both checkpoints are at the last entry of the stream, and returns its id.
    pub async fn caught_up(&self) -> String {
        let last = self.last_entry().await;
        wait_for("both checkpoints are at the last entry", BOUND, async || {
            let durable = self.column("SELECT last_entry_id FROM intake").await;
            (durable == [last.clone()] && self.cached_entry_id().await.as_ref() == Some(&last)).then_some(())
        })
        .await;
        last
    }

    /// The first column of every row, as text.
    pub async fn column(&self, sql: &str) -> Vec<String> {
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        rows.iter().map(|row| row.get::<_, String>(0)).collect()
    }

    /// The number in the first column of the only row.
    pub async fn number(&self, sql: &str) -> i64 {
        self.database.client().await.query_one(sql, &[]).await.expect("the query is right").get(0)
    }

    /// Runs a statement, and returns the number of rows that it changed.
    pub async fn execute(&self, sql: &str) -> u64 {
        self.database.client().await.execute(sql, &[]).await.expect("the statement is right")
    }

    /// Waits until `records` intents are accepted and none of their routes is live.
    pub async fn settled(&self, records: i64) {
        let client = self.database.client().await;
        wait_for(&format!("{records} records without a live route"), BOUND, async || {
            let sql = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL)";
            let row = client.query_one(sql, &[]).await.ok()?;
            (row.get::<_, i64>(0) == records && row.get::<_, i64>(1) == 0).then_some(())
        })
        .await;
    }

    /// The ids by which consumers deduplicate, with the stream ids of all entries that carry them.
    pub async fn outbound(&self) -> BTreeMap<String, Vec<String>> {
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (stream, field) in [(PUSH, "event_id"), (MAIL, "delivery_id")] {
            let mut redis = self.redis_of(stream).await;
            let range: StreamRangeReply = redis::cmd("XRANGE")
                .arg(stream)
                .arg("-")
                .arg("+")
                .query_async(&mut redis)
                .await
                .expect("Redis is there");
            for entry in range.ids {
                let id: String = entry.get(field).expect("every entry has its id");
                seen.entry(id).or_default().push(entry.id);
            }
        }
        seen
    }

    /// Checks intents sent by [`World::send`]: nothing is lost, nothing exists twice, and no outage counted
    /// as an attempt.
    pub async fn check(&self, sent: impl IntoIterator<Item = u32>) {
        self.check_sent(sent).await;
        assert_eq!(
            self.number("SELECT count(*) FROM routes WHERE attempt_count > 0").await,
            0,
            "an outage costs no attempt"
        );
        self.check_audit().await;
    }

    /// Checks like [`World::check`] after Redis lost the end of the intents stream: once intake has moved the
    /// checkpoint back, nothing is wrong.
    pub async fn check_after_loss(&self, sent: impl IntoIterator<Item = u32>) {
        self.caught_up().await;
        self.check(sent).await;
    }

    /// Checks that nothing is lost and nothing exists twice, also if routes were sent again.
    pub async fn check_sent(&self, sent: impl IntoIterator<Item = u32>) {
        self.check_keys(sent.into_iter().map(key).collect()).await;
    }

    /// Checks like [`World::check_sent`], given the keys of all intents, of which each has four routes.
    pub async fn check_keys(&self, sent: BTreeSet<String>) {
        let accepted: BTreeSet<String> =
            self.column("SELECT idempotency_key FROM records").await.into_iter().collect();
        assert_eq!(accepted, sent, "every intent is one record");

        let routes = self
            .column("SELECT notification_id || '/' || route_id || '@' || published_entry_id FROM routes WHERE status = 'published'")
            .await;
        let outbound = self.outbound().await;
        let entries: BTreeSet<String> =
            outbound.iter().map(|(id, entries)| format!("{id}@{}", entries.join(" and "))).collect();
        assert_eq!(routes.len(), sent.len() * 4, "every record has all its routes, and each is published");
        assert_eq!(
            routes.into_iter().collect::<BTreeSet<_>>(),
            entries,
            "every published route is in its stream once"
        );
        self.check_tables().await;
    }

    /// Checks the invariants of the tables, which hold for every input.
    pub async fn check_tables(&self) {
        for (what, sql) in [
            (
                "a due time without a live status, or the reverse",
                "SELECT count(*) FROM routes WHERE (status IN ('pending', 'failed')) <> (next_attempt_at IS NOT NULL)",
            ),
            (
                "more attempts than the budget",
                "SELECT count(*) FROM routes WHERE attempt_count > max_attempts",
            ),
            (
                "a dead letter without its row, or the reverse",
                "SELECT count(*) FROM routes FULL JOIN dead_letters USING (notification_id, route_id)
              WHERE (status IS NOT DISTINCT FROM 'dead_letter') <> (final_attempt_count IS NOT NULL)",
            ),
            (
                "a record without routes",
                "SELECT count(*) FROM records WHERE NOT EXISTS
              (SELECT FROM routes WHERE routes.notification_id = records.notification_id)",
            ),
            (
                "a version that did not rise",
                "SELECT count(*) FROM routes WHERE status = 'published' AND updated_at <= created_at",
            ),
        ] {
            assert_eq!(self.number(sql).await, 0, "{what}");
        }
    }

    /// `notification audit --json` on these servers. The events of the tests are months old, and so may be
    /// the first intent of a duplicate: records are kept for longer.
    pub fn audit(&self) -> ServiceBuilder {
        let service = self.service().env("NOTIFICATION_RECORD_RETENTION", AUDIT_RETENTION);
        service.env("NOTIFICATION_MALFORMED_INTENT_RETENTION", AUDIT_RETENTION).arguments(["audit", "--json"])
    }

    /// Checks that the streams and the tables do not contradict each other, and returns the figures.
    pub async fn check_audit(&self) -> serde_json::Value {
        let audit = self.audit().run().await;
        assert_eq!(audit.code, Some(0), "{}{}", audit.stdout, audit.stderr);
        let figures = audit.stdout.lines().last().expect("figures");
        serde_json::from_str(figures).expect("JSON")
    }

    /// The checkpoint cached in Redis, as stored.
    pub async fn cached_checkpoint(&self) -> Option<String> {
        redis::cmd("GET")
            .arg(CACHED_CHECKPOINT)
            .query_async(&mut self.redis().await)
            .await
            .expect("Redis is there")
    }

    /// The entry id of the cached checkpoint.
    pub async fn cached_entry_id(&self) -> Option<String> {
        self.cached_checkpoint().await.map(|mark| mark.split('@').next().unwrap_or_default().to_owned())
    }

    /// The id of the last entry of the intents stream.
    pub async fn last_entry(&self) -> String {
        let last: StreamRangeReply = redis::cmd("XREVRANGE")
            .arg(INTENTS)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1)
            .query_async(&mut self.redis().await)
            .await
            .expect("Redis is there");
        last.ids.first().map(|entry| entry.id.clone()).expect("the stream is not empty")
    }
}

/// Waits until the service has been elected and reads the stream.
pub async fn reads(service: &Service) {
    wait_for("the intake reads", BOUND, async || service.logged("resuming after the checkpoint")).await;
}

/// Waits until `/readyz` shows that intake waits or fails, and returns the response.
pub async fn intake_waits(service: &Service) -> serde_json::Value {
    wait_for("readyz shows what intake waits for", BOUND, async || {
        let (_, body) = service.get("/readyz").await;
        (!body["intake"]["waiting"].is_null()).then(|| body["intake"]["waiting"].clone())
    })
    .await
}

/// The idempotency key of intent `n`.
pub fn key(n: u32) -> String {
    format!("game-1:turn-{n}")
}

/// `XADD` of a well-formed intent.
pub fn intent(n: u32) -> redis::Cmd {
    append_command(INTENTS, &intent_draft(n).into_entry())
}

/// A well-formed intent for two users.
pub fn intent_draft(n: u32) -> IntentDraft {
    turn_ready([format!("u-{}", n % 50), format!("u-{}", n % 50 + 100)], &key(n), n)
}

/// The fields of a well-formed intent.
pub fn intent_fields(n: u32) -> Vec<(&'static str, String)> {
    intent_draft(n).into_fields()
}
