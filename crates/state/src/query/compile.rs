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

use sea_query::{Expr, ExprTrait, Func, Query as Statement, SelectStatement};

use super::expressions::{IndexType, Member, Path, VALUE, helper_name};
use super::{Filter, Group, Query};
use crate::StateError;

pub(crate) use order::key_by_bytes;

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
        /// The column.
        column: Expr,
        /// The function that parses times: see [`super::expressions::helper_name`].
        helper: &'a str,
    },
    /// An integer column; NULL counts as missing.
    Integer(Expr),
    /// A time column; NULL counts as missing.
    Time(Expr),
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
    fn some_row(&self, _relation: &'static str, condition: Expr) -> Expr {
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
    pub fn to_expr(&self, target: &impl FilterTarget) -> Expr {
        let mut all: Vec<Expr> = Vec::new();
        let mut related: Vec<(&'static str, Vec<Expr>)> = Vec::new();
        for condition in &self.conditions {
            // An unknown name is never present.
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
    fn to_expr(&self, target: &impl FilterTarget) -> Expr {
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

/// Joins in pairs, to keep the expression as shallow as possible: the builder recurses once per level, and
/// the stack is limited.
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

/// The next keys of a query, in their order: the source of [`ReadPlan::Walk`]. Without columns and table.
pub fn walked(query: &Query, keys: u64) -> SelectStatement {
    let mut select = Statement::select();
    select.and_where(of_prefix(query));
    order::after_key(query, &mut select);
    select.limit(keys).take()
}

/// The rows of a page and one more, without columns and table, which the caller adds.
///
/// Plans, by key: a range of the primary key. With equality: the GIN index. With a declared index: its range,
/// in its order if the filter fixes the type of the sorted member. Otherwise all rows are read and sorted.
pub fn page(query: &Query, table: &Table, reading: ReadPlan) -> Result<SelectStatement, StateError> {
    let mut select = Statement::select();
    select.and_where(matching(query, table, order::is_of_an_index(query, table)));
    order::apply(query, table, reading, &mut select)?;
    select.limit(query.rows_to_read() as u64);
    if query.offset > 0 {
        select.offset(query.offset);
    }
    Ok(select)
}

/// The number of all matching rows, without the table, which the caller adds.
pub fn count(query: &Query, table: &Table) -> SelectStatement {
    let mut select = Statement::select();
    select.expr(Func::count(Expr::cust("*"))).and_where(matching(query, table, false));
    select
}

/// The condition of prefix and filter; `in_order` if the rows may be read in the order of an index.
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
