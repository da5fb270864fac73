//! The SQL of documents, built and not run. Each text is the same for every key and value, so that it is
//! prepared once per connection. Each statement reaches its rows by an index on the key, whatever the table's
//! statistics are.
//!
//! A write draws its version after it holds the row: the update of a conflict draws it when the row is
//! locked, and an update that waited for another one is computed again. So the versions of a row rise in the
//! order of its writes.

use pg::bind;
use pg::sql::Written;

use sea_query::{Alias, Expr, Query as Statement, SelectStatement};

use crate::query::{Query, compile};
use crate::schema::{higher_version, next_version};
use crate::{
    Key, MAX_ANSWER_BYTES, Prefix, StateError, TableName, Value, Version, VersionCondition, WriteConditions,
};

/// The planner settings that these statements need: each row is reached by an index, with a plan that does
/// not depend on statistics, which are taken while the table is nearly empty. Queries use
/// [`crate::QUERY_PARAMETERS`].
pub const PLANNER_PARAMETERS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// Begins the transaction of a query with two statements, which see the same rows.
pub(crate) const SNAPSHOT_BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The columns of a document `d`, with the names under which they are read. The value is text, which keeps
/// its digits.
pub(crate) const DOCUMENT: &str = "d.key, d.value::text AS value, d.version, d.created_at, d.updated_at";

/// The member `status` of a document `d` if it is a string.
const STATUS: &str = "CASE jsonb_typeof(d.value -> 'status') WHEN 'string' THEN d.value ->> 'status' END";

/// The update time of a row `d` that is written again: strictly later than before. The current time if an
/// infinite time, or one beyond 9999-12-30, was written there by hand.
const UPDATED_AT: &str = "GREATEST(clock_timestamp(), \
     CASE WHEN d.updated_at < '9999-12-31' THEN d.updated_at + interval '1 microsecond' END)";

/// The columns of a row whose value was converted to the text `text`: the text only if it has at most `most`
/// bytes.
fn up_to(most: &str) -> String {
    format!(
        "key, CASE WHEN octet_length(text) <= {most} THEN text END AS value, octet_length(text)::bigint AS bytes, version, \
         created_at, updated_at"
    )
}

fn bytes(number: usize) -> Expr {
    bind::bigint(i64::try_from(number).unwrap_or(i64::MAX))
}

/// One document, without its value if that has more than `most` bytes. A sub-query with a limit converts the
/// value to text once. Plan: the index on the key by equality.
pub(crate) fn get(table: &TableName, key: &Key, most: usize) -> Written {
    let text = format!(
        "SELECT {} FROM (SELECT d.key, d.value::text AS text, d.version, d.created_at, d.updated_at \
         FROM {} AS d WHERE d.key = $1 LIMIT 1) AS one",
        up_to("$2"),
        table.quoted()
    );
    Written::new(text, [bind::text(key.as_str()), bytes(most)])
}

/// The version of a document. Plan: the index on the key by equality.
pub(crate) fn get_version(table: &TableName, key: &Key) -> Written {
    let text = format!("SELECT d.version FROM {} AS d WHERE d.key = $1 LIMIT 1", table.quoted());
    Written::new(text, [bind::text(key.as_str())])
}

/// Checks that the transaction may write; also reads the table. Plan: the index on the key by equality.
pub(crate) fn probe(table: &TableName, key: &Key) -> Written {
    let text = format!(
        "SELECT current_setting('transaction_read_only')::boolean AS read_only, \
         (SELECT d.version FROM {} AS d WHERE d.key = $1) AS version",
        table.quoted()
    );
    Written::new(text, [bind::text(key.as_str())])
}

/// The existing documents, in no order, at most one for each key, and not many more than fit into a response;
/// a document of more than `most` bytes comes without its value. Plan: the index on the key, once for each
/// key.
pub(crate) fn get_many(table: &TableName, keys: &[&Key], most: usize) -> Written {
    // The bytes of the values before the previous one; NULL for the first two rows. A window without an order
    // passes rows on as they come.
    let bytes_before = "sum(octet_length(text)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)";
    let text = format!(
        "SELECT {} FROM ( \
             SELECT found.*, {bytes_before} AS bytes_before \
             FROM (SELECT d.key, d.value::text AS text, d.version, d.created_at, d.updated_at \
                   FROM {} AS d WHERE d.key = ANY ($1) OFFSET 0) AS found \
         ) AS sized WHERE (bytes_before <= {MAX_ANSWER_BYTES}) IS NOT FALSE",
        up_to("$2"),
        table.quoted()
    );
    Written::new(text, [bind::texts(keys.iter().map(|key| key.as_str())), bytes(most)])
}

/// Members of the existing documents, in no order, as texts in the order of their names: NULL for a missing
/// member, and no text for one that is too large. NULL in their place if the document is not an object. Plan:
/// as for [`get_many`].
pub(crate) fn get_members(table: &TableName, keys: &[Key], names: &[&str], max_bytes: usize) -> Written {
    let text = format!(
        "SELECT d.key, CASE jsonb_typeof(d.value) WHEN 'object' THEN ARRAY( \
             SELECT CASE WHEN octet_length((d.value -> m.name)::text) > $3 THEN '' ELSE (d.value -> m.name)::text END \
             FROM unnest($2) WITH ORDINALITY AS m (name, place) ORDER BY m.place) END AS members \
         FROM {} AS d WHERE d.key = ANY ($1)",
        table.quoted()
    );
    let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    let keys = bind::texts(keys.iter().map(Key::as_str));
    Written::new(text, [keys, bind::texts(names.iter().copied()), bind::bigint(max_bytes)])
}

/// As [`get_many`], but locked until the transaction ends, in the order of the keys' bytes. Plan: the index
/// on the key, once for each key; rows are sorted before they are locked.
pub(crate) fn lock_many(table: &TableName, keys: &[&Key]) -> Written {
    let text = format!(
        "SELECT {DOCUMENT} FROM {} AS d WHERE d.key = ANY ($1) ORDER BY d.key COLLATE \"C\" FOR UPDATE",
        table.quoted()
    );
    Written::new(text, [bind::texts(keys.iter().map(|key| key.as_str()))])
}

/// The place of the value among the parameters of a write: the value is not copied into the statement.
const VALUE: usize = 1;

/// A statement whose parameters are a key and a value.
fn with_value(text: String, key: &Key, value: &Value) -> Written {
    Written::new(text, [bind::text(key.as_str()), bind::text("")]).with_text(VALUE, value.shared())
}

/// Inserts the document or replaces it, and returns its version. Plan: the index on the key, as arbiter.
pub(crate) fn upsert(table: &TableName, key: &Key, value: &Value) -> Written {
    let (name, next, higher) = (table.quoted(), next_version(table), higher_version(table));
    let text = format!(
        "INSERT INTO {name} AS d (key, value, version, created_at, updated_at) \
         VALUES ($1, $2::jsonb, {next}, statement_timestamp(), statement_timestamp()) \
         ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, version = {higher}, updated_at = {UPDATED_AT} \
         RETURNING d.version"
    );
    with_value(text, key, value)
}

/// Inserts the document and returns its version; no row if the key exists. Plan: the index on the key, as
/// arbiter.
pub(crate) fn insert(table: &TableName, key: &Key, value: &Value) -> Written {
    let (name, next) = (table.quoted(), next_version(table));
    let text = format!(
        "INSERT INTO {name} AS d (key, value, version, created_at, updated_at) \
         VALUES ($1, $2::jsonb, {next}, statement_timestamp(), statement_timestamp()) \
         ON CONFLICT (key) DO NOTHING RETURNING d.version"
    );
    with_value(text, key, value)
}

/// Replaces the document if it exists and the conditions hold. One row: `applied` is its new version, or
/// NULL; `version` and `status` are those of the row when the statement began, NULL if there was none. If
/// these fulfil the conditions and nothing was applied, another writer was faster. Plan: the index on the key
/// by equality, twice.
pub(crate) fn update(table: &TableName, key: &Key, value: &Value, conditions: &WriteConditions) -> Written {
    let mut parameters = vec![bind::text(key.as_str()), bind::text("")];
    let mut holds = String::new();
    match conditions.version {
        VersionCondition::Any | VersionCondition::Exists => {}
        VersionCondition::Is(Some(Version(version))) => {
            parameters.push(bind::bigint(version));
            holds.push_str(&format!(" AND d.version = ${}", parameters.len()));
        }
        VersionCondition::Is(None) | VersionCondition::Absent => holds.push_str(" AND false"),
    }
    let mut status = "NULL::text";
    if let Some(wanted) = &conditions.status {
        parameters.push(bind::text(&*wanted.0));
        holds.push_str(&format!(" AND ({STATUS}) COLLATE \"C\" = ${}", parameters.len()));
        status = STATUS;
    }
    let (name, higher) = (table.quoted(), higher_version(table));
    let text = format!(
        "WITH changed AS ( \
             UPDATE {name} AS d SET value = $2::jsonb, version = {higher}, updated_at = {UPDATED_AT} \
             WHERE d.key = $1{holds} RETURNING d.version \
         ) \
         SELECT changed.version AS applied, seen.version, seen.status \
         FROM (SELECT) AS one LEFT JOIN changed ON true \
         LEFT JOIN (SELECT d.version, {status} AS status FROM {name} AS d WHERE d.key = $1) AS seen ON true"
    );
    Written::new(text, parameters).with_text(VALUE, value.shared())
}

/// Replaces a document that the transaction has locked, and returns its version. Plan: the index on the key
/// by equality.
pub(crate) fn replace(table: &TableName, key: &Key, value: &Value) -> Written {
    let text = format!(
        "UPDATE {} AS d SET value = $2::jsonb, version = {}, updated_at = {UPDATED_AT} \
         WHERE d.key = $1 RETURNING d.version",
        table.quoted(),
        higher_version(table)
    );
    with_value(text, key, value)
}

/// Locks the row of a document until the transaction ends, and reads what the conditions of a write need.
/// Plan: the index on the key by equality.
pub(crate) fn lock(table: &TableName, key: &Key) -> Written {
    let text = format!(
        "SELECT d.version, {STATUS} AS status FROM {} AS d WHERE d.key = $1 FOR UPDATE",
        table.quoted()
    );
    Written::new(text, [bind::text(key.as_str())])
}

/// As [`lock`], with the value unless its text has more than `most` bytes. Plan: as for [`lock`].
pub(crate) fn lock_value(table: &TableName, key: &Key, most: usize) -> Written {
    let text = format!(
        "WITH one AS MATERIALIZED ( \
             SELECT d.version, {STATUS} AS status, d.value::text AS text FROM {} AS d WHERE d.key = $1 FOR UPDATE \
         ) \
         SELECT version, status, CASE WHEN octet_length(text) <= $2 THEN text END AS value, \
             octet_length(text)::bigint AS bytes FROM one",
        table.quoted()
    );
    Written::new(text, [bind::text(key.as_str()), bytes(most)])
}

/// Deletes the document, if given only with that version. One row: `applied` is NULL if nothing was deleted;
/// `version` is that of the row when the statement began, NULL if there was none. Plan: the index on the key
/// by equality, twice.
pub(crate) fn delete(table: &TableName, key: &Key, version: Option<Version>) -> Written {
    let name = table.quoted();
    let mut parameters = vec![bind::text(key.as_str())];
    let mut holds = "";
    if let Some(Version(version)) = version {
        parameters.push(bind::bigint(version));
        holds = " AND d.version = $2";
    }
    let text = format!(
        "WITH gone AS (DELETE FROM {name} AS d WHERE d.key = $1{holds} RETURNING d.version) \
         SELECT gone.version AS applied, seen.version \
         FROM (SELECT) AS one LEFT JOIN gone ON true \
         LEFT JOIN (SELECT d.version FROM {name} AS d WHERE d.key = $1) AS seen ON true"
    );
    Written::new(text, parameters)
}

/// Deletes the existing documents, locked in the order of the keys' bytes. Plan: the index on the key, once
/// for each key.
pub(crate) fn delete_many(table: &TableName, keys: &[&Key]) -> Written {
    let name = table.quoted();
    let text = format!(
        "WITH held AS MATERIALIZED ( \
             SELECT d.key FROM {name} AS d WHERE d.key = ANY ($1) ORDER BY d.key COLLATE \"C\" FOR UPDATE \
         ) \
         DELETE FROM {name} AS d USING held WHERE d.key = held.key"
    );
    Written::new(text, [bind::texts(keys.iter().map(|key| key.as_str()))])
}

/// Inserts or replaces documents under distinct keys, in the order of the keys' bytes: concurrent statements
/// never deadlock. Plan: the index on the key, as arbiter.
pub(crate) fn upsert_many(table: &TableName, documents: &[(&Key, &Value)]) -> Written {
    let higher = higher_version(table);
    let replace =
        format!("DO UPDATE SET value = EXCLUDED.value, version = {higher}, updated_at = {UPDATED_AT}");
    write_many(table, documents, &replace)
}

/// Inserts the documents, under distinct keys, whose key does not exist, and returns their keys. It writes in
/// the order of the keys' bytes and waits for no row but one that is being inserted: concurrent statements
/// never deadlock. Plan: the index on the key, as arbiter.
pub(crate) fn insert_many(table: &TableName, documents: &[(&Key, &Value)]) -> Written {
    write_many(table, documents, "DO NOTHING RETURNING d.key")
}

/// Inserts documents in the order of their keys' bytes; `on_conflict` defines the handling of an existing
/// key.
fn write_many(table: &TableName, documents: &[(&Key, &Value)], on_conflict: &str) -> Written {
    let text = format!(
        "INSERT INTO {} AS d (key, value, version, created_at, updated_at) \
         SELECT given.key, given.value::jsonb, {}, statement_timestamp(), statement_timestamp() \
         FROM (SELECT unnest($1) AS key, unnest($2) AS value) AS given ORDER BY given.key COLLATE \"C\" \
         ON CONFLICT (key) {on_conflict}",
        table.quoted(),
        next_version(table)
    );
    let keys = bind::texts(documents.iter().map(|(key, _)| key.as_str()));
    Written::new(text, [keys, bind::texts(documents.iter().map(|(_, value)| value.as_str()))])
}

/// Keys that start with `prefix`, after `after`, ascending by their bytes. Plan: a range of the index on the
/// key in byte order, which is the primary key of a table of this crate; nothing is sorted.
pub(crate) fn list(table: &TableName, prefix: &Prefix, after: Option<&Key>, limit: u32) -> Written {
    let mut parameters = vec![bind::bigint(i64::from(limit))];
    let lower = match after {
        Some(after) if after.as_str() >= prefix.as_str() => ("> $2", after.as_str()),
        _ => (">= $2", prefix.as_str()),
    };
    parameters.push(bind::text(lower.1));
    let mut upper = "";
    if let Some(end) = prefix.end() {
        parameters.push(bind::text(end));
        upper = " AND d.key COLLATE \"C\" < $3";
    }
    let text = format!(
        "SELECT d.key FROM {} AS d WHERE d.key COLLATE \"C\" {}{upper} ORDER BY d.key COLLATE \"C\" LIMIT $1",
        table.quoted(),
        lower.0
    );
    Written::new(text, parameters)
}

/// The documents of a query, and one more than its page has; a document of more than `most` bytes comes
/// without its value. Plan: see [`compile::page`]. Values are converted to text outside the limit: inside it,
/// each matching document would be read whole before the sort. They are converted inside another limit, so
/// that each is converted once. A sub-query with a limit keeps its order.
pub(crate) fn page(
    table: &TableName,
    query: &Query,
    target: &compile::Table,
    (reading, most): (compile::ReadPlan, usize),
) -> Result<SelectStatement, StateError> {
    let (columns, name) =
        (Expr::cust("key, value, version, created_at, updated_at"), Alias::new(table.as_str()));
    let mut page = compile::page(query, target, reading)?;
    page.expr(columns.clone());
    match reading {
        compile::ReadPlan::Walk(keys) => {
            let walked = compile::walked(query, keys).expr(columns).from(name).take();
            page.from_subquery(walked, Alias::new("walked"));
        }
        compile::ReadPlan::Planned | compile::ReadPlan::Whole => drop(page.from(name)),
    }
    let columns = Expr::cust("key, value::text AS text, version, created_at, updated_at");
    let texts = Statement::select().expr(columns).from_subquery(page, Alias::new("page")).offset(0).take();
    let columns = Expr::cust(up_to(&most.to_string()));
    Ok(Statement::select().expr(columns).from_subquery(texts, Alias::new("texts")).take())
}

/// The number of documents that match a query. Plan: as for [`page`], without an order.
pub(crate) fn count(table: &TableName, query: &Query, target: &compile::Table) -> SelectStatement {
    compile::count(query, target).from(Alias::new(table.as_str())).take()
}

#[cfg(test)]
mod tests;
