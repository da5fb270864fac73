//! The name of a table.

use std::fmt;

/// The longest name of a table, in bytes. With the suffixes that are added, names of indexes fit into
/// PostgreSQL's 63 bytes.
pub const MAX_TABLE_NAME_BYTES: usize = 41;

/// The name of a table of documents: a lower-case letter or `_`, then up to 40 lower-case letters, digits and
/// `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableName(String);

/// The error for a text that is not a valid name of a table of documents.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a table name: a lower-case letter or _, then up to 40 lower-case letters, digits and _"
)]
pub struct TableNameError(String);

impl TableName {
    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, TableNameError> {
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let rest =
            text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if first && rest && text.len() <= MAX_TABLE_NAME_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(TableNameError(text.chars().take(2 * MAX_TABLE_NAME_BYTES).collect()))
        }
    }

    /// The name, unchanged.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as quoted SQL. A name can be a keyword, such as `user`.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// The name `kv`, as in the original.
impl Default for TableName {
    fn default() -> Self {
        Self("kv".to_owned())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_need_escaping_or_has_no_room_for_index_names_is_refused() {
        let longest = "a".repeat(MAX_TABLE_NAME_BYTES);
        for text in ["kv", "_", "a1_b", "user", &longest] {
            assert_eq!(TableName::parse(text).map(|name| name.quoted()), Ok(format!("\"{text}\"")));
        }
        for text in ["", "1a", "A", "a-b", "a b", "a.b", "a\"b", "ä", "a;", "a\0", &format!("{longest}a")] {
            assert!(TableName::parse(text).is_err(), "{text}");
        }
    }
}
