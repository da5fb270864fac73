//! The table: its columns, its indexes and the SQL that creates them.

use crate::TableName;

/// The columns and their types, as the server writes them.
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

/// The longest identifier of PostgreSQL, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// An index of the table.
#[derive(Debug)]
pub(crate) struct Index {
    /// The end of its name.
    suffix: &'static str,
    columns: &'static str,
    predicate: &'static str,
    /// Its first columns, as the server writes them: another index that begins with them serves as well.
    pub(crate) needed: &'static [&'static str],
    /// The statuses that its predicate names.
    pub(crate) statuses: &'static [&'static str],
}

impl Index {
    /// What is due next.
    const QUEUE: Self = Self {
        suffix: "processing_queue",
        columns: "available_at, created_at, event_id",
        predicate: "status = 'PENDING'",
        needed: &["available_at", "created_at"],
        statuses: &["PENDING"],
    };
    /// The events of a partition key in their order. A hash, because an entry of an index has a largest size,
    /// and a key has none.
    pub(crate) const KEY_ORDER: Self = Self {
        suffix: "key_order",
        columns: "hashtextextended(partition_key, 0), status, created_at, event_id",
        predicate: "status IN ('PENDING', 'DELIVERING') AND partition_key <> ''",
        needed: &["hashtextextended(partition_key, 0::bigint)", "status", "created_at", "event_id"],
        statuses: &["PENDING", "DELIVERING"],
    };
    /// Leases that are over.
    const LEASES: Self = Self {
        suffix: "stuck_leases",
        columns: "locked_at",
        predicate: "status = 'DELIVERING'",
        needed: &["locked_at"],
        statuses: &["DELIVERING"],
    };
    /// What can be pruned.
    pub(crate) const DELIVERED: Self = Self {
        suffix: "prune_delivered",
        columns: "delivered_at",
        predicate: "status = 'DELIVERED'",
        needed: &["delivered_at"],
        statuses: &["DELIVERED"],
    };
    /// What is dead.
    pub(crate) const DEAD: Self = Self {
        suffix: "prune_dead",
        columns: "updated_at",
        predicate: "status = 'DEAD'",
        needed: &["updated_at"],
        statuses: &["DEAD"],
    };

    /// Its name, unlike that of any other index of a table of the same schema.
    pub(crate) fn name(&self, table: &TableName) -> String {
        derived_name("idx", table, self.suffix)
    }

    pub(crate) fn qualified_name(&self, table: &TableName) -> String {
        let name = self.name(table);
        table.schema().map_or_else(|| format!("\"{name}\""), |schema| format!("\"{schema}\".\"{name}\""))
    }

    /// The statement that creates it.
    pub(crate) fn create(&self, table: &TableName, how: &str) -> String {
        let Self { columns, predicate, .. } = self;
        format!(
            "CREATE INDEX {how}\"{}\" ON {} ({columns}) WHERE {predicate}",
            self.name(table),
            table.quoted()
        )
    }
}

/// All of them.
pub(crate) const INDEXES: &[Index] =
    &[Index::QUEUE, Index::KEY_ORDER, Index::LEASES, Index::DELIVERED, Index::DEAD];

/// `<prefix>_<table>_<suffix>`, where the default table is called `openoutbox`, and a name that does not fit
/// ends in a hash of itself.
fn derived_name(prefix: &str, table: &TableName, suffix: &str) -> String {
    let default = TableName::default();
    if table.table() == default.table() {
        return format!("{prefix}_openoutbox_{suffix}");
    }
    // With two underscores no table's name is taken for another's with the suffix of another index, nor for
    // the default table's.
    let whole = format!("{prefix}__{}__{suffix}", table.table());
    if whole.len() <= MAX_IDENTIFIER_BYTES {
        return whole;
    }
    let hash = format!("{:016x}", fnv1a(table.table()));
    let rest = MAX_IDENTIFIER_BYTES - prefix.len() - "__".len() * 3 - hash.len() - suffix.len();
    format!("{prefix}__{}__{hash}__{suffix}", &table.table()[..rest])
}

/// FNV-1a, which is the same on every machine and in every version.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The SQL that creates the table and its indexes where they do not exist, for a migration of the caller. It
/// never drops anything. Where all exist it only reads the catalogue, and so waits for no transaction.
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

/// `IF NOT EXISTS` would lock the table before it looks.
fn create_if_missing(table: &TableName, index: &Index) -> String {
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
    ("event_id", "Identifies the event; receipts and consumers recognise it by this id."),
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

/// The name of a channel of `NOTIFY`: 1 to 63 bytes, whose case counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChannelName(String);

/// The text is not the name of a channel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name of a channel takes 1 to 63 bytes without control characters")]
pub struct ChannelNameError;

impl ChannelName {
    /// The name that the text holds.
    pub fn parse(text: &str) -> Result<Self, ChannelNameError> {
        let valid = (1..=pg::MAX_CHANNEL_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        if valid { Ok(Self(text.to_owned())) } else { Err(ChannelNameError) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The SQL of a trigger that announces inserts into the table on `channel`, once for each statement. Run
/// again with another channel it changes the channel; where the trigger exists it does not lock the table.
pub fn notify_sql(table: &TableName, channel: &ChannelName) -> String {
    let quoted = table.quoted();
    let name = derived_name("trg", table, "notify");
    let function =
        table.schema().map_or_else(|| format!("\"{name}\""), |schema| format!("\"{schema}\".\"{name}\""));
    let channel = channel.as_str().replace('\'', "''");
    // A dollar-quoted body would end at a channel that holds its delimiter.
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
