//! The declared indexes on members of a table's documents.

use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest, Sha256};

use crate::TableName;
use crate::query::expressions::{IndexType, Member};

/// The maximum number of declared indexes of one table.
pub const MAX_DECLARED_INDEXES: usize = 64;
/// The longest identifier of PostgreSQL, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;
/// The bytes of the hash that keeps shortened index names distinct.
const NAME_HASH_BYTES: usize = 8;

/// A declared index: on a top-level member of the value, as one type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IndexSpec {
    member: Member,
    kind: IndexType,
}

/// The items of a list that do not declare an index.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct IndexSpecErrors(Vec<String>);

impl IndexSpecErrors {
    /// The problems, one sentence for each item.
    pub fn reasons(&self) -> &[String] {
        &self.0
    }
}

impl IndexSpec {
    /// Parses `status,(deadline_at)::timestamptz`: items separated by commas, each a member, which is indexed
    /// as text, or `(member)::type`. Empty items and repeated items are skipped. The error names every item
    /// that is wrong.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, IndexSpecErrors> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let (mut specs, mut errors, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for item in items {
            match Self::parse(item) {
                Ok(spec) if seen.insert(spec.clone()) => specs.push(spec),
                Ok(_) => {}
                Err(reason) => errors.push(reason),
            }
        }
        if specs.len() > MAX_DECLARED_INDEXES {
            errors.push(format!("{} indexes are declared; at most {MAX_DECLARED_INDEXES}", specs.len()));
        }
        if errors.is_empty() { Ok(specs) } else { Err(IndexSpecErrors(errors)) }
    }

    fn parse(item: &str) -> Result<Self, String> {
        let (member, kind) = match item.strip_prefix('(').and_then(|rest| rest.split_once(")::")) {
            None => (item, IndexType::Text.as_str()),
            Some(parts) => parts,
        };
        let Some(member) = Member::new(member) else {
            return Err(format!(
                "{item:?} declares no index: write member or (member)::type, where a member is a letter or _, then letters, digits and _"
            ));
        };
        let Some(kind) = IndexType::parse(&kind.to_ascii_lowercase()) else {
            let all = IndexType::ALL.map(IndexType::as_str).join(", ");
            return Err(format!("{item:?} declares no index: its type is none of {all}"));
        };
        Ok(Self { member, kind })
    }

    /// The member of the value.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The type.
    pub fn kind(&self) -> IndexType {
        self.kind
    }

    /// The name of the index. It is unique over all tables: neither a table nor a member contains `-`.
    pub(crate) fn index_name(&self, table: &TableName) -> String {
        let kind = self.kind.as_str();
        let whole = format!("{table}-{}-{kind}", self.member.as_str());
        if whole.len() <= MAX_IDENTIFIER_BYTES {
            return whole;
        }
        let hash = hex::encode(&Sha256::digest(&whole)[..NAME_HASH_BYTES]);
        // All are ASCII. A name that was not shortened never contains two dashes in a row.
        let kept = MAX_IDENTIFIER_BYTES - "--".len() - hash.len() - "-".len() - kind.len();
        format!("{}--{hash}-{kind}", &whole[..kept])
    }
}

/// Writes the index as it is declared.
impl fmt::Display for IndexSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})::{}", self.member.as_str(), self.kind.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<String> {
        IndexSpec::parse_list(text).expect("a list").iter().map(ToString::to_string).collect()
    }

    // K-10
    #[test]
    fn the_example_of_the_original_declares_two_indexes() {
        assert_eq!(
            parsed("status,(deadline_at)::timestamptz"),
            ["(status)::text", "(deadline_at)::timestamptz"]
        );
        assert_eq!(parsed(" , a ,,(b)::INT, a"), ["(a)::text", "(b)::int"]);
        assert_eq!(parsed("a,(a)::numeric,A"), ["(a)::text", "(a)::numeric", "(A)::text"]);
        assert!(parsed("").is_empty());
    }

    // K-11
    #[test]
    fn every_item_that_declares_no_index_is_named() {
        let bad = [
            "status;drop",
            "(a)::b c",
            "(a::int)",
            "(a)::",
            "()::int",
            "1a",
            "a b",
            "ä",
            "(a)::jsonb",
            "a::int",
        ];
        for item in bad {
            let errors = IndexSpec::parse_list(&format!("ok,{item}")).expect_err(item);
            assert_eq!(errors.reasons().len(), 1, "{errors}");
            assert!(errors.to_string().contains(&format!("{item:?}")), "{errors}");
        }
        let errors = IndexSpec::parse_list(&bad.join(",")).expect_err("all are wrong");
        assert_eq!(errors.reasons().len(), bad.len());
        let many: Vec<String> = (0..=MAX_DECLARED_INDEXES).map(|number| format!("m{number}")).collect();
        assert!(IndexSpec::parse_list(&many[1..].join(",")).is_ok());
        assert!(IndexSpec::parse_list(&many.join(",")).is_err());
    }

    #[test]
    fn names_of_indexes_fit_and_differ_whatever_table_member_and_type_are() {
        let tables = ["kv", "kv_a", &"t".repeat(41), &"t".repeat(40)]
            .map(|name| TableName::parse(name).expect("a name"));
        let long = "m".repeat(200);
        let members =
            ["a", "A", "a_b", "b", "text", &long, &format!("{long}x"), &"t".repeat(60), &"t".repeat(61)];
        let mut names = BTreeSet::new();
        for table in &tables {
            for member in members {
                for kind in IndexType::ALL {
                    let name =
                        IndexSpec { member: Member::new(member).expect("a name"), kind }.index_name(table);
                    assert!(name.len() <= MAX_IDENTIFIER_BYTES, "{name}");
                    assert!(name.ends_with(kind.as_str()), "{name}");
                    assert!(names.insert(name.clone()), "{name} is there twice");
                }
            }
        }
    }
}
