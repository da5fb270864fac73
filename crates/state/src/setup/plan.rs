//! Checks an existing table: its faults, and the parts that it lacks.

use super::catalogue::{Column, Index, Relation};

/// The columns that a table must already have.
const KEY: (&str, &str) = ("key", "text");
const VALUE: (&str, &str) = ("value", "jsonb");
const TIME: &str = "timestamp with time zone";
/// The columns that are added, with their types and the SQL that adds them without rewriting existing rows.
const ADDED: [(&str, &str, &str); 3] = [
    ("version", "bigint", "version bigint NOT NULL DEFAULT 0"),
    ("created_at", TIME, "created_at timestamptz NOT NULL DEFAULT now()"),
    ("updated_at", TIME, "updated_at timestamptz NOT NULL DEFAULT now()"),
];

/// The reason why the relation cannot become a table of documents, even with the columns that can be added.
pub(super) fn check(relation: &Relation) -> Result<(), String> {
    let kind = match relation.kind.as_str() {
        "r" => None,
        "p" => Some("a partitioned table"),
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        "i" | "I" => Some("an index"),
        "S" => Some("a sequence"),
        _ => Some("something else"),
    };
    if let Some(kind) = kind {
        return Err(format!("it is {kind}, not a table"));
    }
    for (name, expected) in [KEY, VALUE] {
        let column = column(relation, name).ok_or_else(|| format!("it has no column {name} {expected}"))?;
        check_column(column, expected)?;
    }
    for (name, expected, _) in ADDED {
        column(relation, name).map_or(Ok(()), |column| check_column(column, expected))?;
    }
    let ours =
        |name: &str| [KEY.0, VALUE.0].contains(&name) || ADDED.iter().any(|(added, _, _)| *added == name);
    let needed = relation
        .columns
        .iter()
        .find(|one| one.not_null && !one.has_default && !one.generated && !ours(&one.name));
    if let Some(needed) = needed {
        return Err(format!("its column {} is NOT NULL and has no default", needed.name));
    }
    if !relation.indexes.iter().any(keeps_keys_apart) {
        return Err("its column key is not a primary key".to_owned());
    }
    Ok(())
}

fn check_column(column: &Column, expected: &str) -> Result<(), String> {
    let Column { name, kind, .. } = column;
    if kind != expected {
        return Err(format!("its column {name} is {kind}, not {expected}"));
    }
    if !column.not_null {
        return Err(format!("its column {name} may be NULL"));
    }
    if column.generated {
        return Err(format!("its column {name} is generated"));
    }
    if !column.by_bytes {
        return Err(format!("its column {name} calls different texts equal, by its collation"));
    }
    Ok(())
}

fn column<'a>(relation: &'a Relation, name: &str) -> Option<&'a Column> {
    relation.columns.iter().find(|column| column.name == name)
}

pub(super) fn has_column(relation: &Relation, name: &str) -> bool {
    column(relation, name).is_some()
}

/// The definitions of the missing columns.
pub(super) fn missing_columns(relation: &Relation) -> Vec<&'static str> {
    ADDED
        .iter()
        .filter(|(name, _, _)| !has_column(relation, name))
        .map(|(_, _, definition)| *definition)
        .collect()
}

/// Returns true if the index prevents two rows with one key.
fn keeps_keys_apart(index: &Index) -> bool {
    index.unique
        && index.valid
        && index.whole
        && index.columns == 1
        && index.method == "btree"
        && index.first == KEY.0
}

/// Returns true if the index serves ranges of keys in byte order.
pub(super) fn orders_keys_by_bytes(index: &Index) -> bool {
    index.whole
        && index.method == "btree"
        && index.first == KEY.0
        && index.collation == "C"
        && index.operators == "text_ops"
}

/// Returns true if the index serves equality and containment.
pub(super) fn finds_values(index: &Index) -> bool {
    index.whole && index.method == "gin" && index.first == VALUE.0 && index.operators == "jsonb_path_ops"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original() -> Relation {
        let column = |name: &str, kind: &str| Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            not_null: true,
            has_default: false,
            generated: false,
            by_bytes: true,
        };
        let key = Index {
            name: "kv_pkey".to_owned(),
            method: "btree".to_owned(),
            valid: true,
            unique: true,
            whole: true,
            columns: 1,
            first: "key".to_owned(),
            operators: "text_ops".to_owned(),
            collation: "default".to_owned(),
        };
        Relation {
            kind: "r".to_owned(),
            schema: "public".to_owned(),
            columns: vec![
                column("key", "text"),
                column("value", "jsonb"),
                column("created_at", TIME),
                column("updated_at", TIME),
            ],
            indexes: vec![key],
            sequence: false,
        }
    }

    #[test]
    fn a_table_of_the_original_lacks_a_version_and_can_be_taken_over() {
        assert_eq!(check(&original()), Ok(()));
        assert_eq!(missing_columns(&original()), ["version bigint NOT NULL DEFAULT 0"]);
        assert!(!original().indexes.iter().any(orders_keys_by_bytes));
    }

    #[test]
    fn a_table_that_is_no_table_of_documents_is_refused_with_the_reason() {
        type Edit = fn(&mut Relation);
        let edits: [(Edit, &str); 12] = [
            (|table| table.kind = "v".to_owned(), "it is a view, not a table"),
            (|table| table.kind = "p".to_owned(), "it is a partitioned table, not a table"),
            (|table| drop(table.columns.remove(0)), "it has no column key text"),
            (|table| drop(table.columns.remove(1)), "it has no column value jsonb"),
            (|table| table.columns[1].kind = "json".to_owned(), "its column value is json, not jsonb"),
            (|table| table.columns[0].not_null = false, "its column key may be NULL"),
            (
                |table| table.columns[2].kind = "date".to_owned(),
                "its column created_at is date, not timestamp with time zone",
            ),
            (
                |table| table.columns[0].by_bytes = false,
                "its column key calls different texts equal, by its collation",
            ),
            (|table| table.columns[1].generated = true, "its column value is generated"),
            (
                |table| table.columns[3].name = "owner".to_owned(),
                "its column owner is NOT NULL and has no default",
            ),
            (|table| table.indexes.clear(), "its column key is not a primary key"),
            (|table| table.indexes[0].columns = 2, "its column key is not a primary key"),
        ];
        for (edit, problem) in edits {
            let mut table = original();
            edit(&mut table);
            assert_eq!(check(&table), Err(problem.to_owned()));
        }
    }
}
