//! The table: its columns, its indexes and the SQL that creates them.

use crate::TableName;

/// The columns and their types as the server writes them.
pub(crate) const COLUMNS: &[(&str, &str)] = &[
    ("event_id", "uuid"),
    ("event_type", "text"),
    ("partition_key", "text"),
    ("payload", "bytea"),
    ("headers", "jsonb"),
    ("status", "text"),
    ("attempts", "integer"),
    ("last_error", "text"),
    ("available_at", "timestamp with time zone"),
    ("locked_by", "text"),
    ("locked_at", "timestamp with time zone"),
    ("delivered_at", "timestamp with time zone"),
    ("created_at", "timestamp with time zone"),
    ("updated_at", "timestamp with time zone"),
];

/// The maximum length of an identifier of PostgreSQL, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// An index of the table.
#[derive(Debug)]
pub(crate) struct TableIndex {
    /// The suffix of its name.
    suffix: &'static str,
    columns: &'static str,
    predicate: &'static str,
    /// Its first columns as the server writes them. Another index that begins with them serves as well.
    pub(crate) needed: &'static [&'static str],
    /// The statuses in its predicate.
    pub(crate) statuses: &'static [&'static str],
}

impl TableIndex {
    /// Orders pending events by their due time.
    const QUEUE: Self = Self {
        suffix: "processing_queue",
        columns: "available_at, created_at, event_id",
        predicate: "status = 'PENDING'",
        needed: &["available_at", "created_at"],
        statuses: &["PENDING"],
    };
    /// Orders the events of a partition key. Uses a hash, because index entries are limited in size and keys
    /// are not.
    pub(crate) const KEY_ORDER: Self = Self {
        suffix: "key_order",
        columns: "hashtextextended(partition_key, 0), status, created_at, event_id",
        predicate: "status IN ('PENDING', 'DELIVERING') AND partition_key <> ''",
        needed: &["hashtextextended(partition_key, 0::bigint)", "status", "created_at", "event_id"],
        statuses: &["PENDING", "DELIVERING"],
    };
    /// Finds expired leases.
    const LEASES: Self = Self {
        suffix: "stuck_leases",
        columns: "locked_at",
        predicate: "status = 'DELIVERING'",
        needed: &["locked_at"],
        statuses: &["DELIVERING"],
    };
    /// Orders DELIVERED events by delivery, for pruning.
    pub(crate) const DELIVERED: Self = Self {
        suffix: "prune_delivered",
        columns: "delivered_at",
        predicate: "status = 'DELIVERED'",
        needed: &["delivered_at"],
        statuses: &["DELIVERED"],
    };
    /// Orders DEAD events by their last change.
    pub(crate) const DEAD: Self = Self {
        suffix: "prune_dead",
        columns: "updated_at",
        predicate: "status = 'DEAD'",
        needed: &["updated_at"],
        statuses: &["DEAD"],
    };

    /// Returns its name, unique among the indexes of all outbox tables of the schema.
    pub(crate) fn name(&self, table: &TableName) -> String {
        derived_name("idx", table, self.suffix)
    }

    pub(crate) fn qualified_name(&self, table: &TableName) -> String {
        let name = self.name(table);
        table.schema().map_or_else(|| format!("\"{name}\""), |schema| format!("\"{schema}\".\"{name}\""))
    }

    /// Returns the statement that creates it.
    pub(crate) fn create(&self, table: &TableName, how: &str) -> String {
        let Self { columns, predicate, .. } = self;
        format!(
            "CREATE INDEX {how}\"{}\" ON {} ({columns}) WHERE {predicate}",
            self.name(table),
            table.quoted()
        )
    }
}

/// All indexes of the table.
pub(crate) const INDEXES: &[TableIndex] =
    &[TableIndex::QUEUE, TableIndex::KEY_ORDER, TableIndex::LEASES, TableIndex::DELIVERED, TableIndex::DEAD];

/// Returns `<prefix>_<table>_<suffix>`. The default table is called `openoutbox` there, and a name that is
/// too long ends in its own hash.
fn derived_name(prefix: &str, table: &TableName, suffix: &str) -> String {
    let default = TableName::default();
    if table.table() == default.table() {
        return format!("{prefix}_openoutbox_{suffix}");
    }
    // The two underscores prevent a clash with another table's name and suffix, and with the default table's.
    let whole = format!("{prefix}__{}__{suffix}", table.table());
    if whole.len() <= MAX_IDENTIFIER_BYTES {
        return whole;
    }
    let hash = format!("{:016x}", fnv1a(table.table()));
    let rest = MAX_IDENTIFIER_BYTES - prefix.len() - "__".len() * 3 - hash.len() - suffix.len();
    format!("{prefix}__{}__{hash}__{suffix}", &table.table()[..rest])
}

/// Computes FNV-1a, which is the same on every machine and in every version.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the SQL that creates the table and its indexes if they do not exist, for the caller's migration.
/// It never drops anything. If all exist it only reads the catalog, so it waits for no transaction.
pub fn schema_sql(table: &TableName) -> String {
    let quoted = table.quoted();
    let comments: String = COMMENTS
        .iter()
        .map(|(name, text)| format!("        COMMENT ON COLUMN {quoted}.{name} IS '{text}';\n"))
        .collect();
    let indexes: String = INDEXES.iter().map(|index| create_if_missing(table, index)).collect();
    format!(
        "DO $migration$
BEGIN
    IF to_regclass('{quoted}') IS NULL THEN
        CREATE TABLE IF NOT EXISTS {quoted} (
            event_id      uuid        PRIMARY KEY,
            event_type    text        NOT NULL,
            partition_key text,
            payload       bytea       NOT NULL,
            headers       jsonb       NOT NULL DEFAULT '{{}}',
            status        text        NOT NULL DEFAULT 'PENDING'
                CHECK (status IN ('PENDING', 'DELIVERING', 'DELIVERED', 'DEAD')),
            attempts      integer     NOT NULL DEFAULT 0,
            last_error    text,
            available_at  timestamptz NOT NULL DEFAULT now(),
            locked_by     text,
            locked_at     timestamptz,
            delivered_at  timestamptz,
            created_at    timestamptz NOT NULL DEFAULT now(),
            updated_at    timestamptz NOT NULL DEFAULT now()
        );
        COMMENT ON TABLE {quoted} IS 'Events that are published once their transaction has committed.';
{comments}    END IF;
{indexes}END
$migration$;
"
    )
}

/// Checks the catalog first, because `IF NOT EXISTS` would lock the table before its check.
fn create_if_missing(table: &TableName, index: &TableIndex) -> String {
    format!(
        "    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                   WHERE i.indrelid = to_regclass('{}') AND c.relname = '{}') THEN
        {};
    END IF;
",
        table.quoted(),
        index.name(table),
        index.create(table, "IF NOT EXISTS "),
    )
}

const COMMENTS: &[(&str, &str)] = &[
    ("event_id", "Identifies the event; markers and consumers recognise it by this id."),
    ("event_type", "The kind of event, or the stream where it goes."),
    ("partition_key", "Events with the same key are published in order; none or empty: in any order."),
    ("payload", "What is published."),
    ("headers", "A JSON object of strings."),
    ("status", "PENDING, DELIVERING while a relay holds it, DELIVERED, DEAD."),
    ("attempts", "How often it has failed."),
    ("last_error", "Why it failed the last time."),
    ("available_at", "It is not published before this time."),
    ("locked_by", "The relay that holds it and the claim under which it does."),
    ("locked_at", "When it was claimed."),
    ("delivered_at", "When it was marked as published."),
    ("created_at", "The order within a partition key."),
    ("updated_at", "When the row was changed the last time."),
];

/// The name of a `NOTIFY` channel: 1 to 63 bytes, case-sensitive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChannelName(String);

/// The text is not a channel name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name of a channel takes 1 to 63 bytes without control characters")]
pub struct ChannelNameError;

impl ChannelName {
    /// Parses the text.
    pub fn parse(text: &str) -> Result<Self, ChannelNameError> {
        let valid = (1..=pg::MAX_CHANNEL_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        if valid { Ok(Self(text.to_owned())) } else { Err(ChannelNameError) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the SQL of a trigger that announces inserts into the table on `channel`, once for each statement.
/// Running it again with another channel changes the channel; if the trigger exists, the table is not locked.
pub fn notify_sql(table: &TableName, channel: &ChannelName) -> String {
    let quoted = table.quoted();
    let name = derived_name("trg", table, "notify");
    let function =
        table.schema().map_or_else(|| format!("\"{name}\""), |schema| format!("\"{schema}\".\"{name}\""));
    let channel = channel.as_str().replace('\'', "''");
    // The body is quoted with single quotes: a dollar-quoted body would end at a channel that contains its
    // delimiter.
    let body =
        format!("BEGIN PERFORM pg_catalog.pg_notify('{channel}', ''); RETURN NULL; END").replace('\'', "''");
    format!(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS '{body}';
DO $migration$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('{quoted}') AND tgname = '{name}') THEN
        CREATE TRIGGER \"{name}\" AFTER INSERT ON {quoted} FOR EACH STATEMENT EXECUTE FUNCTION {function}();
    END IF;
END
$migration$;
"
    )
}
