//! Queries as SQL. Values are parameters, and names pass [`super::expressions::Member`] before they stand in
//! a text. No statement fails because of a document: what is cast is known to be of the type.
//!
//! A condition is true exactly if the evaluator says so, and false or NULL otherwise. `AND` and `OR` keep
//! that; under `$not` stands `IS NOT TRUE`.
//!
//! Statements are to be planned with their parameters, on sessions with [`QUERY_PARAMETERS`]
//! (`PostgresStore::with_pools`): a generic plan does not know whether an index fits.

mod condition;
mod order;

use sea_query::{Expr, ExprTrait, Func, Query as Statement, SelectStatement};

use super::expressions::{IndexType, Member, Path, VALUE, helper_name};
use super::{Filter, Group, Query};
use crate::StateError;

pub(crate) use order::key_by_bytes;

/// Settings of the sessions that run queries: they are planned with their values, by statistics, and write
/// nothing. Compiling a statement to machine code takes longer than these run.
pub const QUERY_PARAMETERS: &[(&str, &str)] =
    &[("plan_cache_mode", "force_custom_plan"), ("jit", "off"), ("default_transaction_read_only", "on")];

/// Where a name of a filter leads.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A member of a document.
    Member {
        /// Where it is.
        path: Path<'a>,
        /// As what it is indexed.
        indexed: Vec<IndexType>,
        /// Whether a page may be read in the order of an index, so that what only the GIN index finds has to
        /// look rare.
        in_order: bool,
    },
    /// A column of text; NULL is missing.
    Text {
        /// The column.
        column: Expr,
        /// The function that reads times: see [`super::expressions::helper_name`].
        helper: &'a str,
    },
    /// A column of integers; NULL is missing.
    Integer(Expr),
    /// A column of times; NULL is missing.
    Time(Expr),
}

/// The table that a filter is about.
pub trait Target {
    /// Where a name leads that [`super::Names`] let pass.
    fn source(&self, name: &str) -> Option<Source<'_>>;

    /// The other table that a name is about, if it is one: all conditions of one object on the same other
    /// table speak of one and the same row of it.
    fn relation(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Whether a row of that table meets the condition.
    fn some_row(&self, _relation: &'static str, condition: Expr) -> Expr {
        condition
    }
}

/// A table of documents and its declared indexes.
#[derive(Clone, Debug)]
pub struct Table {
    /// As SQL.
    name: String,
    helper: String,
    indexes: Vec<(Member, IndexType)>,
}

impl Table {
    /// The table of the name, with these indexes.
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

/// Conditions of one table.
struct OnTable<'a> {
    table: &'a Table,
    members: Vec<Member>,
    in_order: bool,
}

impl Target for OnTable<'_> {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let member = self.members.iter().find(|member| member.as_str() == name)?;
        let of_member = self.table.indexes.iter().filter(|(indexed, _)| indexed == member);
        let indexed = of_member.map(|(_, of_type)| *of_type).collect();
        Some(Source::Member { path: self.table.path(member), indexed, in_order: self.in_order })
    }
}

impl Filter {
    /// The condition on a row of the target.
    pub fn to_expr(&self, target: &impl Target) -> Expr {
        let mut all: Vec<Expr> = Vec::new();
        let mut related: Vec<(&'static str, Vec<Expr>)> = Vec::new();
        for condition in &self.conditions {
            // A name that is none is never there.
            let expr =
                target.source(&condition.name).map_or_else(never, |source| source.meets(&condition.test));
            match target.relation(&condition.name) {
                None => all.push(expr),
                Some(relation) => match related.iter_mut().find(|(known, _)| *known == relation) {
                    Some((_, exprs)) => exprs.push(expr),
                    None => related.push((relation, vec![expr])),
                },
            }
        }
        let rows = related.into_iter().map(|(relation, exprs)| target.some_row(relation, every(exprs)));
        all.extend(rows);
        all.extend(self.groups.iter().map(|group| group.to_expr(target)));
        every(all)
    }

    /// The names of it and of its groups, in any order and as often as they occur.
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
    fn to_expr(&self, target: &impl Target) -> Expr {
        match self {
            Self::And(filters) => every(filters.iter().map(|filter| filter.to_expr(target))),
            Self::Or(filters) => some(filters.iter().map(|filter| filter.to_expr(target))),
            Self::Not(filter) => Expr::cust_with_expr("(($1) IS NOT TRUE)", filter.to_expr(target)),
        }
    }
}

fn every(conditions: impl IntoIterator<Item = Expr>) -> Expr {
    joined(conditions, Expr::and).unwrap_or_else(|| Expr::cust("TRUE"))
}

fn some(conditions: impl IntoIterator<Item = Expr>) -> Expr {
    joined(conditions, Expr::or).unwrap_or_else(never)
}

/// Joined two by two, so that no expression is deeper than need be: the builder calls itself for each level,
/// and a stack ends.
fn joined(conditions: impl IntoIterator<Item = Expr>, join: impl Fn(Expr, Expr) -> Expr) -> Option<Expr> {
    let mut conditions: Vec<Expr> = conditions.into_iter().collect();
    while conditions.len() > 1 {
        let mut rest = conditions.into_iter();
        let mut joined = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(left) = rest.next() {
            joined.push(match rest.next() {
                Some(right) => join(left, right),
                None => left,
            });
        }
        conditions = joined;
    }
    conditions.pop()
}

fn never() -> Expr {
    Expr::cust("FALSE")
}

/// How a page in the order of keys is read whose filter no index serves. PostgreSQL knows nothing of how many
/// documents match, expects nearly all, and reads one after the other in the order of keys until the page is
/// full: that is right if many match, and takes many times as long as reading the whole table if few do. So
/// the page is read in two tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// As PostgreSQL plans it.
    Planned,
    /// Of so many keys, the next ones, in their order.
    Walk(u64),
    /// As if the table had no index on keys.
    Whole,
}

/// The keys that are looked at first: some for each document of the page, at least and at most so many.
const MIN_WALKED_KEYS: u64 = 5_000;
const MAX_WALKED_KEYS: u64 = 20_000;
const WALKED_KEYS_PER_DOCUMENT: u64 = 15;

/// How the page is read: the second reading is for when the first does not fill it.
pub fn readings(query: &Query, table: &Table) -> (Reading, Option<Reading>) {
    let is_guessed = query.filter != Filter::default()
        && order::is_by_key(query, table)
        && !is_served(&query.filter, table);
    let keys = WALKED_KEYS_PER_DOCUMENT * u64::from(query.limit);
    let keys = keys.clamp(MIN_WALKED_KEYS, MAX_WALKED_KEYS);
    match is_guessed {
        false => (Reading::Planned, None),
        // The number of all that match needs all documents anyway.
        true if query.matched || query.offset > 0 => (Reading::Whole, None),
        true => (Reading::Walk(keys), Some(Reading::Whole)),
    }
}

/// Whether an index leads to what matches.
fn is_served(filter: &Filter, table: &Table) -> bool {
    let condition = |condition: &super::Condition| {
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

/// The next keys of a query, in their order: what [`Reading::Walk`] reads from. Without columns and table.
pub fn walked(query: &Query, keys: u64) -> SelectStatement {
    let mut select = Statement::select();
    select.and_where(of_prefix(query));
    order::after_key(query, &mut select);
    select.limit(keys).take()
}

/// The rows of a page and one more, without columns and table: the caller adds them.
///
/// By key: a range of the primary key. With equality: the GIN index. With a declared index: its range, in its
/// order if the filter fixes the type of what is sorted by. Otherwise all rows are read and sorted.
pub fn page(query: &Query, table: &Table, reading: Reading) -> Result<SelectStatement, StateError> {
    let mut select = Statement::select();
    select.and_where(matching(query, table, order::is_of_an_index(query, table)));
    order::apply(query, table, reading, &mut select)?;
    select.limit(query.rows_to_read() as u64);
    if query.offset > 0 {
        select.offset(query.offset);
    }
    Ok(select)
}

/// How many rows match in all, without the table: the caller adds it.
pub fn count(query: &Query, table: &Table) -> SelectStatement {
    let mut select = Statement::select();
    select.expr(Func::count(Expr::cust("*"))).and_where(matching(query, table, false));
    select
}

/// Prefix and filter of what is read, perhaps in the order of an index.
fn matching(query: &Query, table: &Table, in_order: bool) -> Expr {
    let mut all = vec![];
    all.extend((!query.prefix.as_str().is_empty()).then(|| of_prefix(query)));
    if query.filter != Filter::default() {
        let members: Vec<Member> = query.filter.names().into_iter().filter_map(Member::new).collect();
        all.push(query.filter.to_expr(&OnTable { table, members, in_order }));
    }
    every(all)
}

fn of_prefix(query: &Query) -> Expr {
    let prefix = query.prefix.as_str();
    let mut all = Vec::new();
    all.extend((!prefix.is_empty()).then(|| key_by_bytes().gte(pg::bind::text(prefix))));
    all.extend(query.prefix.end().map(|end| key_by_bytes().lt(pg::bind::text(end))));
    every(all)
}
