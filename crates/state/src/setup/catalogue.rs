//! What the catalogue says of a table. Reading it waits for no writer and stops none.

use pg::sql::Written;
use pg::{PgError, Session, bind, row};
use tokio_postgres::Row;

use crate::TableName;
use crate::schema::{RIGHTS, sequence_name};

/// The most pages of a table that are read at a start for the versions in them.
const MAX_READ_PAGES: i64 = 2_000;

/// What has the name of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relation {
    /// `r` for a table.
    pub(super) kind: String,
    pub(super) schema: String,
    pub(super) columns: Vec<Column>,
    pub(super) indexes: Vec<Index>,
    /// Whether there is a sequence for its versions.
    pub(super) sequence: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// As the server writes it.
    pub(super) kind: String,
    pub(super) not_null: bool,
    /// Whether an insert may leave it out although it is not null.
    pub(super) has_default: bool,
    pub(super) generated: bool,
    /// Whether equal texts have equal bytes.
    pub(super) by_bytes: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    pub(super) name: String,
    /// `btree`, `gin`, …
    pub(super) method: String,
    pub(super) valid: bool,
    /// Whether it keeps rows apart as soon as they are written.
    pub(super) unique: bool,
    /// Whether it has all rows.
    pub(super) whole: bool,
    /// How many columns it has.
    pub(super) columns: i16,
    /// Its first column or expression, as the server writes it.
    pub(super) first: String,
    /// How that is compared: the operator class.
    pub(super) operators: String,
    /// And its collation; empty for none.
    pub(super) collation: String,
}

/// What has this name on the search path; `None` if nothing has.
pub(super) async fn relation(session: &Session, table: &TableName) -> Result<Option<Relation>, PgError> {
    let text = "SELECT c.relkind::text AS kind, n.nspname::text AS schema
                FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";
    let rows = session.query_once(&Written::new(text, [bind::text(table.quoted())])).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let schema: String = read(session, found, "schema")?;
    Ok(Some(Relation {
        kind: read(session, found, "kind")?,
        columns: columns(session, table).await?,
        indexes: indexes(session, &table.quoted()).await?,
        sequence: kind_of(session, &schema, &sequence_name(table)).await?.as_deref() == Some("S"),
        schema,
    }))
}

/// What kind of thing a name of the schema belongs to, as `pg_class` says it; `None` if it is free.
pub(super) async fn kind_of(session: &Session, schema: &str, name: &str) -> Result<Option<String>, PgError> {
    let text = "SELECT c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname = $2";
    let rows = session.query_once(&Written::new(text, [bind::text(schema), bind::text(name)])).await?;
    rows.first().map(|found| read(session, found, "kind")).transpose()
}

/// What a function of a text says; `None` if there is none of this name.
pub(super) async fn body_of(session: &Session, name: &str) -> Result<Option<String>, PgError> {
    let text = "SELECT prosrc AS body FROM pg_proc WHERE oid = to_regprocedure(format('%I(text)', $1))";
    let rows = session.query_once(&Written::new(text, [bind::text(name)])).await?;
    rows.first().map(|found| read(session, found, "body")).transpose()
}

/// Whether an index on an expression has no statistics, and the role may make some.
pub(super) async fn lacks_statistics(session: &Session, table: &TableName) -> Result<bool, PgError> {
    let text = "
        SELECT count(*) > 0 AS lacks FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE i.indrelid = to_regclass($1) AND i.indexprs IS NOT NULL AND i.indisvalid AND pg_has_role(c.relowner, 'USAGE')
            AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)";
    let rows = session.query_once(&Written::new(text, [bind::text(table.quoted())])).await?;
    rows.first().map_or(Ok(false), |found| read(session, found, "lacks"))
}

/// The highest version of the table if it is beyond the sequence's. Of a table of more than
/// [`MAX_READ_PAGES`] pages a sample is looked at first: the rows that a copy brings are beyond it
/// everywhere.
pub(super) async fn version_beyond_sequence(
    session: &Session,
    table: &TableName,
) -> Result<Option<i64>, PgError> {
    let (name, sequence) = (table.quoted(), sequence_name(table));
    let pages = "SELECT (pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint) AS pages";
    let rows = session.query_once(&Written::new(pages, [bind::text(&*name)])).await?;
    let pages: i64 = rows.first().map_or(Ok(0), |found| read(session, found, "pages"))?;
    let beyond = async |sample: &str| {
        let text = format!(
            "SELECT max(d.version) AS version FROM {name} AS d {sample} \
             HAVING max(d.version) > (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM \"{sequence}\")"
        );
        let rows = session.query_once(&Written::new(text, [])).await?;
        rows.first().map(|found| read(session, found, "version")).transpose()
    };
    if pages > MAX_READ_PAGES {
        let percent = 100.0 * MAX_READ_PAGES as f64 / pages as f64;
        if beyond(&format!("TABLESAMPLE SYSTEM ({percent:.6})")).await?.is_none() {
            return Ok(None);
        }
    }
    beyond("").await
}

async fn columns(session: &Session, table: &TableName) -> Result<Vec<Column>, PgError> {
    let text = "
        SELECT a.attname::text AS name, format_type(a.atttypid, NULL) AS kind, a.attnotnull AS not_null,
               a.atthasdef OR a.attidentity <> '' AS has_default, a.attgenerated <> '' AS generated,
               coalesce(l.collisdeterministic, true) AS by_bytes
        FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let rows = session.query_once(&Written::new(text, [bind::text(table.quoted())])).await?;
    let column = |found| {
        Ok(Column {
            name: read(session, found, "name")?,
            kind: read(session, found, "kind")?,
            not_null: read(session, found, "not_null")?,
            has_default: read(session, found, "has_default")?,
            generated: read(session, found, "generated")?,
            by_bytes: read(session, found, "by_bytes")?,
        })
    };
    rows.iter().map(column).collect()
}

/// The indexes of a table, which is given as SQL.
pub(super) async fn indexes(session: &Session, table: &str) -> Result<Vec<Index>, PgError> {
    let text = "
        SELECT c.relname::text AS name, m.amname::text AS method, i.indisvalid AND i.indisready AS valid,
               i.indisunique AND i.indimmediate AS is_unique, i.indpred IS NULL AS whole, i.indnkeyatts AS columns,
               pg_get_indexdef(i.indexrelid, 1, true) AS first,
               o.opcname::text AS operators, coalesce(l.collname::text, '') AS collation
        FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_am m ON m.oid = c.relam
        JOIN pg_opclass o ON o.oid = i.indclass[0]
        LEFT JOIN pg_collation l ON l.oid = i.indcollation[0]
        WHERE i.indrelid = to_regclass($1) ORDER BY c.relname";
    let rows = session.query_once(&Written::new(text, [bind::text(table)])).await?;
    let index = |found| {
        Ok(Index {
            name: read(session, found, "name")?,
            method: read(session, found, "method")?,
            valid: read(session, found, "valid")?,
            unique: read(session, found, "is_unique")?,
            whole: read(session, found, "whole")?,
            columns: read(session, found, "columns")?,
            first: read(session, found, "first")?,
            operators: read(session, found, "operators")?,
            collation: read(session, found, "collation")?,
        })
    };
    rows.iter().map(index).collect()
}

/// What the role may not do: of the table's rights, and `USAGE` of the sequence.
pub(super) async fn missing_rights(
    session: &Session,
    table: &TableName,
    schema: &str,
) -> Result<Vec<String>, PgError> {
    let text = "
        SELECT n.name FROM unnest($3) WITH ORDINALITY AS n (name, place)
        WHERE NOT has_table_privilege(format('%I.%I', $1, $2)::regclass, n.name)
        UNION ALL
        SELECT 'USAGE of its sequence'
        WHERE NOT has_sequence_privilege(format('%I.%I', $1, $4)::regclass, 'USAGE, UPDATE')";
    let parameters = [
        bind::text(schema),
        bind::text(table.as_str()),
        bind::texts(RIGHTS),
        bind::text(sequence_name(table)),
    ];
    let rows = session.query_once(&Written::new(text, parameters)).await?;
    rows.iter().map(|found| read(session, found, "name")).collect()
}

fn read<'a, T: tokio_postgres::types::FromSql<'a>>(
    session: &Session,
    found: &'a Row,
    name: &str,
) -> Result<T, PgError> {
    row::get(found, name).map_err(|error| PgError::unavailable(session.operation(), error))
}
