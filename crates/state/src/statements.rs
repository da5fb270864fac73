//! The SQL of documents, built and not run. Each text is the same for every key and value, so that it is
//! prepared once per connection. Each statement reaches its rows by an index on the key, whatever the table's
//! statistics are.
//!
//! A write draws its version after it holds the row: the update of a conflict draws it when the row is
//! locked, and an update that waited for another one is computed again. So the versions of a row rise in the
//! order of its writes.

use pg::parameter::{self, Parameter, Parameters};
use pg::{BoundStatement, Statement};

use crate::query::{Query, compile};
use crate::schema::{higher_version, next_version};
use crate::setup::catalogue;
use crate::{
    Key, MAX_ANSWER_BYTES, Prefix, StateError, StatusCondition, TableName, Value, Version, VersionCondition,
    WriteConditions,
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

/// The plan of a statement on keys: the index on the key, which is the primary key of a table of this crate.
const BY_KEY: &[&str] = &["_pkey"];

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

fn bytes(number: usize) -> Parameter {
    parameter::bigint(i64::try_from(number).unwrap_or(i64::MAX))
}

/// One document, without its value if that has more than `most` bytes. A sub-query with a limit converts the
/// value to text once. Plan: the index on the key by equality.
pub(crate) fn get(table: &TableName, key: &Key, most: usize) -> BoundStatement {
    let text = format!(
        "SELECT {} FROM (SELECT d.key, d.value::text AS text, d.version, d.created_at, d.updated_at \
         FROM {} AS d WHERE d.key = $1::text LIMIT 1) AS one",
        up_to("$2::bigint"),
        table.quoted()
    );
    Statement::composed("state.get", BY_KEY, text).bind([parameter::text(key.as_str()), bytes(most)])
}

/// The version of a document. Plan: the index on the key by equality.
pub(crate) fn get_version(table: &TableName, key: &Key) -> BoundStatement {
    let text = format!("SELECT d.version FROM {} AS d WHERE d.key = $1::text LIMIT 1", table.quoted());
    Statement::composed("state.get_version", BY_KEY, text).bind([parameter::text(key.as_str())])
}

/// Checks that the transaction may write; also reads the table. Plan: the index on the key by equality.
pub(crate) fn probe(table: &TableName, key: &Key) -> BoundStatement {
    let text = format!(
        "SELECT current_setting('transaction_read_only')::boolean AS read_only, \
         (SELECT d.version FROM {} AS d WHERE d.key = $1::text) AS version",
        table.quoted()
    );
    Statement::composed("state.probe", BY_KEY, text).bind([parameter::text(key.as_str())])
}

/// The existing documents, in no order, at most one for each key, and not many more than fit into a response;
/// a document of more than `most` bytes comes without its value. Plan: the index on the key, once for each
/// key.
pub(crate) fn get_many(table: &TableName, keys: &[&Key], most: usize) -> BoundStatement {
    // The bytes of the values before the previous one; NULL for the first two rows. A window without an order
    // passes rows on as they come.
    let bytes_before = "sum(octet_length(text)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)";
    let text = format!(
        "SELECT {} FROM ( \
             SELECT found.*, {bytes_before} AS bytes_before \
             FROM (SELECT d.key, d.value::text AS text, d.version, d.created_at, d.updated_at \
                   FROM {} AS d WHERE d.key = ANY ($1::text[]) OFFSET 0) AS found \
         ) AS sized WHERE (bytes_before <= {MAX_ANSWER_BYTES}) IS NOT FALSE",
        up_to("$2::bigint"),
        table.quoted()
    );
    Statement::composed("state.get_many", BY_KEY, text)
        .bind([parameter::texts(keys.iter().map(|key| key.as_str())), bytes(most)])
}

/// Members of the existing documents, in no order, as texts in the order of their names: NULL for a missing
/// member, and no text for one that is too large. NULL in their place if the document is not an object. Plan:
/// as for [`get_many`].
pub(crate) fn get_members(
    table: &TableName,
    keys: &[Key],
    names: &[&str],
    max_bytes: usize,
) -> BoundStatement {
    let text = format!(
        "SELECT d.key, CASE jsonb_typeof(d.value) WHEN 'object' THEN ARRAY( \
             SELECT CASE WHEN octet_length((d.value -> m.name)::text) > $3::bigint THEN '' ELSE (d.value -> m.name)::text END \
             FROM unnest($2::text[]) WITH ORDINALITY AS m (name, place) ORDER BY m.place) END AS members \
         FROM {} AS d WHERE d.key = ANY ($1::text[])",
        table.quoted()
    );
    let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    let keys = parameter::texts(keys.iter().map(Key::as_str));
    Statement::composed("state.get_members", BY_KEY, text).bind([
        keys,
        parameter::texts(names.iter().copied()),
        parameter::bigint(max_bytes),
    ])
}

/// As [`get_many`], but locked until the transaction ends, in the order of the keys' bytes. Plan: the index
/// on the key, once for each key; rows are sorted before they are locked.
pub(crate) fn lock_many(table: &TableName, keys: &[&Key]) -> BoundStatement {
    let text = format!(
        "SELECT {DOCUMENT} FROM {} AS d WHERE d.key = ANY ($1::text[]) ORDER BY d.key COLLATE \"C\" FOR UPDATE",
        table.quoted()
    );
    Statement::composed("state.lock_many", BY_KEY, text)
        .bind([parameter::texts(keys.iter().map(|key| key.as_str()))])
}

/// The parameters of a statement on a key and a value. The value is not copied.
fn with_value(key: &Key, value: &Value) -> [Parameter; 2] {
    [parameter::text(key.as_str()), parameter::shared_text(value.shared())]
}

/// Inserts the document or replaces it, and returns its version. Plan: the index on the key, as arbiter.
pub(crate) fn upsert(table: &TableName, key: &Key, value: &Value) -> BoundStatement {
    let (name, next, higher) = (table.quoted(), next_version(table), higher_version(table));
    let text = format!(
        "INSERT INTO {name} AS d (key, value, version, created_at, updated_at) \
         VALUES ($1::text, $2::text::jsonb, {next}, statement_timestamp(), statement_timestamp()) \
         ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, version = {higher}, updated_at = {UPDATED_AT} \
         RETURNING d.version"
    );
    Statement::composed("state.upsert", BY_KEY, text).bind(with_value(key, value))
}

/// Inserts the document and returns its version; no row if the key exists. Plan: the index on the key, as
/// arbiter.
pub(crate) fn insert(table: &TableName, key: &Key, value: &Value) -> BoundStatement {
    let (name, next) = (table.quoted(), next_version(table));
    let text = format!(
        "INSERT INTO {name} AS d (key, value, version, created_at, updated_at) \
         VALUES ($1::text, $2::text::jsonb, {next}, statement_timestamp(), statement_timestamp()) \
         ON CONFLICT (key) DO NOTHING RETURNING d.version"
    );
    Statement::composed("state.insert", BY_KEY, text).bind(with_value(key, value))
}

/// Replaces the document if it exists and the conditions hold. One row: `applied` is its new version, or
/// NULL; `version` and `status` are those of the row when the statement began, NULL if there was none. If
/// these fulfil the conditions and nothing was applied, another writer was faster. Plan: the index on the key
/// by equality, twice.
pub(crate) fn update(
    table: &TableName,
    key: &Key,
    value: &Value,
    conditions: &WriteConditions,
) -> BoundStatement {
    let mut parameters = Parameters::default();
    for parameter in with_value(key, value) {
        parameters.add(parameter);
    }
    let mut holds = String::new();
    match conditions.version {
        VersionCondition::Any | VersionCondition::Exists => {}
        VersionCondition::Is(Some(Version(version))) => {
            holds += &format!(" AND d.version = {}", parameters.add(parameter::bigint(version)));
        }
        VersionCondition::Is(None) | VersionCondition::Absent => holds.push_str(" AND false"),
    }
    let mut status = "NULL::text";
    if let Some(wanted) = &conditions.status {
        let wanted = parameters.add(parameter::text(&*wanted.0));
        holds += &format!(" AND ({STATUS}) COLLATE \"C\" = {wanted}");
        status = STATUS;
    }
    let (name, higher) = (table.quoted(), higher_version(table));
    let text = format!(
        "WITH changed AS ( \
             UPDATE {name} AS d SET value = $2::text::jsonb, version = {higher}, updated_at = {UPDATED_AT} \
             WHERE d.key = $1::text{holds} RETURNING d.version \
         ) \
         SELECT changed.version AS applied, seen.version, seen.status \
         FROM (SELECT) AS one LEFT JOIN changed ON true \
         LEFT JOIN (SELECT d.version, {status} AS status FROM {name} AS d WHERE d.key = $1::text) AS seen ON true"
    );
    Statement::composed("state.update", BY_KEY, text).bind(parameters)
}

/// Replaces a document that the transaction has locked, and returns its version. Plan: the index on the key
/// by equality.
pub(crate) fn replace(table: &TableName, key: &Key, value: &Value) -> BoundStatement {
    let text = format!(
        "UPDATE {} AS d SET value = $2::text::jsonb, version = {}, updated_at = {UPDATED_AT} \
         WHERE d.key = $1::text RETURNING d.version",
        table.quoted(),
        higher_version(table)
    );
    Statement::composed("state.replace", BY_KEY, text).bind(with_value(key, value))
}

/// Locks the row of a document until the transaction ends, and reads what the conditions of a write need.
/// Plan: the index on the key by equality.
pub(crate) fn lock(table: &TableName, key: &Key) -> BoundStatement {
    let text = format!(
        "SELECT d.version, {STATUS} AS status FROM {} AS d WHERE d.key = $1::text FOR UPDATE",
        table.quoted()
    );
    Statement::composed("state.lock", BY_KEY, text).bind([parameter::text(key.as_str())])
}

/// As [`lock`], with the value unless its text has more than `most` bytes. Plan: as for [`lock`].
pub(crate) fn lock_value(table: &TableName, key: &Key, most: usize) -> BoundStatement {
    let text = format!(
        "WITH one AS MATERIALIZED ( \
             SELECT d.version, {STATUS} AS status, d.value::text AS text FROM {} AS d WHERE d.key = $1::text FOR UPDATE \
         ) \
         SELECT version, status, CASE WHEN octet_length(text) <= $2::bigint THEN text END AS value, \
             octet_length(text)::bigint AS bytes FROM one",
        table.quoted()
    );
    Statement::composed("state.lock_value", BY_KEY, text).bind([parameter::text(key.as_str()), bytes(most)])
}

/// Deletes the document, if given only with that version. One row: `applied` is NULL if nothing was deleted;
/// `version` is that of the row when the statement began, NULL if there was none. Plan: the index on the key
/// by equality, twice.
pub(crate) fn delete(table: &TableName, key: &Key, version: Option<Version>) -> BoundStatement {
    let name = table.quoted();
    let mut parameters = vec![parameter::text(key.as_str())];
    let mut holds = "";
    if let Some(Version(version)) = version {
        parameters.push(parameter::bigint(version));
        holds = " AND d.version = $2::bigint";
    }
    let text = format!(
        "WITH gone AS (DELETE FROM {name} AS d WHERE d.key = $1::text{holds} RETURNING d.version) \
         SELECT gone.version AS applied, seen.version \
         FROM (SELECT) AS one LEFT JOIN gone ON true \
         LEFT JOIN (SELECT d.version FROM {name} AS d WHERE d.key = $1::text) AS seen ON true"
    );
    Statement::composed("state.delete", BY_KEY, text).bind(parameters)
}

/// Deletes the existing documents, locked in the order of the keys' bytes. Plan: the index on the key, once
/// for each key.
pub(crate) fn delete_many(table: &TableName, keys: &[&Key]) -> BoundStatement {
    let name = table.quoted();
    let text = format!(
        "WITH held AS MATERIALIZED ( \
             SELECT d.key FROM {name} AS d WHERE d.key = ANY ($1::text[]) ORDER BY d.key COLLATE \"C\" FOR UPDATE \
         ) \
         DELETE FROM {name} AS d USING held WHERE d.key = held.key"
    );
    Statement::composed("state.delete_many", BY_KEY, text)
        .bind([parameter::texts(keys.iter().map(|key| key.as_str()))])
}

/// Inserts or replaces documents under distinct keys, in the order of the keys' bytes: concurrent statements
/// never deadlock. Plan: the index on the key, as arbiter.
pub(crate) fn upsert_many(table: &TableName, documents: &[(&Key, &Value)]) -> BoundStatement {
    let higher = higher_version(table);
    let replace =
        format!("DO UPDATE SET value = EXCLUDED.value, version = {higher}, updated_at = {UPDATED_AT}");
    write_many("state.upsert_many", table, documents, &replace)
}

/// Inserts the documents, under distinct keys, whose key does not exist, and returns their keys. It writes in
/// the order of the keys' bytes and waits for no row but one that is being inserted: concurrent statements
/// never deadlock. Plan: the index on the key, as arbiter.
pub(crate) fn insert_many(table: &TableName, documents: &[(&Key, &Value)]) -> BoundStatement {
    write_many("state.insert_many", table, documents, "DO NOTHING RETURNING d.key")
}

/// Inserts documents in the order of their keys' bytes; `on_conflict` defines the handling of an existing
/// key.
fn write_many(
    name: &'static str,
    table: &TableName,
    documents: &[(&Key, &Value)],
    on_conflict: &str,
) -> BoundStatement {
    let text = format!(
        "INSERT INTO {} AS d (key, value, version, created_at, updated_at) \
         SELECT given.key, given.value::jsonb, {}, statement_timestamp(), statement_timestamp() \
         FROM (SELECT unnest($1::text[]) AS key, unnest($2::text[]) AS value) AS given ORDER BY given.key COLLATE \"C\" \
         ON CONFLICT (key) {on_conflict}",
        table.quoted(),
        next_version(table)
    );
    let keys = parameter::texts(documents.iter().map(|(key, _)| key.as_str()));
    Statement::composed(name, BY_KEY, text)
        .bind([keys, parameter::texts(documents.iter().map(|(_, value)| value.as_str()))])
}

/// Keys that start with `prefix`, after `after`, ascending by their bytes. Plan: a range of the index on the
/// key in byte order, which is the primary key of a table of this crate; nothing is sorted.
pub(crate) fn list(table: &TableName, prefix: &Prefix, after: Option<&Key>, limit: u32) -> BoundStatement {
    let mut parameters = vec![parameter::bigint(i64::from(limit))];
    let lower = match after {
        Some(after) if after.as_str() >= prefix.as_str() => ("> $2::text", after.as_str()),
        _ => (">= $2::text", prefix.as_str()),
    };
    parameters.push(parameter::text(lower.1));
    let mut upper = "";
    if let Some(end) = prefix.end() {
        parameters.push(parameter::text(end));
        upper = " AND d.key COLLATE \"C\" < $3::text";
    }
    let text = format!(
        "SELECT d.key FROM {} AS d WHERE d.key COLLATE \"C\" {}{upper} ORDER BY d.key COLLATE \"C\" LIMIT $1::bigint",
        table.quoted(),
        lower.0
    );
    Statement::composed("state.list", BY_KEY, text).bind(parameters)
}

/// The documents of a query, and one more than its page has; a document of more than `most` bytes comes
/// without its value. Plan: see [`compile::page`]. Values are converted to text outside the limit: inside it,
/// each matching document would be read whole before the sort. They are converted inside another limit, so
/// that each is converted once. A sub-query with a limit keeps its order.
pub(crate) fn page(
    query: &Query,
    target: &compile::Table,
    (reading, most): (compile::ReadPlan, usize),
) -> Result<BoundStatement, StateError> {
    let mut parameters = Parameters::default();
    let columns = "key, value, version, created_at, updated_at";
    let page = compile::page(query, target, reading, columns, &mut parameters)?;
    let text = format!(
        "SELECT {} FROM (SELECT key, value::text AS text, version, created_at, updated_at \
         FROM ({page}) AS page OFFSET 0) AS texts",
        up_to(&most.to_string())
    );
    Ok(Statement::composed("state.page", &[], text).bind(parameters))
}

/// The number of documents that match a query. Plan: as for [`page`], without an order.
pub(crate) fn count(query: &Query, target: &compile::Table) -> BoundStatement {
    let mut parameters = Parameters::default();
    let text = compile::count(query, target, &mut parameters);
    Statement::composed("state.count", &[], text).bind(parameters)
}

/// The statements of the functions that work in a transaction of the caller, for its own check of the schema.
pub fn statements_in(table: &TableName) -> Vec<Statement> {
    let all = [
        get_many(table, &[], MAX_ANSWER_BYTES),
        lock_many(table, &[]),
        upsert_many(table, &[]),
        insert_many(table, &[]),
        delete_many(table, &[]),
    ];
    all.map(|bound| bound.statement().clone()).into()
}

/// Every statement on the table, with each of its optional conditions; except queries, whose texts vary with
/// their filters.
pub(crate) fn registry(table: &TableName) -> Result<Vec<Statement>, StateError> {
    let (key, value) = (Key::new("check")?, Value::parse("null")?);
    let conditions = WriteConditions {
        version: VersionCondition::Is(Some(Version(1))),
        status: Some(StatusCondition("check".into())),
    };
    let all = [
        get(table, &key, 0),
        get_version(table, &key),
        probe(table, &key),
        get_members(table, &[], &[], 0),
        upsert(table, &key, &value),
        insert(table, &key, &value),
        update(table, &key, &value, &conditions),
        replace(table, &key, &value),
        lock(table, &key),
        lock_value(table, &key, 0),
        delete(table, &key, Some(Version(1))),
        list(table, &Prefix::new("check")?, None, 1),
    ];
    let all = all.map(|bound| bound.statement().clone());
    let catalogue = catalogue::STATEMENTS.iter().cloned();
    Ok(all.into_iter().chain(statements_in(table)).chain(catalogue).collect())
}

#[cfg(test)]
mod tests;
