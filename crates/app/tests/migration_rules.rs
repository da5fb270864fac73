//! Every migration only expands the schema, so that the previous release runs on it, and so that none of its statements blocks traffic.
//!
//! `migrations/README.md` gives the reasons. What a migration may contain is a list; anything else fails, unless it is an exception
//! with a reason here.

use std::collections::BTreeSet;

use app::migrations;

/// Statements that no rule allows, by the migration and what they begin with, and why they harm nothing.
const EXCEPTIONS: [(u32, &str, &str); 3] = [
    (2, "REVOKE DELETE, TRUNCATE ON \"fence_counters\"", "the table is made by the same migration"),
    (
        4,
        "CREATE OR REPLACE FUNCTION \"kv_",
        "0.1.0 has none of them, and the state store makes the same ones",
    ),
    (4, "CREATE OR REPLACE FUNCTION \"receipts_", "0.1.0 has none of them"),
];

/// What a default may be so that PostgreSQL adds the column without writing every row: a constant.
const VOLATILE: [&str; 5] = ["(", "CURRENT_", "LOCALTIME", "SESSION_USER", "NEXTVAL"];

/// A statement with single spaces, without comments, and with `''` in place of each text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Statement(String);

impl Statement {
    /// What follows `prefix`, whatever its case.
    fn after(&self, prefix: &str) -> Option<&str> {
        let (head, rest) = self.0.split_at_checked(prefix.len())?;
        head.eq_ignore_ascii_case(prefix).then_some(rest)
    }
}

/// The statements of a script. The body of `DO` counts as statements, that of a function does not.
fn statements(sql: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    let (mut current, mut rest) = (String::new(), sql);
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if first == '\'' {
            rest = text_end(&rest[1..]);
            current.push_str("''");
        } else if let Some((tag, after)) = dollar_tag(rest) {
            let (body, after) = after.split_once(tag).expect("a dollar quote ends");
            if current.trim_start().to_uppercase().starts_with("DO") {
                current.clear();
                found.extend(statements(body).into_iter().filter_map(without_frame));
            }
            rest = after;
        } else if first == ';' {
            found.extend(statement(&std::mem::take(&mut current)));
            rest = &rest[1..];
        } else {
            current.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    found.extend(statement(&current));
    found
}

/// What follows the text that has begun: two quotes are one of its characters.
fn text_end(mut rest: &str) -> &str {
    loop {
        let (_, after) = rest.split_once('\'').expect("a text ends");
        match after.strip_prefix('\'') {
            Some(more) => rest = more,
            None => return after,
        }
    }
}

/// `$body$` at the beginning, and what follows it.
fn dollar_tag(text: &str) -> Option<(&str, &str)> {
    let end = text.strip_prefix('$')?.find('$')? + 2;
    let (tag, after) = text.split_at(end);
    tag[1..end - 1].chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some((tag, after))
}

fn statement(text: &str) -> Option<Statement> {
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| Statement(words.join(" ")))
}

/// A statement of a block without `BEGIN`, `IF … THEN` and `END`.
fn without_frame(Statement(mut text): Statement) -> Option<Statement> {
    if let Some(rest) = text.strip_prefix("BEGIN ") {
        text = rest.to_owned();
    }
    if text.starts_with("IF ") {
        text = text.split_once(" THEN ").expect("IF has a THEN").1.to_owned();
    }
    (text != "END IF" && text != "END").then_some(Statement(text))
}

/// The name at the beginning, without quotes.
fn name(text: &str) -> String {
    let text = text.trim_start();
    let text = text.strip_prefix("IF NOT EXISTS ").unwrap_or(text);
    text.split([' ', '(', '.']).next().unwrap_or_default().trim_matches('"').to_lowercase()
}

/// Why a statement may not be in a migration that makes these tables; `None` if it may.
fn objection(statement: &Statement, made: &BTreeSet<String>) -> Option<&'static str> {
    let of_new_table = |rest: &str| made.contains(&name(rest));
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
        let owned = sequence.split_once(" OWNED BY ").is_some_and(|(_, column)| of_new_table(column));
        return (!owned).then_some("a sequence that exists is changed");
    }
    if let Some(rows) = statement.after("INSERT INTO ") {
        return (!of_new_table(rows)).then_some("rows of a table that exists are written");
    }
    match statement.after("ALTER TABLE ") {
        Some(table) if of_new_table(table) => None,
        Some(table) => change_objection(table.split_once(' ').map_or("", |(_, change)| change)),
        None => Some("no rule allows it"),
    }
}

/// Why a table that exists may not be changed so.
fn change_objection(change: &str) -> Option<&'static str> {
    let change = change.to_uppercase();
    if change.starts_with("VALIDATE CONSTRAINT ") && !change.contains(',') {
        return None;
    }
    let Some(added) = change.strip_prefix("ADD ") else { return Some("a table that exists is changed") };
    if added.contains(", ADD ") || added.contains(", ALTER ") || added.contains(", DROP ") {
        return Some("several changes in one statement: one statement each");
    }
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

fn objections(sql: &str) -> Vec<(Statement, &'static str)> {
    let statements = statements(sql);
    let made: BTreeSet<String> =
        statements.iter().filter_map(|statement| statement.after("CREATE TABLE ").map(name)).collect();
    let objected = |statement: Statement| objection(&statement, &made).map(|reason| (statement, reason));
    statements.into_iter().filter_map(objected).collect()
}

#[test]
fn every_migration_only_expands_what_the_previous_release_knows() {
    let (mut excepted, mut refused) = (BTreeSet::new(), Vec::new());
    for migration in migrations::all() {
        assert!(!statements(&migration.sql).is_empty(), "V{}", migration.version);
        for (statement, reason) in objections(&migration.sql) {
            let exception = EXCEPTIONS.iter().position(|(version, begin, _)| {
                *version == migration.version && statement.after(begin).is_some()
            });
            match exception {
                Some(exception) => excepted.extend([exception]),
                None => refused.push((migration.version, statement, reason)),
            }
        }
    }
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
        "ALTER TABLE routes ADD COLUMN c text, ADD COLUMN d text NOT NULL",
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
        "ALTER TABLE routes ADD CONSTRAINT k CHECK (channel <> '') NOT VALID",
        "ALTER TABLE routes VALIDATE CONSTRAINT k",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $body$ DELETE FROM x; SELECT 1; $body$",
    ] {
        assert_eq!(objections(sql), [], "{sql}");
    }
}
