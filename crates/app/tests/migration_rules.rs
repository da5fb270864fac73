//! Checks that every migration only expands the schema, so that the previous release runs on it, and that
//! none of its statements blocks traffic.
//!
//! `migrations/README.md` has the reasons. The permitted statements are a list; any other statement fails,
//! unless it is an exception with a reason here.

use std::collections::BTreeSet;

use app::migrations;

#[path = "migration_rules/statements.rs"]
mod statements;
use statements::{Statement, statements};

/// Statements that no rule permits, by migration and prefix, with the reason why they are harmless.
const EXCEPTIONS: [(u32, &str, &str); 4] = [
    (2, "REVOKE DELETE, TRUNCATE ON \"fence_counters\"", "the table is made by the same migration"),
    (
        4,
        "CREATE OR REPLACE FUNCTION \"kv_",
        "0.1.0 has none of them, and the state store makes the same ones",
    ),
    (4, "CREATE OR REPLACE FUNCTION \"receipts_", "0.1.0 has none of them"),
    (
        8,
        "CREATE INDEX malformed_intents_key_idx",
        "only intake and retention write to the table, which has few rows, and both try again",
    ),
];

/// The parts that a default must not contain: only for a constant does PostgreSQL add the column without
/// writing every row.
const VOLATILE: [&str; 5] = ["(", "CURRENT_", "LOCALTIME", "SESSION_USER", "NEXTVAL"];

/// The name at the beginning, with its schema if it has one, without quotes.
fn name(text: &str) -> String {
    let begin = "IF NOT EXISTS ";
    let has_begin = text.get(..begin.len()).is_some_and(|first| first.eq_ignore_ascii_case(begin));
    let text = if has_begin { &text[begin.len()..] } else { text };
    text.split([' ', '(']).next().unwrap_or_default().replace('"', "").to_lowercase()
}

/// The tables and constraints that a migration creates itself.
#[derive(Default)]
struct Made {
    /// Tables that no earlier migration has created.
    tables: BTreeSet<String>,
    /// Constraints that the migration adds to other tables, by table and name.
    constraints: BTreeSet<(String, String)>,
}

impl Made {
    /// Collects what these statements create, given the tables of earlier migrations.
    fn by(statements: &[Statement], existing: &BTreeSet<String>) -> Self {
        // With IF NOT EXISTS, an existing table stays as it is.
        let tables = statements.iter().filter_map(|statement| statement.after("CREATE TABLE ").map(name));
        let added = statements.iter().filter_map(|statement| constraint(statement, "ADD CONSTRAINT "));
        Self {
            tables: tables.filter(|table| !existing.contains(table)).collect(),
            constraints: added.collect(),
        }
    }
}

/// The table and the constraint of a statement with the action `what`, for example `ADD CONSTRAINT `.
fn constraint(statement: &Statement, what: &str) -> Option<(String, String)> {
    let (table, change) = statement.after("ALTER TABLE ")?.split_once(' ')?;
    let constraint = Statement(change.to_owned()).after(what).map(name)?;
    Some((name(table), constraint))
}

/// The reason why a statement may not be in a migration that creates these; `None` if it may.
fn objection(statement: &Statement, made: &Made) -> Option<&'static str> {
    let of_new_table = |rest: &str| made.tables.contains(&name(rest));
    for harmless in ["CREATE TABLE ", "CREATE SEQUENCE ", "CREATE FUNCTION ", "COMMENT ON "] {
        if statement.after(harmless).is_some() {
            return None;
        }
    }
    for index in ["CREATE INDEX ", "CREATE UNIQUE INDEX "] {
        if let Some((_, table)) = statement.after(index).and_then(|rest| rest.split_once(" ON ")) {
            let blocks = "an index of a table that exists locks out writers while it is built";
            return (!of_new_table(table)).then_some(blocks);
        }
    }
    if let Some(sequence) = statement.after("ALTER SEQUENCE ") {
        let owner = sequence.split_once(" OWNED BY ").and_then(|(_, column)| column.rsplit_once('.'));
        let owned = owner.is_some_and(|(table, _)| of_new_table(table));
        return (!owned).then_some("a sequence that exists is changed");
    }
    if let Some(rows) = statement.after("INSERT INTO ") {
        return (!of_new_table(rows)).then_some("rows of a table that exists are written");
    }
    if constraint(statement, "VALIDATE CONSTRAINT ").is_some_and(|one| made.constraints.contains(&one)) {
        return Some("every row is checked under the lock of ADD CONSTRAINT: VALIDATE in a later migration");
    }
    match statement.after("ALTER TABLE ") {
        Some(table) if of_new_table(table) => None,
        Some(table) => change_objection(table.split_once(' ').map_or("", |(_, change)| change)),
        None => Some("no rule allows it"),
    }
}

/// The reason why an existing table may not be changed like this; `None` if it may.
fn change_objection(change: &str) -> Option<&'static str> {
    let change = change.to_uppercase();
    if has_several_parts(&change) {
        return Some("several changes in one statement: one statement each");
    }
    if change.starts_with("VALIDATE CONSTRAINT ") {
        return None;
    }
    let Some(added) = change.strip_prefix("ADD ") else { return Some("a table that exists is changed") };
    if added.starts_with("CONSTRAINT ") {
        let unchecked = added.ends_with(" NOT VALID");
        return (!unchecked).then_some("every row is checked under a lock: NOT VALID, and VALIDATE later");
    }
    let Some(column) = added.strip_prefix("COLUMN ") else {
        return Some("a constraint without a name, or unclear");
    };
    let default = column.split_once(" DEFAULT ").map(|(_, default)| default);
    if default.is_some_and(|default| VOLATILE.iter().any(|word| default.contains(word))) {
        return Some("a default that is no constant writes every row");
    }
    for (word, reason) in [
        (" UNIQUE", "a unique column builds an index under a lock"),
        (" PRIMARY KEY", "a primary key builds an index under a lock"),
        (" REFERENCES ", "a foreign key checks every row under locks"),
        (" CHECK ", "a check reads every row under a lock"),
        (" GENERATED ", "a generated column writes every row"),
        ("SERIAL", "a serial column writes every row"),
    ] {
        if column.contains(word) {
            return Some(reason);
        }
    }
    let required = column.contains(" NOT NULL") && default.is_none();
    required.then_some("a column that must be given breaks the INSERT of the previous release")
}

/// Returns true if there is a comma outside parentheses.
fn has_several_parts(change: &str) -> bool {
    let mut depth = 0_u32;
    for character in change.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// The violations in a migration that follows those which created the existing tables.
fn objections_after(existing: &BTreeSet<String>, sql: &str) -> Vec<(Statement, &'static str)> {
    let statements = statements(sql);
    let made = Made::by(&statements, existing);
    let objected = |statement: Statement| objection(&statement, &made).map(|reason| (statement, reason));
    statements.into_iter().filter_map(objected).collect()
}

/// The violations in a migration that follows one which created `routes`.
fn objections(sql: &str) -> Vec<(Statement, &'static str)> {
    objections_after(&BTreeSet::from(["routes".to_owned()]), sql)
}

#[test]
fn every_migration_only_expands_what_the_previous_release_knows() {
    let (mut excepted, mut refused) = (BTreeSet::new(), Vec::new());
    let mut existing = BTreeSet::new();
    for migration in migrations::all() {
        let statements = statements(&migration.sql);
        assert!(!statements.is_empty(), "V{}", migration.version);
        for (statement, reason) in objections_after(&existing, &migration.sql) {
            let exception = EXCEPTIONS.iter().position(|(version, begin, _)| {
                *version == migration.version && statement.after(begin).is_some()
            });
            match exception {
                Some(exception) => excepted.extend([exception]),
                None => refused.push((migration.version, statement, reason)),
            }
        }
        existing.extend(Made::by(&statements, &existing).tables);
    }
    assert!(existing.contains("routes"), "{existing:?}");
    assert_eq!(refused, []);
    assert_eq!(excepted.len(), EXCEPTIONS.len(), "an exception that no migration needs");
}

#[test]
fn what_could_break_or_block_the_previous_release_is_refused() {
    for sql in [
        "DROP TABLE receipts",
        "DROP INDEX routes_due_idx",
        "TRUNCATE activity",
        "UPDATE routes SET channel = 'push'",
        "DELETE FROM activity",
        "LOCK TABLE routes",
        "CREATE OR REPLACE FUNCTION payload_document(payload text) RETURNS jsonb AS $f$ SELECT 1; $f$",
        "CREATE INDEX routes_new_idx ON routes (channel)",
        "create unique index routes_new_idx on routes (channel)",
        "CREATE INDEX CONCURRENTLY routes_new_idx ON routes (channel)",
        "CREATE TRIGGER t BEFORE INSERT ON routes EXECUTE FUNCTION f()",
        "SET search_path = other",
        "INSERT INTO installation VALUES (1)",
        "ALTER TABLE routes DROP COLUMN channel",
        "ALTER TABLE routes RENAME COLUMN channel TO way",
        "ALTER TABLE routes RENAME TO ways",
        "ALTER TABLE routes ALTER COLUMN channel TYPE varchar(9)",
        "ALTER TABLE routes ALTER COLUMN channel SET NOT NULL",
        "ALTER TABLE routes ADD COLUMN c text NOT NULL",
        "ALTER TABLE routes ADD COLUMN c timestamptz NOT NULL DEFAULT now()",
        "ALTER TABLE routes ADD COLUMN c timestamptz DEFAULT CURRENT_TIMESTAMP",
        "ALTER TABLE routes ADD COLUMN c text UNIQUE",
        "ALTER TABLE routes ADD COLUMN c bigserial",
        "ALTER TABLE routes ADD COLUMN c text CHECK (c <> '')",
        "ALTER TABLE routes ADD COLUMN c text REFERENCES records (notification_id)",
        "ALTER TABLE routes ADD COLUMN c text CHECK(c <> '')",
        "ALTER TABLE routes ADD COLUMN c text, ADD COLUMN d text NOT NULL",
        "ALTER TABLE routes ADD COLUMN c text,DROP COLUMN channel",
        "ALTER TABLE routes ADD COLUMN c numeric(3,2), OWNER TO other",
        "ALTER TABLE routes VALIDATE CONSTRAINT k,DROP COLUMN channel",
        "ALTER TABLE routes ADD CONSTRAINT k CHECK (channel <> '') NOT VALID; ALTER TABLE routes VALIDATE CONSTRAINT k",
        "ALTER TABLE \"routes\" ADD CONSTRAINT k CHECK (channel <> '') NOT VALID; alter table routes validate constraint \"k\"",
        "CREATE TABLE IF NOT EXISTS routes (a int); ALTER TABLE routes DROP COLUMN channel",
        "create table if not exists routes (a int); CREATE INDEX i ON routes (a)",
        "CREATE TABLE public.a (b int); ALTER TABLE public.routes DROP COLUMN channel",
        "ALTER TABLE routes ADD CONSTRAINT k CHECK (channel <> '')",
        "ALTER TABLE routes ADD PRIMARY KEY (channel)",
        "ALTER SEQUENCE kv_version_seq RESTART",
        "DO $$ BEGIN IF true THEN ALTER TABLE routes DROP COLUMN channel; END IF; END $$",
        "COMMENT ON TABLE routes IS 'it''s; fine'; DROP TABLE routes",
        "-- CREATE TABLE routes (a int);\nCREATE INDEX i ON routes (a)",
    ] {
        assert_eq!(objections(sql).len(), 1, "{sql}: {:?}", objections(sql));
    }
}

#[test]
fn what_a_release_may_add_is_allowed() {
    for sql in [
        "CREATE TABLE a (b text NOT NULL); CREATE INDEX a_idx ON a (b); INSERT INTO a VALUES ('DROP TABLE a;')",
        "CREATE TABLE IF NOT EXISTS \"a\" (b text); ALTER TABLE \"a\" ADD CONSTRAINT k CHECK (b <> '')",
        "ALTER TABLE routes ADD COLUMN c text; COMMENT ON COLUMN routes.c IS 'one; two'",
        "ALTER TABLE routes ADD COLUMN c text NOT NULL DEFAULT ''",
        "ALTER TABLE routes ADD COLUMN c numeric(3,2)",
        "CREATE TABLE other.a (b int); ALTER TABLE other.a ADD CHECK (b > 0); CREATE SEQUENCE s; ALTER SEQUENCE s OWNED BY other.a.b",
        "ALTER TABLE routes ADD CONSTRAINT k CHECK (channel <> '') NOT VALID",
        "ALTER TABLE routes VALIDATE CONSTRAINT k",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $body$ DELETE FROM x; SELECT 1; $body$",
    ] {
        assert_eq!(objections(sql), [], "{sql}");
    }
}
