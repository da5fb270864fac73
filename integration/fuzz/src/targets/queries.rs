//! Queries of the state store and documents that they run on: the query, then documents as key and value,
//! separated by 0x1e, with 0x1f between key and value. The query is also read as a filter.

use std::collections::BTreeMap;
use std::fmt::Write;

use ambient::Timestamp;
use pg::parameter::Parameters;
use state::json::{Json, Number};
use state::query::compile::{FilterTarget, Source, Table, count, page, readings};
use state::query::expressions::{IndexType, Member, Path};
use state::query::{
    Comparison, Filter, Group, MAX_CONDITIONS, MAX_ELEMENTS, MAX_LOGIC_LEVELS, MAX_PAGE, MAX_SORT_TERMS,
    MemberNames, NameKind, Names, Operand, Query, SortName, Test,
};
use state::{Document, Key, Value, Version};

use crate::Target;
use crate::text::{depth, has_place, records, units};

pub(super) const TARGET: Target = Target { name: "queries", max_bytes: 4 * 1024, check };

/// The most documents of one input.
const MAX_DOCUMENTS: usize = 24;
/// The deepest text that is printed and parsed again: printing adds the object of an operator.
const MAX_PRINTED_LEVELS: usize = 80;
/// The most bytes of SQL for a byte of a filter in its shortest form.
const MAX_SQL_GROWTH: usize = 400;

fn check(input: &[u8]) {
    let mut parts = records(input);
    let text = parts.next().unwrap_or_default();
    let documents: Vec<Document> = parts.take(MAX_DOCUMENTS).enumerate().filter_map(document).collect();
    match Filter::parse(text, &MemberNames) {
        Ok(filter) => check_filter(&filter, text, &documents),
        Err(error) => assert!(has_place(text, error.line, error.column), "{error}"),
    }
    if let Ok(filter) = Filter::parse(text, &SearchNames) {
        check_sql(&filter, &OfSearch);
    }
    match Query::parse(text) {
        Ok(query) => check_query(&query, depth(text), documents),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(" at line ") && !error.contains('\n'), "it has no place: {error}");
        }
    }
}

fn document((index, record): (usize, &[u8])) -> Option<Document> {
    let (key, value) = units(record);
    // Few different times and versions, so that documents are equal in them.
    let time = |divisor: usize| Timestamp::from_micros(i64::try_from(index / divisor).unwrap_or(0)).ok();
    Some(Document {
        key: Key::new(str::from_utf8(key).ok()?).ok()?,
        value: Value::parse(value).ok()?,
        version: Version(i64::try_from(index).unwrap_or(0)),
        created_at: time(2)?,
        updated_at: time(3)?,
    })
}

fn check_filter(filter: &Filter, text: &[u8], documents: &[Document]) {
    let size = FilterSize::of(filter);
    assert!(size.conditions <= MAX_CONDITIONS && size.elements <= MAX_ELEMENTS, "{size:?}");
    assert!(size.levels <= MAX_LOGIC_LEVELS, "{size:?}");
    if depth(text) <= MAX_PRINTED_LEVELS {
        let again = Filter::parse(filter_text(filter).as_bytes(), &MemberNames);
        assert_eq!(again.as_ref(), Ok(filter), "printed, it is another filter: {}", filter_text(filter));
    }
    for indexed in [Vec::new(), IndexType::ALL.to_vec()] {
        for in_order in [false, true] {
            check_sql(filter, &OfMembers { members: members_of(filter), indexed: indexed.clone(), in_order });
        }
    }
    let negated = Filter { conditions: Vec::new(), groups: vec![Group::Not(filter.clone())] };
    for document in documents.iter().filter_map(|document| document.value.to_json().ok()) {
        assert_ne!(filter.matches(&document), negated.matches(&document), "it matches, and does not");
    }
}

/// Checks that the SQL grows with the filter, and contains no text of it except names.
fn check_sql(filter: &Filter, target: &impl FilterTarget) {
    let mut parameters = Parameters::default();
    let sql = filter.to_sql(target, &mut parameters);
    let bytes = filter_text(filter).len();
    assert!(sql.len() <= MAX_SQL_GROWTH * bytes, "{} bytes of SQL for {bytes}", sql.len());
    assert!(parameters.into_iter().count() <= 4 * bytes);
    assert!(sql.is_ascii() && sql.matches('\'').count().is_multiple_of(2), "{sql}");
}

fn check_query(query: &Query, levels: usize, documents: Vec<Document>) {
    assert!((1..=MAX_PAGE).contains(&query.limit) && query.sort.len() <= MAX_SORT_TERMS);
    for indexed in [false, true] {
        let indexes = members_of(&query.filter).into_iter().map(|member| (member, IndexType::Text));
        let table = Table::new("kv", indexes.filter(|_| indexed).collect());
        let (first, second) = readings(query, &table);
        for reading in [Some(first), second].into_iter().flatten() {
            // Fails if the cursor needs a document.
            if let Ok(sql) = page(query, &table, reading, "*", &mut Parameters::default()) {
                assert!(sql.is_ascii() && sql.contains(" LIMIT "), "{sql}");
            }
        }
        assert!(count(query, &table, &mut Parameters::default()).is_ascii());
    }
    if query.position().is_none() && levels <= MAX_PRINTED_LEVELS {
        check_pages(query, documents);
    }
}

/// Checks that pages together are the whole list, in its order.
fn check_pages(query: &Query, documents: Vec<Document>) {
    // Keys are unique in a table.
    let documents: BTreeMap<Key, Document> =
        documents.into_iter().map(|document| (document.key.clone(), document)).collect();
    let keys = |query: &Query| {
        let page = query.run(documents.values()).expect("it needs no document");
        (page.rows.into_iter().map(|row| row.key).collect::<Vec<Key>>(), page.next_cursor)
    };
    let parse = |text: String| {
        let query = Query::parse(text.as_bytes());
        query.unwrap_or_else(|error| panic!("printed, it is no query: {error}: {text}"))
    };
    let (whole, _) = keys(&parse(query_text(query, MAX_PAGE, None)));
    let limit = query.limit.clamp(1, 3);
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let (mut rows, next) = keys(&parse(query_text(query, limit, cursor.as_deref())));
        assert!(rows.len() <= limit as usize && (next.is_none() || !rows.is_empty()));
        pages.append(&mut rows);
        assert!(pages.len() <= whole.len(), "a document is on two pages: {pages:?}");
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, whole, "the pages are not the list");
}

#[derive(Debug, Default)]
struct FilterSize {
    conditions: usize,
    elements: usize,
    levels: usize,
}

impl FilterSize {
    fn of(filter: &Filter) -> Self {
        let mut size = Self { conditions: filter.conditions.len(), ..Self::default() };
        for condition in &filter.conditions {
            size.elements += match &condition.test {
                Test::Equal(json) | Test::NotEqual(json) | Test::Contains(json) => elements(json),
                Test::In(list) | Test::NotIn(list) => list.iter().map(|json| elements(json).max(1)).sum(),
                _ => 0,
            };
        }
        for group in &filter.groups {
            let filters = match group {
                Group::And(filters) | Group::Or(filters) => filters.as_slice(),
                Group::Not(filter) => std::slice::from_ref(filter),
            };
            for inner in filters.iter().map(Self::of) {
                size.conditions += inner.conditions;
                size.elements += inner.elements;
                size.levels = size.levels.max(inner.levels + 1);
            }
        }
        size
    }
}

fn elements(json: &Json) -> usize {
    match json {
        Json::Array(array) => array.iter().map(|element| elements(element).max(1)).sum(),
        Json::Object(members) => members.values().map(elements).sum(),
        _ => 0,
    }
}

fn members_of(filter: &Filter) -> Vec<Member> {
    filter.names().into_iter().filter_map(Member::new).collect()
}

/// The members of documents, with these indexes.
struct OfMembers {
    members: Vec<Member>,
    indexed: Vec<IndexType>,
    in_order: bool,
}

impl FilterTarget for OfMembers {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let member = self.members.iter().find(|member| member.as_str() == name)?;
        let path = Path { document: "\"value\"", member, helper: "kv_rfc3339" };
        Some(Source::Member { path, indexed: self.indexed.clone(), in_order: self.in_order })
    }
}

/// Names of columns of each kind.
struct SearchNames;

impl Names for SearchNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        match name {
            "at" => Some(NameKind::Time),
            "a" | "b" | "route.b" => Some(NameKind::Json),
            _ => None,
        }
    }

    fn describe(&self) -> &str {
        "a, b, at or route.b"
    }
}

struct OfSearch;

impl FilterTarget for OfSearch {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        Some(match name {
            "at" => Source::Time("r.at".to_owned()),
            "a" => Source::Text { column: "r.a".to_owned(), helper: "kv_rfc3339" },
            _ => Source::Integer("r.b".to_owned()),
        })
    }

    fn relation(&self, name: &str) -> Option<&'static str> {
        name.starts_with("route.").then_some("routes")
    }

    fn some_row(&self, relation: &'static str, condition: String) -> String {
        format!("EXISTS (SELECT FROM {relation} WHERE {condition})")
    }
}

/// The text of a query. Numbers have their shortest form, so cursors of the original are not its cursors.
pub(super) fn query_text(query: &Query, limit: u32, cursor: Option<&str>) -> String {
    let term = |term: &state::query::SortTerm| {
        let name = match &term.name {
            SortName::Key => "key",
            SortName::CreatedAt => "created_at",
            SortName::UpdatedAt => "updated_at",
            SortName::Member(member) => member.as_str(),
        };
        quoted(&format!("{}{name}", if term.descending { "-" } else { "" }))
    };
    let sort: Vec<String> = query.sort.iter().map(term).collect();
    let cursor = cursor.map(|cursor| format!(",\"cursor\":{}", quoted(cursor))).unwrap_or_default();
    format!(
        "{{\"prefix\":{},\"filter\":{},\"sort\":[{}],\"limit\":{limit}{cursor}}}",
        quoted(query.prefix.as_str()),
        filter_text(&query.filter),
        sort.join(",")
    )
}

fn filter_text(filter: &Filter) -> String {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for condition in &filter.conditions {
        names.entry(&condition.name).or_default().push(test_text(&condition.test));
    }
    let names = names.into_iter().map(|(name, tests)| format!("{}:{{{}}}", quoted(name), tests.join(",")));
    let all = |filters: &[Filter]| filters.iter().map(filter_text).collect::<Vec<_>>().join(",");
    let groups = filter.groups.iter().map(|group| match group {
        Group::And(filters) => format!("\"$and\":[{}]", all(filters)),
        Group::Or(filters) => format!("\"$or\":[{}]", all(filters)),
        Group::Not(filter) => format!("\"$not\":{}", filter_text(filter)),
    });
    format!("{{{}}}", names.chain(groups).collect::<Vec<_>>().join(","))
}

fn test_text(test: &Test) -> String {
    let list = |operands: &[Json]| json_text(&Json::Array(operands.to_vec()));
    let (operator, operand) = match test {
        Test::Equal(json) => ("$eq", json_text(json)),
        Test::NotEqual(json) => ("$ne", json_text(json)),
        Test::Order(comparison, operand) => {
            let operator = match comparison {
                Comparison::Greater => "$gt",
                Comparison::GreaterOrEqual => "$gte",
                Comparison::Less => "$lt",
                Comparison::LessOrEqual => "$lte",
            };
            let operand = match operand {
                Operand::String(text) => quoted(text),
                Operand::Number(number) => number.to_scientific(),
            };
            (operator, operand)
        }
        Test::In(operands) => ("$in", list(operands)),
        Test::NotIn(operands) => ("$nin", list(operands)),
        Test::Exists(expected) => ("$exists", expected.to_string()),
        Test::Contains(json) => ("$contains", json_text(json)),
        Test::Before(instant) => ("$before", quoted(instant.as_str())),
        Test::After(instant) => ("$after", quoted(instant.as_str())),
    };
    format!("\"{operator}\":{operand}")
}

/// The text of a value, with its numbers in their shortest form.
fn json_text(json: &Json) -> String {
    let mut text = String::new();
    write_json(&mut text, json);
    text
}

fn write_json(out: &mut String, json: &Json) {
    match json {
        Json::Number(number) => out.push_str(&Number::to_scientific(number)),
        Json::String(text) => out.push_str(&quoted(text)),
        Json::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write_json(out, element);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (at, (name, member)) in members.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                out.push_str(&quoted(name));
                out.push(':');
                write_json(out, member);
            }
            out.push('}');
        }
        // Cannot fail: a string takes every text.
        scalar => write!(out, "{scalar}").expect("a string takes every text"),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
