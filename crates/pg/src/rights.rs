//! Rights of a role: checking them, and granting them.
//!
//! A crate lists the grants that its statements need. The same list is checked at the start, because the
//! server checks rights when a statement runs, not when it is prepared, and printed for the owner of the
//! schema.

use std::fmt;

use crate::{PgError, Session, Statement, parameter, row};

/// The rights that a role needs on one object of a schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    object: Object,
    /// The schema, unquoted; `None` for the `search_path`.
    schema: Option<String>,
    /// The name, unquoted; with the types of its parameters for a function.
    name: String,
    /// Such as `SELECT`.
    rights: Vec<&'static str>,
}

/// The kind of an object, as GRANT names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    Table,
    Sequence,
    Function,
}

impl Object {
    fn name(self) -> &'static str {
        match self {
            Self::Table => "TABLE",
            Self::Sequence => "SEQUENCE",
            Self::Function => "FUNCTION",
        }
    }
}

impl Grant {
    /// Rights on a table: `SELECT`, `INSERT`, `UPDATE` or `DELETE`. The name is unquoted.
    pub fn on_table(name: impl Into<String>, rights: &[&'static str]) -> Self {
        Self::new(Object::Table, name.into(), rights)
    }

    /// The right to draw from a sequence. The name is unquoted.
    pub fn on_sequence(name: impl Into<String>) -> Self {
        Self::new(Object::Sequence, name.into(), &["USAGE"])
    }

    /// The right to call a function with one parameter of type `text`. The name is unquoted.
    pub fn on_function_of_text(name: impl Into<String>) -> Self {
        Self::new(Object::Function, name.into(), &["EXECUTE"])
    }

    fn new(object: Object, name: String, rights: &[&'static str]) -> Self {
        Self { object, schema: None, name, rights: rights.to_vec() }
    }

    /// The same rights on the object in this schema, unless the grant names one.
    #[must_use]
    pub fn in_schema(mut self, schema: &str) -> Self {
        self.schema.get_or_insert_with(|| schema.to_owned());
        self
    }

    /// The object as SQL.
    fn identifier(&self) -> String {
        let schema = self.schema.as_ref().map(|schema| format!("{}.", quoted(schema))).unwrap_or_default();
        let parameters = if self.object == Object::Function { "(text)" } else { "" };
        format!("{schema}{}{parameters}", quoted(&self.name))
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, name, rights, .. } = self;
        let kind = if *object == Object::Table { String::new() } else { format!("{} ", object.name()) };
        write!(f, "{} on {kind}{name}", rights.join(", "))
    }
}

/// Grants as one text: `SELECT, DELETE on records; USAGE on SEQUENCE receipts_version_seq`.
pub fn list(grants: &[Grant]) -> String {
    grants.iter().map(Grant::to_string).collect::<Vec<_>>().join("; ")
}

/// The statements that grant a role the use of `schema`, and these rights in it. Names are unquoted.
pub fn grant_sql(grants: &[Grant], schema: &str, role: &str) -> String {
    let role = quoted(role);
    let statement = |grant: &Grant| {
        let grant = grant.clone().in_schema(schema);
        let (rights, object) = (grant.rights.join(", "), grant.object.name());
        format!("GRANT {rights} ON {object} {} TO {role};\n", grant.identifier())
    };
    let usage = format!("GRANT USAGE ON SCHEMA {} TO {role};\n", quoted(schema));
    std::iter::once(usage).chain(grants.iter().map(statement)).collect()
}

/// The rights of `required` that the role of the session lacks, in their order. An object that does not exist
/// counts as lacking.
pub async fn missing(session: &Session, required: &[Grant]) -> Result<Vec<Grant>, PgError> {
    let each: Vec<(usize, &Grant, &'static str)> = required
        .iter()
        .enumerate()
        .flat_map(|(place, grant)| grant.rights.iter().map(move |right| (place, grant, *right)))
        .collect();
    let parameters = [
        parameter::texts(each.iter().map(|(_, grant, _)| grant.object.name())),
        parameter::texts(each.iter().map(|(_, grant, _)| grant.identifier())),
        parameter::texts(each.iter().map(|(_, _, right)| *right)),
    ];
    let rows = session.query_once(MISSING.bind(parameters)).await?;
    let mut lacking: Vec<Grant> = Vec::new();
    let mut last = None;
    for found in &rows {
        let place: i64 =
            row::get(found, "place").map_err(|error| PgError::unavailable(session.operation(), error))?;
        let Some((grant_at, grant, right)) = usize::try_from(place - 1).ok().and_then(|at| each.get(at))
        else {
            continue;
        };
        match lacking.last_mut() {
            Some(grant) if last == Some(*grant_at) => grant.rights.push(right),
            _ => lacking.push(Grant { rights: vec![right], ..(*grant).clone() }),
        }
        last = Some(*grant_at);
    }
    Ok(lacking)
}

/// An identifier in quotes.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The missing rights by their place. Each right is queried separately: for a list of rights, the server
/// returns true if the role has any of them.
const MISSING: Statement = Statement::new(
    "rights.missing",
    &[],
    "SELECT place FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS required (kind, name, privilege, place)
     WHERE NOT coalesce(CASE kind
         WHEN 'TABLE' THEN has_table_privilege(to_regclass(name), privilege)
         WHEN 'SEQUENCE' THEN has_sequence_privilege(to_regclass(name), privilege)
         ELSE has_function_privilege(to_regprocedure(name), privilege) END, false)
     ORDER BY place",
);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use local_servers::{Postgres, PostgresOptions};

    use super::*;
    use crate::{Dsn, PgPool, PoolSettings, SessionSettings};

    #[tokio::test]
    async fn what_is_granted_by_the_printed_statements_is_not_missing_and_all_else_is() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        let objects = r#"CREATE ROLE "Limited one" LOGIN; CREATE SCHEMA "of it";
            CREATE TABLE "of it"."All" (); CREATE TABLE "of it".some (); CREATE SEQUENCE "of it".numbers;
            CREATE FUNCTION "of it".f(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
            REVOKE EXECUTE ON FUNCTION "of it".f(text) FROM PUBLIC"#;
        server.execute("postgres", objects).await.expect("objects");
        let port = server.port();
        let dsn = format!("postgres://Limited%20one@127.0.0.1:{port}/postgres?search_path=%22of%20it%22");
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: Duration::from_secs(4),
            session: SessionSettings::default(),
        };
        let pool = PgPool::new(&Dsn::parse(&dsn).expect("a connection string"), settings).expect("a pool");
        let session = pool.session("check rights").await.expect("PostgreSQL is there");
        let required = [
            Grant::on_table("All", &["SELECT", "DELETE"]),
            Grant::on_table("some", &["SELECT", "INSERT", "UPDATE"]),
            Grant::on_sequence("numbers"),
            Grant::on_function_of_text("f"),
            Grant::on_table("none", &["SELECT"]),
        ];
        let lacking = async || list(&missing(&session, &required).await.expect("PostgreSQL answers"));
        let all = "SELECT, DELETE on All; SELECT, INSERT, UPDATE on some; USAGE on SEQUENCE numbers; EXECUTE on FUNCTION f; SELECT on none";
        assert_eq!(lacking().await, all);
        let granted = grant_sql(&required[..4], "of it", "Limited one");
        server.execute("postgres", &granted).await.expect("it is valid");
        assert_eq!(lacking().await, "SELECT on none");
        let some = r#"REVOKE SELECT ON "of it"."All" FROM "Limited one"; REVOKE INSERT, UPDATE ON "of it".some FROM "Limited one""#;
        server.execute("postgres", some).await.expect("it is valid");
        assert_eq!(lacking().await, "SELECT on All; INSERT, UPDATE on some; SELECT on none");
    }
}
