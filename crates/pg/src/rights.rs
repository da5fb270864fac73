//! Checks the role's rights on tables: the server checks them when a statement runs, not when it is prepared.

use std::collections::BTreeSet;

use crate::{PgError, Session, Statement, parameter, row};

/// The rights that the role needs on one table.
#[derive(Clone, Copy, Debug)]
pub struct RequiredRights<'a> {
    /// The table's name, unquoted, in the first schema of `search_path`.
    pub table: &'a str,
    /// `SELECT`, `INSERT`, `UPDATE` or `DELETE`.
    pub rights: &'a [&'a str],
}

/// The tables of `required` on which the role lacks at least one right, in their order. They must exist.
pub async fn missing_rights<'a>(
    session: &Session,
    required: &[RequiredRights<'a>],
) -> Result<Vec<RequiredRights<'a>>, PgError> {
    let each = || required.iter().flat_map(|table| table.rights.iter().map(|right| (table.table, *right)));
    let tables = parameter::texts(each().map(|(table, _)| table));
    let rights = parameter::texts(each().map(|(_, right)| right));
    let rows = session.query_once(TABLES_WITHOUT.bind([tables, rights])).await?;
    let tables: BTreeSet<&str> = rows
        .iter()
        .map(|found| row::get(found, "table_name"))
        .collect::<Result<_, _>>()
        .map_err(|error| PgError::unavailable(session.operation(), error))?;
    Ok(required.iter().filter(|required| tables.contains(required.table)).copied().collect())
}

/// The tables without a required right. Each right is queried separately: for a list of rights, the server
/// returns true if the role has any of them.
const TABLES_WITHOUT: Statement = Statement::new(
    "rights.tables_without",
    &[],
    "SELECT table_name FROM unnest($1::text[], $2::text[]) AS required (table_name, privilege)
     WHERE NOT has_table_privilege(quote_ident(table_name), privilege)",
);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use local_servers::{Postgres, PostgresOptions};

    use super::*;
    use crate::{Dsn, PgPool, PoolSettings, SessionSettings};

    #[tokio::test]
    async fn a_table_is_named_if_one_of_its_rights_is_missing() {
        let server = Postgres::start(PostgresOptions { durable: false, settings: Vec::new() }).await;
        let server = server.expect("PostgreSQL starts");
        let tables = r#"CREATE ROLE limited LOGIN; CREATE TABLE "All of it" (); CREATE TABLE some_of_it (); CREATE TABLE none ();
            GRANT SELECT, DELETE ON "All of it" TO limited; GRANT SELECT ON some_of_it TO limited"#;
        server.execute("postgres", tables).await.expect("tables");
        let dsn = Dsn::parse(&format!("postgres://limited@127.0.0.1:{}/postgres", server.port()));
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: Duration::from_secs(4),
            session: SessionSettings::default(),
        };
        let pool = PgPool::new(&dsn.expect("a connection string"), settings).expect("a pool");
        let session = pool.session("check rights").await.expect("PostgreSQL is there");
        let required = ["none", "All of it", "some_of_it"];
        let required = required.map(|table| RequiredRights { table, rights: &["SELECT", "DELETE"] });
        let missing = missing_rights(&session, &required).await.expect("PostgreSQL answers");
        assert_eq!(missing.iter().map(|missing| missing.table).collect::<Vec<_>>(), ["none", "some_of_it"]);
    }
}
