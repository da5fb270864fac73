//! Queries as SQL. Values are parameters, and names pass [`super::expressions::Member`] before they enter a
//! text. No statement fails because of a document: a value is cast only after its type is checked.
//!
//! A condition is true exactly if the evaluator accepts, and false or NULL otherwise. `AND` and `OR` keep
//! that; `$not` compiles to `IS NOT TRUE`.
//!
//! Statements need custom plans, on sessions with [`QUERY_PARAMETERS`] (`PostgresStore::with_pools`): a
//! generic plan cannot tell which index fits.

mod condition;
mod order;

use pg::parameter::{self, Parameters};

use super::expressions::{IndexType, Member, Path, VALUE, helper_name};
use super::{Condition, Filter, Group, Query};
use crate::StateError;

use self::order::KEY_BY_BYTES;

const TRUE: &str = "TRUE";
const FALSE: &str = "FALSE";

/// The settings of sessions that run queries: custom plans, which use statistics, and read-only transactions.
/// Compiling a statement to machine code would take longer than these statements run.
pub const QUERY_PARAMETERS: &[(&str, &str)] =
    &[("plan_cache_mode", "force_custom_plan"), ("jit", "off"), ("default_transaction_read_only", "on")];

/// The place of the value that a name of a filter refers to.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A member of a document.
    Member {
        /// The path to the member.
        path: Path<'a>,
        /// The types under which the member is indexed.
        indexed: Vec<IndexType>,
        /// True if a page may be read in the order of an index. Conditions that only the GIN index serves
        /// must then look rare to the planner.
        in_order: bool,
    },
    /// A text column; NULL counts as missing.
    Text {
        /// The column, as SQL that needs no brackets.
        column: String,
        /// The function that parses times: see [`super::expressions::helper_name`].
        helper: &'a str,
    },
    /// An integer column; NULL counts as missing.
    Integer(String),
    /// A time column; NULL counts as missing.
    Time(String),
}

/// The table that a filter searches.
pub trait FilterTarget {
    /// The source of a name that [`super::Names`] accepts.
    fn source(&self, name: &str) -> Option<Source<'_>>;

    /// The related table that a name belongs to, if any: all conditions of one object on the same related
    /// table must hold for the same row of it.
    fn relation(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// The condition that some row of the related table meets `condition`.
    fn some_row(&self, _relation: &'static str, condition: String) -> String {
        condition
    }
}

/// A table of documents and its declared indexes.
#[derive(Clone, Debug)]
pub struct Table {
    /// The name as quoted SQL.
    name: String,
    helper: String,
    indexes: Vec<(Member, IndexType)>,
}

impl Table {
    /// The table of this name, with these indexes.
    pub fn new(name: &str, indexes: Vec<(Member, IndexType)>) -> Self {
        Self { name: format!("\"{name}\""), helper: helper_name(name), indexes }
    }

    /// The declared indexes.
    pub fn indexes(&self) -> &[(Member, IndexType)] {
        &self.indexes
    }

    fn path<'a>(&'a self, member: &'a Member) -> Path<'a> {
        Path { document: VALUE, member, helper: &self.helper }
    }

    fn is_indexed(&self, member: &Member, index_type: IndexType) -> bool {
        self.indexes.iter().any(|(name, of_type)| name == member && *of_type == index_type)
    }
}

/// The conditions that belong to one table.
struct OnTable<'a> {
    table: &'a Table,
    members: Vec<Member>,
    in_order: bool,
}

impl FilterTarget for OnTable<'_> {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let member = self.members.iter().find(|member| member.as_str() == name)?;
        let of_member = self.table.indexes.iter().filter(|(indexed, _)| indexed == member);
        let indexed = of_member.map(|(_, of_type)| *of_type).collect();
        Some(Source::Member { path: self.table.path(member), indexed, in_order: self.in_order })
    }
}

impl Filter {
    /// Compiles the filter to a condition on a row of the target.
    pub fn to_sql(&self, target: &impl FilterTarget, parameters: &mut Parameters) -> String {
        let mut all: Vec<String> = Vec::new();
        let mut related: Vec<(&'static str, Vec<String>)> = Vec::new();
        for Condition { name, test } in &self.conditions {
            // An unknown name is never present.
            let meets = |source: Source<'_>| source.meets(test, parameters);
            let condition = target.source(name).map_or_else(|| FALSE.to_owned(), meets);
            match target.relation(name) {
                None => all.push(condition),
                Some(relation) => match related.iter_mut().find(|(known, _)| *known == relation) {
                    Some((_, conditions)) => conditions.push(condition),
                    None => related.push((relation, vec![condition])),
                },
            }
        }
        let rows = related.into_iter().map(|(relation, all)| target.some_row(relation, every(all)));
        all.extend(rows);
        all.extend(self.groups.iter().map(|group| group.to_sql(target, parameters)));
        every(all)
    }

    /// The names of the filter and of its groups, in any order, with repetitions.
    pub fn names(&self) -> Vec<&str> {
        let own = self.conditions.iter().map(|condition| &*condition.name);
        let of_groups = self.groups.iter().flat_map(|group| match group {
            Group::And(filters) | Group::Or(filters) => filters.iter().flat_map(Filter::names).collect(),
            Group::Not(filter) => filter.names(),
        });
        own.chain(of_groups).collect()
    }
}

impl Group {
    fn to_sql(&self, target: &impl FilterTarget, parameters: &mut Parameters) -> String {
        match self {
            Self::And(filters) => every(filters.iter().map(|filter| filter.to_sql(target, parameters))),
            Self::Or(filters) => some(filters.iter().map(|filter| filter.to_sql(target, parameters))),
            Self::Not(filter) => format!("({} IS NOT TRUE)", filter.to_sql(target, parameters)),
        }
    }
}

fn every(conditions: impl IntoIterator<Item = String>) -> String {
    joined(conditions, " AND ", TRUE)
}

fn some(conditions: impl IntoIterator<Item = String>) -> String {
    joined(conditions, " OR ", FALSE)
}

/// The conditions in brackets, or `none` if there are none. The server reads a list without further brackets
/// as one level, however long it is.
fn joined(conditions: impl IntoIterator<Item = String>, operator: &str, none: &str) -> String {
    let conditions: Vec<String> = conditions.into_iter().collect();
    if conditions.is_empty() { none.to_owned() } else { format!("({})", conditions.join(operator)) }
}

/// The way to read a page in key order if no index serves its filter. PostgreSQL cannot estimate the number
/// of matching documents, expects nearly all, and reads documents in key order until the page is full: that
/// is right if many match, and takes many times as long as reading the whole table if few do. So the page is
/// read in two tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPlan {
    /// The plan that PostgreSQL chooses.
    Planned,
    /// A read of the documents of the next keys in their order, so many of them.
    Walk(u64),
    /// A read as if the table had no index on keys.
    Whole,
}

/// The minimum number of keys that the first try reads.
const MIN_WALKED_KEYS: u64 = 5_000;
const MAX_WALKED_KEYS: u64 = 20_000;
const WALKED_KEYS_PER_DOCUMENT: u64 = 15;

/// The readings of a page: the second applies if the first does not fill the page.
pub fn readings(query: &Query, table: &Table) -> (ReadPlan, Option<ReadPlan>) {
    let is_guessed = query.filter != Filter::default()
        && order::is_by_key(query, table)
        && !is_served(&query.filter, table);
    let keys = WALKED_KEYS_PER_DOCUMENT * u64::from(query.limit);
    let keys = keys.clamp(MIN_WALKED_KEYS, MAX_WALKED_KEYS);
    match is_guessed {
        false => (ReadPlan::Planned, None),
        // A count of all matches needs all documents anyway.
        true if query.matched || query.offset > 0 => (ReadPlan::Whole, None),
        true => (ReadPlan::Walk(keys), Some(ReadPlan::Whole)),
    }
}

/// Returns true if an index finds the matching documents.
fn is_served(filter: &Filter, table: &Table) -> bool {
    let condition = |condition: &Condition| {
        let of_name = table.indexes.iter().filter(|(member, _)| member.as_str() == &*condition.name);
        let indexed: Vec<IndexType> = of_name.map(|(_, index_type)| *index_type).collect();
        condition::is_served(&condition.test, &indexed)
    };
    filter.conditions.iter().any(condition)
        || filter.groups.iter().any(|group| match group {
            Group::And(filters) => filters.iter().any(|filter| is_served(filter, table)),
            Group::Or(filters) => filters.iter().all(|filter| is_served(filter, table)),
            Group::Not(_) => false,
        })
}

/// The rows of a page and one more.
///
/// Plans, by key: a range of the primary key. With equality: the GIN index. With a declared index: its range,
/// in its order if the filter fixes the type of the sorted member. Otherwise all rows are read and sorted.
pub fn page(
    query: &Query,
    table: &Table,
    reading: ReadPlan,
    columns: &str,
    parameters: &mut Parameters,
) -> Result<String, StateError> {
    let source = match reading {
        ReadPlan::Walk(keys) => walked(query, table, keys, parameters),
        ReadPlan::Planned | ReadPlan::Whole => table.name.clone(),
    };
    let matching = matching(query, table, order::is_of_an_index(query, table), parameters);
    let condition = every([matching].into_iter().chain(order::after(query, table, parameters)?));
    let order = order::of_page(query, table, reading);
    let limit = parameters.add(parameter::rows(query.rows_to_read()));
    let mut text = format!("SELECT {columns} FROM {source} WHERE {condition} ORDER BY {order} LIMIT {limit}");
    if query.offset > 0 {
        let offset = i64::try_from(query.offset).unwrap_or(i64::MAX);
        text += &format!(" OFFSET {}", parameters.add(parameter::bigint(offset)));
    }
    Ok(text)
}

/// The rows of the next keys of a query, in their order: the source of [`ReadPlan::Walk`].
fn walked(query: &Query, table: &Table, keys: u64, parameters: &mut Parameters) -> String {
    let prefix = of_prefix(query, parameters);
    let condition = every([prefix].into_iter().chain(order::after_key(query, parameters)));
    let keys = parameters.add(parameter::bigint(i64::try_from(keys).unwrap_or(i64::MAX)));
    let order = order::by_key(query);
    format!("(SELECT * FROM {} WHERE {condition} ORDER BY {order} LIMIT {keys}) AS walked", table.name)
}

/// The number of all matching rows, as `count`.
pub fn count(query: &Query, table: &Table, parameters: &mut Parameters) -> String {
    let condition = matching(query, table, false, parameters);
    format!("SELECT count(*) AS count FROM {} WHERE {condition}", table.name)
}

/// The condition of prefix and filter; `in_order` if the rows may be read in the order of an index.
fn matching(query: &Query, table: &Table, in_order: bool, parameters: &mut Parameters) -> String {
    let prefix = of_prefix(query, parameters);
    let members: Vec<Member> = query.filter.names().into_iter().filter_map(Member::new).collect();
    every([prefix, query.filter.to_sql(&OnTable { table, members, in_order }, parameters)])
}

fn of_prefix(query: &Query, parameters: &mut Parameters) -> String {
    let prefix = query.prefix.as_str();
    let mut add = |text: &str| parameters.add(parameter::text(text));
    let from = (!prefix.is_empty()).then(|| format!("{KEY_BY_BYTES} >= {}", add(prefix)));
    let until = query.prefix.end().map(|end| format!("{KEY_BY_BYTES} < {}", add(&end)));
    every(from.into_iter().chain(until))
}
