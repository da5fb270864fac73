//! The table: its columns, its indexes, its sequence, and the SQL that creates them.

use pg::rights::Grant;

use crate::TableName;
use crate::query::expressions::{helper_functions_sql, helper_name};

/// The name of the sequence of the table's versions.
pub(crate) fn sequence_name(table: &TableName) -> String {
    format!("{table}_version_seq")
}

/// The name of the index that serves equality and containment.
pub(crate) fn gin_index_name(table: &TableName) -> String {
    format!("{table}_value_gin")
}

/// The name of the index on the key by its bytes. In a table that [`schema_sql`] created, the primary key is
/// that index.
pub(crate) fn key_index_name(table: &TableName) -> String {
    format!("{table}_key_bytes")
}

/// The expression that draws the next version.
pub(crate) fn next_version(table: &TableName) -> String {
    format!("nextval('\"{}\"')", sequence_name(table))
}

/// The next version of a row `d`: from the sequence, and higher than the row's own version even if the
/// sequence was reset.
pub(crate) fn higher_version(table: &TableName) -> String {
    format!("GREATEST({}, d.version + 1)", next_version(table))
}

/// The SQL that creates the table, and the function that its queries call, in the first schema of
/// `search_path`, for a migration of the caller. Two tables of a schema share no name.
pub fn schema_sql(table: &TableName) -> String {
    let (name, sequence, next) = (table.quoted(), sequence_name(table), next_version(table));
    let gin = gin_index_name(table);
    format!(
        r#"CREATE SEQUENCE "{sequence}";
CREATE TABLE {name} (
    key        text COLLATE "C" NOT NULL,
    value      jsonb            NOT NULL,
    version    bigint           NOT NULL DEFAULT {next},
    created_at timestamptz      NOT NULL DEFAULT now(),
    updated_at timestamptz      NOT NULL DEFAULT now(),
    CONSTRAINT "{table}_pkey" PRIMARY KEY (key)
);
ALTER SEQUENCE "{sequence}" OWNED BY {name}.version;
CREATE INDEX "{gin}" ON {name} USING gin (value jsonb_path_ops);
{comments}{helpers}
"#,
        comments = comments_sql(table),
        helpers = helper_functions_sql(table.as_str()),
    )
}

/// The SQL comments of the table and its columns.
pub(crate) fn comments_sql(table: &TableName) -> String {
    let name = table.quoted();
    let columns = [
        ("key", "Names the document; compared and sorted by its bytes."),
        ("value", "The document: any JSON."),
        ("version", "Of the last write, from one sequence: never used twice, not even after a deletion."),
        ("created_at", "When the key was written first."),
        ("updated_at", "When the document was written last; every write makes it later."),
    ];
    let comments =
        columns.map(|(column, comment)| format!("COMMENT ON COLUMN {name}.{column} IS '{comment}';\n"));
    format!("COMMENT ON TABLE {name} IS 'JSON documents under keys.';\n{}", comments.concat())
}

/// The grants that the role needs to read and write documents. Creating the table and its indexes takes the
/// rights of an owner.
pub fn required_grants(table: &TableName) -> Vec<Grant> {
    vec![
        Grant::on_table(table.as_str(), &["SELECT", "INSERT", "UPDATE", "DELETE"]),
        Grant::on_sequence(sequence_name(table)),
        Grant::on_function_of_text(helper_name(table.as_str())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_go_with_the_longest_table_name_fit_into_an_identifier() {
        let table = TableName::parse(&"t".repeat(41)).expect("a name");
        for name in [sequence_name(&table), gin_index_name(&table), key_index_name(&table)] {
            assert!(name.len() <= 63, "{name}");
        }
    }
}
