//! Reads a table's entries in the catalogue. Reading it neither waits for writers nor blocks them.

use pg::{PgError, Session, Statement, parameter, row};
use tokio_postgres::Row;

use crate::TableName;
use crate::schema::sequence_name;

/// The most pages of a table that are read at a start to find the highest version.
const MAX_READ_PAGES: i64 = 2_000;

pg::statements! {
    /// The relation of a name on the search path.
    RELATION = "state.setup.relation", plan [], "
        SELECT c.relkind::text AS kind, n.nspname::text AS schema
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)";

    /// The kind of a relation in a schema.
    KIND = "state.setup.kind", plan [], "
        SELECT c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname = $2::text";

    /// The body of a function with one text parameter.
    BODY = "state.setup.body", plan [], "
        SELECT prosrc AS body FROM pg_proc WHERE oid = to_regprocedure(format('%I(text)', $1::text))";

    /// True if an index on an expression has no statistics, and the role may create them.
    LACKS_STATISTICS = "state.setup.lacks_statistics", plan [], "
        SELECT count(*) > 0 AS lacks FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE i.indrelid = to_regclass($1::text) AND i.indexprs IS NOT NULL AND i.indisvalid AND pg_has_role(c.relowner, 'USAGE')
            AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)";

    /// Takes the lock of the processes that set up a table of this name; NULL without a schema.
    TRY_LOCK = "state.setup.try_lock", plan [], "
        SELECT pg_try_advisory_lock(hashtextextended(current_schema() || '.' || $1::text, $2::bigint)) AS locked";

    /// The pages of a table.
    PAGES = "state.setup.pages", plan [], "
        SELECT (pg_relation_size(to_regclass($1::text)) / current_setting('block_size')::bigint) AS pages";

    /// The columns of a table.
    COLUMNS = "state.setup.columns", plan [], "
        SELECT a.attname::text AS name, format_type(a.atttypid, NULL) AS kind, a.attnotnull AS not_null,
               a.atthasdef OR a.attidentity <> '' AS has_default, a.attgenerated <> '' AS generated,
               coalesce(l.collisdeterministic, true) AS by_bytes
        FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

    /// The indexes of a table.
    INDEXES = "state.setup.indexes", plan [], "
        SELECT c.relname::text AS name, m.amname::text AS method, i.indisvalid AND i.indisready AS valid,
               i.indisunique AND i.indimmediate AS is_unique, i.indpred IS NULL AS whole, i.indnkeyatts AS columns,
               pg_get_indexdef(i.indexrelid, 1, true) AS first,
               o.opcname::text AS operators, coalesce(l.collname::text, '') AS collation
        FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_am m ON m.oid = c.relam
        JOIN pg_opclass o ON o.oid = i.indclass[0]
        LEFT JOIN pg_collation l ON l.oid = i.indcollation[0]
        WHERE i.indrelid = to_regclass($1::text) ORDER BY c.relname";
}

/// The relation with the name of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relation {
    /// `r` for a table.
    pub(super) kind: String,
    pub(super) schema: String,
    pub(super) columns: Vec<Column>,
    pub(super) indexes: Vec<Index>,
    /// True if the sequence for its versions exists.
    pub(super) sequence: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// The type as the server writes it.
    pub(super) kind: String,
    pub(super) not_null: bool,
    /// True if an insert may omit the column although it is not null.
    pub(super) has_default: bool,
    pub(super) generated: bool,
    /// True if equal texts have equal bytes.
    pub(super) by_bytes: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    pub(super) name: String,
    /// `btree`, `gin`, …
    pub(super) method: String,
    pub(super) valid: bool,
    /// True if the index enforces uniqueness immediately.
    pub(super) unique: bool,
    /// True if the index covers all rows.
    pub(super) whole: bool,
    /// The number of its columns.
    pub(super) columns: i16,
    /// Its first column or expression, as the server writes it.
    pub(super) first: String,
    /// The operator class of that column.
    pub(super) operators: String,
    /// The collation of that column; empty for none.
    pub(super) collation: String,
}

/// The relation of this name on the search path; `None` if there is none.
pub(super) async fn relation(session: &Session, table: &TableName) -> Result<Option<Relation>, PgError> {
    let rows = session.query_once(RELATION.bind([parameter::text(table.quoted())])).await?;
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

/// The kind of the relation with this name in the schema, as in `pg_class`; `None` if the name is free.
pub(super) async fn kind_of(session: &Session, schema: &str, name: &str) -> Result<Option<String>, PgError> {
    let rows = session.query_once(KIND.bind([parameter::text(schema), parameter::text(name)])).await?;
    rows.first().map(|found| read(session, found, "kind")).transpose()
}

/// The body of a function with one text parameter; `None` if there is none of this name.
pub(super) async fn body_of(session: &Session, name: &str) -> Result<Option<String>, PgError> {
    let rows = session.query_once(BODY.bind([parameter::text(name)])).await?;
    rows.first().map(|found| read(session, found, "body")).transpose()
}

/// Returns true if an index on an expression has no statistics, and the role may create them.
pub(super) async fn lacks_statistics(session: &Session, table: &TableName) -> Result<bool, PgError> {
    let rows = session.query_once(LACKS_STATISTICS.bind([parameter::text(table.quoted())])).await?;
    rows.first().map_or(Ok(false), |found| read(session, found, "lacks"))
}

/// The highest version of the table if it is above the sequence's. In a table of more than [`MAX_READ_PAGES`]
/// pages a sample is read first: copied rows are above the sequence in every part of it.
pub(super) async fn version_beyond_sequence(
    session: &Session,
    table: &TableName,
) -> Result<Option<i64>, PgError> {
    let (name, sequence) = (table.quoted(), sequence_name(table));
    let rows = session.query_once(PAGES.bind([parameter::text(&*name)])).await?;
    let pages: i64 = rows.first().map_or(Ok(0), |found| read(session, found, "pages"))?;
    let beyond = async |sample: &str| {
        let text = format!(
            "SELECT max(d.version) AS version FROM {name} AS d {sample} \
             HAVING max(d.version) > coalesce(pg_sequence_last_value('\"{sequence}\"'), 0)"
        );
        let rows = session
            .query_once(Statement::composed("state.setup.version_beyond_sequence", &[], text).bind([]))
            .await?;
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
    let rows = session.query_once(COLUMNS.bind([parameter::text(table.quoted())])).await?;
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
    let rows = session.query_once(INDEXES.bind([parameter::text(table)])).await?;
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

fn read<'a, T: tokio_postgres::types::FromSql<'a>>(
    session: &Session,
    found: &'a Row,
    name: &str,
) -> Result<T, PgError> {
    row::get(found, name).map_err(|error| PgError::unavailable(session.operation(), error))
}
