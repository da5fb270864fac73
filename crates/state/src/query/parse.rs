//! Parses queries. Every error contains its place and the fault.

mod filter;
mod located;

use self::located::{Located, LocatedKind, quoted};
use super::expressions::Member;
use super::{Filter, MAX_PAGE, MAX_SORT_TERMS, Query, SortName, SortTerm, cursor};
use crate::json::{Fault, JsonError};
use crate::{Prefix, StateError};

/// The names that a filter may use.
pub trait Names {
    /// The kind of a name; `None` if the name does not exist.
    fn kind(&self, name: &str) -> Option<NameKind>;

    /// A description of the valid names, to end the sentence "a name must be …".
    fn describe(&self) -> &str;
}

/// The operators that a name allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// All operators.
    Json,
    /// `$before` and `$after` only.
    Time,
}

/// The members of a document: every identifier is a valid name.
#[derive(Clone, Copy, Debug)]
pub struct MemberNames;

impl Names for MemberNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        Member::new(name).map(|_| NameKind::Json)
    }

    fn describe(&self) -> &str {
        "ASCII letters, digits and _, and must not begin with a digit"
    }
}

impl Filter {
    /// Parses a filter alone.
    pub fn parse(text: &[u8], names: &impl Names) -> Result<Self, JsonError> {
        let filter = Located::read(text).and_then(|located| filter::read(located, names));
        filter.map_err(|fault| fault.in_text(text))
    }
}

pub(super) fn query(text: &[u8]) -> Result<Query, StateError> {
    let read = Located::read(text).and_then(from_object);
    read.map_err(|fault| StateError::InvalidQuery(fault.in_text(text).to_string()))
}

/// The members of a query that are present and not null.
#[derive(Default)]
struct QueryMembers {
    prefix: Option<Located>,
    filter: Option<Located>,
    sort: Option<Located>,
    limit: Option<Located>,
    offset: Option<Located>,
    cursor: Option<Located>,
    count: Option<Located>,
    matched: Option<Located>,
}

fn from_object(located: Located) -> Result<Query, Fault> {
    let given = given(located)?;
    let prefix = match given.prefix {
        Some(located) => {
            let at = located.at;
            Prefix::new(&located.into_string("prefix")?)
                .map_err(|error| Fault::new(at, format!("prefix: {error}")))?
        }
        None => Prefix::default(),
    };
    let filter = given.filter.map_or(Ok(Filter::default()), |located| filter::read(located, &MemberNames))?;
    let sort = given.sort.map_or(Ok(Vec::new()), sort)?;
    let fingerprint = cursor::fingerprint(&prefix, &filter, &sort);
    let offset_given = given.offset.as_ref().map(|located| located.at);
    let position = match given.cursor {
        Some(located) => {
            if let Some(at) = offset_given {
                return Err(Fault::new(at, "offset and cursor exclude each other"));
            }
            let at = located.at;
            let cursor = located.into_string("cursor")?;
            let not_of_it = || Fault::new(at, "the cursor is none of this query's");
            Some(cursor::decode(&cursor, &fingerprint, &prefix, &sort).ok_or_else(not_of_it)?)
        }
        None => None,
    };
    let limit = given.limit.map_or(Ok(0), |located| located.into_integer("limit", MAX_PAGE.into()))?;
    let offset = given.offset.map_or(Ok(0), |located| located.into_integer("offset", i64::MAX))?;
    Ok(Query {
        prefix,
        filter,
        sort,
        // Cannot be cut: it is at most MAX_PAGE.
        limit: if limit == 0 { MAX_PAGE } else { limit as u32 },
        offset,
        count: given.count.map_or(Ok(false), |located| located.into_bool("count"))?,
        matched: given.matched.map_or(Ok(false), |located| located.into_bool("matched"))?,
        position,
        fingerprint,
    })
}

fn given(located: Located) -> Result<QueryMembers, Fault> {
    let mut given = QueryMembers::default();
    let LocatedKind::Object(members) = located.kind else {
        return Err(Fault::new(located.at, "a query must be an object"));
    };
    for (name, (at, value)) in members {
        let slot = match name.as_str() {
            "prefix" => &mut given.prefix,
            "filter" => &mut given.filter,
            "sort" => &mut given.sort,
            "limit" => &mut given.limit,
            "offset" => &mut given.offset,
            "cursor" => &mut given.cursor,
            "count" => &mut given.count,
            "matched" => &mut given.matched,
            _ => {
                let reason = format!(
                    "unknown member {}; a query has prefix, filter, sort, limit, offset, cursor, count and matched",
                    quoted(&name)
                );
                return Err(Fault::new(at, reason));
            }
        };
        *slot = Some(value).filter(|value| !matches!(value.kind, LocatedKind::Null));
    }
    Ok(given)
}

fn sort(located: Located) -> Result<Vec<SortTerm>, Fault> {
    let LocatedKind::Array(elements) = located.kind else {
        return Err(Fault::new(located.at, "sort must be an array of names"));
    };
    if elements.len() > MAX_SORT_TERMS {
        return Err(Fault::new(located.at, format!("sort has more than {MAX_SORT_TERMS} names")));
    }
    let mut terms: Vec<SortTerm> = Vec::new();
    for element in elements {
        let at = element.at;
        let text = element.into_string("an element of sort")?;
        let (name, descending) = match text.strip_prefix('-') {
            Some(name) => (name, true),
            None => (text.as_str(), false),
        };
        let name = match name {
            "key" => SortName::Key,
            "created_at" => SortName::CreatedAt,
            "updated_at" => SortName::UpdatedAt,
            name => SortName::Member(Member::new(name).ok_or_else(|| bad_name(at, name, &MemberNames))?),
        };
        if terms.iter().any(|term| term.name == name) {
            return Err(Fault::new(at, format!("{} is sorted by twice", quoted(&text))));
        }
        terms.push(SortTerm { name, descending });
    }
    Ok(terms)
}

fn bad_name(at: usize, name: &str, names: &impl Names) -> Fault {
    Fault::new(at, format!("unknown name {}: a name must be {}", quoted(name), names.describe()))
}

#[cfg(test)]
mod tests;
