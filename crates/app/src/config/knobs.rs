//! Every variable of the service, with its default, its values and its purpose.
//!
//! This is the only list: the reader uses its defaults and bounds, the check for unknown names compares with
//! it, `check-config` prints in its order, and docs/config.md is generated from it.

use std::time::Duration;

use idempotency::{MAX_LOCK_TTL, MAX_RETENTION_TTL};

use super::checks::{check_base_url, check_socket, check_stream_name};
use super::knob::{Knob, Takes};

/// Retired names, and the replacement of each.
pub const RETIRED: &[(&str, &str)] = &[
    ("NOTIFICATION_REDIS_ADDR", "set NOTIFICATION_REDIS_MASTER_ADDR instead"),
    ("NOTIFICATION_REDIS_USERNAME", "the default user is used, with NOTIFICATION_REDIS_PASSWORD; remove it"),
    (
        "NOTIFICATION_REDIS_TLS_ENABLED",
        "write NOTIFICATION_REDIS_MASTER_ADDR=rediss://host:port for TLS and remove it",
    ),
    ("NOTIFICATION_RECORD_TTL", "set NOTIFICATION_RECORD_RETENTION instead"),
    (
        "NOTIFICATION_DEAD_LETTER_TTL",
        "dead letters go with their record: set NOTIFICATION_RECORD_RETENTION instead, and NOTIFICATION_MALFORMED_INTENT_RETENTION for malformed intents",
    ),
    (
        "NOTIFICATION_METRICS_PROMETHEUS",
        "/metrics is always served, and costs nothing until it is scraped; OTEL_SDK_DISABLED=true turns all telemetry off; remove it",
    ),
];

/// The prefix of the variables that name the administrators of a notification type.
pub const ADMIN_EMAILS_PREFIX: &str = "NOTIFICATION_ADMIN_EMAILS_";

/// The section of the administrators' variables.
pub const AUDIENCE: &str = "Catalogue and audience";

/// The section of the relay.
pub const OUTBOX: &str = "Outbox relay";

/// The section of the state store.
pub const STATE: &str = "State store";

const MS: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const WEEK: Duration = Duration::from_hours(168);
const TEN_YEARS: Duration = Duration::from_hours(87_600);

/// The limit of a blocking read. Between two reads, intake checks whether PostgreSQL was restored to an older
/// state; docs/operations.md promises this check within 15 s.
const READ_BLOCK_MAX: Duration = Duration::from_secs(5);

const REDIS_ADDR: Takes = Takes::Text("host:port, or rediss://host:port for TLS");
const REDIS_ADDRS: Takes = Takes::Text("host:port or rediss://host:port, several separated by commas");
const DSN: Takes = Takes::Text("postgres://user:password@host:port/database?search_path=schema");
const DSNS: Takes = Takes::Text("postgres://… connection strings, separated by commas");
const STREAM: Takes = Takes::Checked(
    "the name of a stream: 1 to 255 bytes without white space, not one of the service's own keys",
    check_stream_name,
);
const REPLICA_ID: Takes = Takes::Text("1 to 64 letters, digits, dots, underscores and hyphens of ASCII");
const MAXLEN: Takes = Takes::Number(0, 1_000_000_000_000);
const ATTEMPTS: Takes = Takes::Number(1, 100);
const BATCH: Takes = Takes::Number(1, 4096);
const PROTOCOL: Takes = Takes::Word(&["grpc", "http/protobuf"]);
const EXPORTER: Takes = Takes::Word(&["none", "otlp"]);
const LISTEN: Takes = Takes::Text("host:port, or :port for every interface; port 0 picks a free one");
const FILE: Takes = Takes::Text("the path of a file");
const BODY_BYTES: Takes = Takes::Number(1024, 1 << 28);
const TABLE: Takes = Takes::Text(
    "[schema.]name, each of a to z, 0 to 9 and _, not beginning with a digit, and at most 63 long",
);
const CHANNEL: Takes = Takes::Text("the name of a NOTIFY channel: 1 to 63 bytes");
const COLLECTOR: Takes = Takes::Text("an http:// or https:// URL");

const fn optional(default: &'static str, takes: Takes, what: &'static str) -> Knob {
    Knob { name: "", section: "", default, required: false, secret: false, takes, what }
}

const fn required(takes: Takes, what: &'static str) -> Knob {
    Knob { required: true, ..optional("", takes, what) }
}

const fn time(default: &'static str, min: Duration, max: Duration, what: &'static str) -> Knob {
    optional(default, Takes::Duration(min, max), what)
}

const fn secret(knob: Knob) -> Knob {
    Knob { secret: true, ..knob }
}

/// Declares a constant for each variable, and the list of all of them.
macro_rules! knobs {
    ($($section:expr => { $($name:ident = $knob:expr;)* })*) => {
        $($(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub const $name: Knob = Knob { name: stringify!($name), section: $section, ..$knob };
        )*)*

        /// Every variable, section by section.
        pub const KNOBS: &[Knob] = &[$($($name),*),*];
    };
}

knobs! {
    "Redis" => {
        NOTIFICATION_REDIS_MASTER_ADDR = optional("", REDIS_ADDR,
            "The Redis with the streams, the leases and the cached checkpoint, if it is one server. One of this, NOTIFICATION_REDIS_SENTINEL_ADDRS and NOTIFICATION_REDIS_CLUSTER_ADDRS is required.");
        NOTIFICATION_REDIS_SENTINEL_ADDRS = optional("", REDIS_ADDRS,
            "The Sentinels that say which server is the primary. With rediss:// the Sentinels and the servers use TLS.");
        NOTIFICATION_REDIS_SENTINEL_MASTER = optional("", Takes::Text("the name of a primary in the configuration of the Sentinels"),
            "The name under which the Sentinels know the primary.");
        NOTIFICATION_REDIS_SENTINEL_PASSWORD = secret(optional("", Takes::Text("a password"),
            "The password of the Sentinels' default user; empty for none. That of the servers is NOTIFICATION_REDIS_PASSWORD."));
        NOTIFICATION_REDIS_CLUSTER_ADDRS = optional("", REDIS_ADDRS,
            "Nodes of a Redis Cluster, from which the others are found. With rediss:// all nodes use TLS.");
        NOTIFICATION_REDIS_PASSWORD = secret(optional("", Takes::Text("a password"),
            "The password of the default user; empty for none."));
        NOTIFICATION_REDIS_DB = optional("0", Takes::Number(0, 1023),
            "The number of the logical database; 0 with a Cluster.");
        NOTIFICATION_REDIS_REPLICA_ADDRS = optional("", REDIS_ADDRS,
            "The replicas. Nothing is read from them; a start warns if they are not those that the primary knows.");
        NOTIFICATION_REDIS_OPERATION_TIMEOUT = time("1s", MS, MINUTE,
            "How long one call to Redis may take.");
    }
    "PostgreSQL" => {
        NOTIFICATION_POSTGRES_PRIMARY_DSN = secret(required(DSN,
            "The authoritative database; search_path picks the schema. The role owns the schema, or has what `notification migrate --print-grants` prints. Without sslmode=verify-full the connection is plain text."));
        NOTIFICATION_POSTGRES_MAX_OPEN_CONNS = optional("16", Takes::Number(7, 1000),
            "The most connections that one replica of the service opens.");
        NOTIFICATION_POSTGRES_OPERATION_TIMEOUT = time("5s", MS, Duration::from_mins(10),
            "How long one statement or transaction may take.");
        NOTIFICATION_POSTGRES_REPLICA_DSNS = secret(optional("", DSNS,
            "Streaming standbys of the primary. Lists, searches, the console, audit and status read from them."));
        NOTIFICATION_POSTGRES_REPLICA_MAX_LAG = time("10s", MS, HOUR,
            "A replica that is further behind the primary is passed over, and the primary serves its reads.");
    }
    "Internal HTTP" => {
        NOTIFICATION_INTERNAL_HTTP_ADDR = optional(":8092", LISTEN,
            "Where /healthz, /readyz and /metrics are served, and /stats with a relay.");
        NOTIFICATION_INTERNAL_HTTP_READ_HEADER_TIMEOUT = time("2s", MS, HOUR,
            "How long the head of a request may take to arrive.");
        NOTIFICATION_INTERNAL_HTTP_READ_TIMEOUT = time("10s", MS, HOUR,
            "How long a whole request may take, from its first byte to its answer.");
        NOTIFICATION_INTERNAL_HTTP_IDLE_TIMEOUT = time("1m", MS, HOUR,
            "How long a connection is kept open between two requests.");
    }
    "HTTP API" => {
        NOTIFICATION_API_HTTP_ADDR = optional("", LISTEN,
            "Where the HTTP API is served; off if empty. Not the address of NOTIFICATION_INTERNAL_HTTP_ADDR.");
        NOTIFICATION_API_TLS_CERT_FILE = optional("", FILE,
            "The certificate chain in PEM, the server's first. With it the API speaks HTTP/2 and HTTP/1.1 by TLS, without it plain HTTP/1.1. A change is in force within 10 s.");
        NOTIFICATION_API_TLS_KEY_FILE = optional("", FILE,
            "The private key of that certificate in PEM, not encrypted. A pair that does not match is refused, and the old one stays.");
        NOTIFICATION_API_TOKENS_FILE = optional("", FILE,
            "The tokens that clients may use, in TOML; `notification token new` makes an entry. Required with NOTIFICATION_API_HTTP_ADDR; may be empty. A change is in force within 10 s; a file that is wrong is refused, and the old tokens stay.");
        NOTIFICATION_API_MAX_BODY_BYTES = optional("1048576", BODY_BYTES,
            "The largest request body, in bytes, but for batches.");
        NOTIFICATION_API_MAX_BATCH_BODY_BYTES = optional("8388608", BODY_BYTES,
            "The largest body of a batch of intents, in bytes.");
        NOTIFICATION_API_MAX_CONNECTIONS = optional("1024", Takes::Number(1, 65_536),
            "The most connections, and the most requests in progress. When there is no room, idle connections are closed; further ones wait in the backlog of the operating system.");
        NOTIFICATION_API_MAX_BUFFERED_BYTES = optional("67108864", Takes::Number(1 << 16, 1 << 34),
            "What request bodies and answers may occupy together, in bytes; beyond it reading pauses. At least twice the largest body. Bodies of one token have a quarter, clients without a token a sixteenth besides.");
        NOTIFICATION_API_DRAIN_DELAY = time("0s", Duration::ZERO, HOUR,
            "How long connections are still accepted after the stop, while /readyz answers 503 already, for a load balancer to notice.");
        NOTIFICATION_API_REQUEST_TIMEOUT = time("10s", MS, HOUR,
            "How long a request may take, from its first byte to its answer: 408 if the client was late, else 503.");
        NOTIFICATION_API_RATE_LIMIT = optional("0", Takes::Number(0, 1_000_000),
            "The intents a second of one token on one replica, with bursts of one second; any other request counts as one, a batch as all of its intents; 0 for no limit.");
        NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL = time("60s", MS, MAX_LOCK_TTL,
            "How long an idempotency key stays with a request whose replica died. An operator's change of dead letters may take 10 s less than that, \
             even if its request was answered before.");
        NOTIFICATION_API_QUERY_TIMEOUT = time("2s", MS, MINUTE,
            "How long an operator's query may take in PostgreSQL; a search that takes longer is answered with 422.");
        NOTIFICATION_API_TRUSTED_PROXIES = optional("", Takes::Text("networks such as 10.0.0.0/8, or addresses, separated by commas"),
            "The proxies in front of the API. Only from these do X-Forwarded-For and X-Forwarded-Proto count, which the console needs: the one to count attempts to sign in, the other for its cookie.");
        NOTIFICATION_CONSOLE = optional("off", Takes::Word(&["off", "on"]),
            "on: the operators' console is served below /console/ on the API's listener. Needs NOTIFICATION_API_HTTP_ADDR.");
    }
    "Intake" => {
        NOTIFICATION_INTENTS_STREAM = optional("notification:intents", STREAM,
            "The stream that producers append intents to.");
        NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT = time("2s", MS, READ_BLOCK_MAX,
            "How long a read waits for the next intent before it asks again.");
        NOTIFICATION_INTENTS_BATCH_SIZE = optional("512", BATCH,
            "The most entries that one transaction accepts. How many are read at once depends on their size.");
        NOTIFICATION_INTENTS_STREAM_RETENTION = time("0", Duration::ZERO, TEN_YEARS,
            "How long entries that have their outcome stay on the stream; what is older is trimmed. 0 trims nothing.");
        NOTIFICATION_IDEMPOTENCY_TTL = time("168h", MS, MAX_RETENTION_TTL,
            "How long a producer's idempotency key is promised to be remembered.");
    }
    "Outbound streams" => {
        NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM = optional("gateway:client-events", STREAM,
            "The stream that push routes are published to.");
        NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM_MAXLEN = optional("0", MAXLEN,
            "About how many entries that stream keeps; 0 keeps all.");
        NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM = optional("mail:delivery_commands", STREAM,
            "The stream that e-mail routes are published to.");
        NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM_MAXLEN = optional("0", MAXLEN,
            "About how many entries that stream keeps; 0 keeps all.");
    }
    "Routes" => {
        NOTIFICATION_PUSH_MAX_ATTEMPTS = optional("3", ATTEMPTS,
            "How many attempts a push route has before it is a dead letter.");
        NOTIFICATION_EMAIL_MAX_ATTEMPTS = optional("7", ATTEMPTS,
            "How many attempts an e-mail route has before it is a dead letter.");
        NOTIFICATION_ROUTE_BACKOFF_MIN = time("1s", MS, WEEK,
            "The delay after the first failed attempt; it doubles with each further one.");
        NOTIFICATION_ROUTE_BACKOFF_MAX = time("5m", MS, WEEK,
            "The longest delay between two attempts.");
        NOTIFICATION_ROUTE_LEASE_TTL = time("5s", MS, HOUR,
            "How long a route waits for another replica if the one that publishes it crashes.");
    }
    "Publishing" => {
        NOTIFICATION_PUBLISH_BATCH_SIZE = optional("512", BATCH,
            "The most routes that are taken up at once.");
        NOTIFICATION_PUBLISH_POLL_INTERVAL = time("100ms", MS, MINUTE,
            "The pause between two due scans while routes are due.");
        NOTIFICATION_PUBLISH_DEDUPE_TTL = time("2m", MS, WEEK,
            "How long a publication whose completion was lost is still recognised, and not repeated.");
        NOTIFICATION_REPUBLISH_WINDOW = time("10m", Duration::ZERO, WEEK,
            "After Redis restarted or failed over, what was published this long before is compared with the outbound streams, and entries that Redis lost are appended again; a relay makes the events that it lost PENDING. 0: off.");
    }
    OUTBOX => {
        NOTIFICATION_OUTBOX_DSN = secret(optional("", DSN,
            "The producer's database. `relay` and `outbox` need it; beside `serve` it runs a relay inside the service, and without it no other variable of this section has an effect there."));
        NOTIFICATION_OUTBOX_TABLE = optional("openoutbox_events", TABLE,
            "The outbox table. Without a schema, search_path of the connection string picks it.");
        NOTIFICATION_OUTBOX_MODE = optional("intents", Takes::Word(&["intents", "streams"]),
            "intents: events become intents on NOTIFICATION_INTENTS_STREAM. streams: an event goes to the stream that its type names.");
        NOTIFICATION_OUTBOX_PRODUCER = optional("", Takes::Text("a producer of the catalogue"),
            "The producer of the intents. Required in mode intents; never taken from a row.");
        NOTIFICATION_OUTBOX_TYPES = optional("", Takes::Text("notification types, separated by commas"),
            "The event types that this relay carries; it leaves the others to another relay. If empty, it takes all. Only in mode intents.");
        NOTIFICATION_OUTBOX_STREAMS = optional("", Takes::Checked("names of streams, separated by commas, none of them one of the service's own keys", check_stream_name),
            "The streams that events may go to. Required in mode streams.");
        NOTIFICATION_OUTBOX_RELAY_ID = optional("", REPLICA_ID,
            "The name of this relay, in the log, in telemetry and in locked_by of the rows that it claims; if empty, the host name and four hex digits.");
        NOTIFICATION_OUTBOX_BATCH_SIZE = optional("500", BATCH,
            "The most events that one claim takes.");
        NOTIFICATION_OUTBOX_POLL_INTERVAL = time("500ms", MS, MINUTE,
            "The pause between two looks at an outbox in which nothing is due. While LISTEN works, it is at least 5s.");
        NOTIFICATION_OUTBOX_LEASE_TIMEOUT = time("1m", MS, DAY,
            "How long a claim lasts: after a crash of its relay, the events wait that long.");
        NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS = optional("25", Takes::Number(1, 1000),
            "The failed attempt after which an event is DEAD.");
        NOTIFICATION_OUTBOX_RETRY_BASE_DELAY = time("1s", MS, WEEK,
            "The delay after the first failed attempt; it doubles with each further one.");
        NOTIFICATION_OUTBOX_RETRY_MAX_DELAY = time("24h", MS, WEEK,
            "The longest delay between two attempts.");
        NOTIFICATION_OUTBOX_RETRY_JITTER = optional("0.15", Takes::Text("a number from 0 to 1"),
            "The largest part of a delay that is added at random.");
        NOTIFICATION_OUTBOX_LISTEN_CHANNEL = optional("", CHANNEL,
            "The channel that wakes the relay, on which `notification outbox migrate --with-notify <channel>` announces inserts. If empty, the relay polls alone.");
    }
    STATE => {
        STATE_PROXY_PG_URL = secret(required(DSN,
            "The database with the documents. The role owns the table, may create it in the first schema of search_path, or has what `notification migrate --print-grants --for state` prints."));
        CONNECTOR_SOCKET = optional("", Takes::Checked("the path of a Unix socket, at most 107 bytes", check_socket),
            "The socket to serve. A stale file is replaced; one that a living process serves is not. This variable or STATE_PROXY_HTTP_ADDR is required, or both.");
        STATE_PROXY_SOCKET_MODE = optional("0660", Takes::Text("three or four octal digits, at most 0777"),
            "The permissions of the socket: who may connect.");
        STATE_PROXY_HTTP_ADDR = optional("", LISTEN,
            "Where to listen on TCP; off if empty.");
        STATE_PROXY_METRICS_ADDR = optional("", LISTEN,
            "Where /metrics is served for Prometheus, with /healthz and /readyz of the process; off if empty.");
        STATE_PROXY_TOKENS_FILE = optional("", FILE,
            "The tokens for TCP, of which the entries with prefixes count. Required unless STATE_PROXY_HTTP_ADDR is loopback. A change is in force within 10 s; a wrong file is refused, and the old one stays.");
        STATE_PROXY_TABLE = optional("kv", Takes::Text("a lower-case letter or _, then up to 40 lower-case letters, digits and _"),
            "The table. It is created if it is not there.");
        STATE_PROXY_PG_INDEXES = optional("", Takes::Text("items separated by commas, each a field or (field)::type; a type is text, numeric, int, bigint, boolean, timestamptz or date"),
            "Indexes for queries, built at the start, while others may write.");
        STATE_PROXY_MAX_BODY_BYTES = optional("10485760", BODY_BYTES,
            "The largest request body. A document has at most half as many bytes more, as PostgreSQL writes it.");
        STATE_PROXY_STATEMENT_TIMEOUT = time("5s", MS, Duration::from_mins(10),
            "How long one statement may take. While PostgreSQL is unavailable, an answer comes at most a second later.");
    }
    "Retention" => {
        NOTIFICATION_RECORD_RETENTION = time("720h", MS, TEN_YEARS,
            "How long a record is kept, with its routes and dead letters.");
        NOTIFICATION_MALFORMED_INTENT_RETENTION = time("720h", MS, TEN_YEARS,
            "How long a malformed intent is kept.");
        NOTIFICATION_OPERATOR_ACTION_RETENTION = time("8760h", MS, TEN_YEARS,
            "How long a row of operator_actions is kept.");
        NOTIFICATION_CLEANUP_INTERVAL = time("1h", MS, WEEK,
            "The pause between two retention passes.");
    }
    "User directory" => {
        NOTIFICATION_USER_DIRECTORY = optional("http", Takes::Word(&["http", "state"]),
            "http: users are asked for at NOTIFICATION_USER_SERVICE_BASE_URL. state: they are documents in the table kv of the service's schema, which `notification users` imports.");
        NOTIFICATION_USER_SERVICE_BASE_URL = optional("", Takes::Checked("an http:// or https:// URL without credentials, query or fragment", check_base_url),
            "The user directory; /api/v1/internal/users/{user_id} is added to it. Required unless NOTIFICATION_USER_DIRECTORY is state, and without effect then.");
        NOTIFICATION_USER_SERVICE_TIMEOUT = time("1s", MS, MINUTE,
            "How long the look-up of one user may take.");
    }
    AUDIENCE => {
        NOTIFICATION_CATALOG_PATH = optional("", Takes::Text("the path of a TOML file"),
            "The catalogue of notification types; the built-in one if empty.");
        NOTIFICATION_LOCALES = optional("en", Takes::Text("language tags such as en or pt-BR, separated by commas"),
            "The languages that templates exist in. Case is ignored.");
    }
    "Process" => {
        NOTIFICATION_SHUTDOWN_TIMEOUT = time("30s", MS, HOUR,
            "How long a stop may take before the process ends without waiting any longer.");
        NOTIFICATION_REPLICA_ID = optional("", REPLICA_ID,
            "The name of this replica in the log, in /readyz and, as service.instance.id, in telemetry; if empty, the host name and four hex digits.");
        NOTIFICATION_LOG_LEVEL = optional("info", Takes::Word(&["error", "warn", "info", "debug", "trace"]),
            "The least severe level that is logged.");
        NOTIFICATION_LOG_FORMAT = optional("json", Takes::Word(&["json", "text"]),
            "How a log line looks.");
    }
    "OpenTelemetry" => {
        OTEL_SDK_DISABLED = optional("false", Takes::Word(&["false", "true"]),
            "true exports nothing, whatever the other variables say.");
        OTEL_SERVICE_NAME = optional("", Takes::Text("a name"),
            "The service name of all telemetry; if empty, service.name of OTEL_RESOURCE_ATTRIBUTES, else notification.");
        OTEL_TRACES_EXPORTER = optional("none", EXPORTER, "Where traces go.");
        OTEL_TRACES_SAMPLER = optional("parentbased_always_on", Takes::Word(&["always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"]),
            "Which traces are recorded. With parentbased_, a trace that a producer began is recorded if the producer records it; the rest is for traces that begin here.");
        OTEL_TRACES_SAMPLER_ARG = optional("1", Takes::Text("a number from 0 to 1"),
            "The share of traces that traceidratio and parentbased_traceidratio record.");
        OTEL_METRICS_EXPORTER = optional("none", EXPORTER, "Where metrics go.");
        OTEL_EXPORTER_OTLP_PROTOCOL = optional("http/protobuf", PROTOCOL,
            "The protocol of the collector.");
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = optional("", PROTOCOL,
            "The same for traces alone.");
        OTEL_EXPORTER_OTLP_METRICS_PROTOCOL = optional("", PROTOCOL,
            "The same for metrics alone.");
        OTEL_EXPORTER_OTLP_ENDPOINT = optional("", COLLECTOR,
            "The collector; if empty, http://localhost:4317 for grpc and http://localhost:4318 for http/protobuf. The latter adds /v1/traces and /v1/metrics.");
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = optional("", COLLECTOR,
            "The whole URL for traces alone; nothing is added.");
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT = optional("", COLLECTOR,
            "The whole URL for metrics alone; nothing is added.");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_is_listed_twice_or_both_known_and_retired() {
        let names: Vec<&str> =
            KNOBS.iter().map(|knob| knob.name).chain(RETIRED.iter().map(|(name, _)| *name)).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn what_is_required_has_no_default() {
        for knob in KNOBS.iter().filter(|knob| knob.required) {
            assert_eq!(knob.default, "", "{}", knob.name);
        }
    }
}
