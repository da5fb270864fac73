//! The name of an outbox table.

use std::fmt;

/// The maximum length of an identifier of PostgreSQL, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// The name of an outbox table, with or without a schema; without one, `search_path` decides.
///
/// Each part matches `^[a-z_][a-z0-9_]{0,62}$`, so that it needs no escaping inside the quotes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

/// The text is not a table name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not the name of an outbox table: it takes [schema.]name, each of a to z, 0 to 9 and _, not beginning with a digit, \
     and at most 63 long"
)]
pub struct TableNameError(String);

impl TableName {
    /// Parses the text.
    pub fn parse(text: &str) -> Result<Self, TableNameError> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        if schema.is_none_or(is_identifier) && is_identifier(table) {
            Ok(Self { schema: schema.map(str::to_owned), table: table.to_owned() })
        } else {
            Err(TableNameError(text.chars().take(2 * MAX_IDENTIFIER_BYTES).collect()))
        }
    }

    /// Returns the schema, if the name has one.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Returns the table's own name.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns the name as SQL, every part quoted.
    pub fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{}\"", self.table),
            None => format!("\"{}\"", self.table),
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    first
        && text.len() <= MAX_IDENTIFIER_BYTES
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, table: "openoutbox_events".to_owned() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_part_by_part() {
        let quoted = |text: &str| TableName::parse(text).map(|name| name.quoted());
        assert_eq!(quoted("openoutbox_events"), Ok(r#""openoutbox_events""#.to_owned()));
        assert_eq!(quoted("_a.b_2"), Ok(r#""_a"."b_2""#.to_owned()));
    }

    #[test]
    fn what_would_need_escaping_is_no_name() {
        let long = "a".repeat(64);
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "A",
            "a-b",
            "a b",
            "a\"b",
            "ä",
            "a;",
            &long,
            &format!("a.{long}"),
        ] {
            assert!(TableName::parse(text).is_err(), "{text}");
        }
        assert!(TableName::parse(&"a".repeat(63)).is_ok());
    }
}
