//! Compilation of one condition.

use pg::bind;
use pg::sql::any;
use sea_query::{BinOper, Expr, ExprTrait, Func};

use super::{Source, every, never, some};
use crate::json::{Json, Number};
use crate::query::expressions::{
    IndexType, Path, bind_json, bind_number, bind_numbers, by_bytes, cut_as_indexed, is_indexed_whole,
    number_as_indexed,
};
use crate::query::{Comparison, Instant, Operand, Test, containment};

/// The most elements of `$in` that are searched in the GIN index. Each is a separate scan, and planning many
/// takes longer than reading many rows.
const MAX_ALTERNATIVES: usize = 64;

impl Source<'_> {
    /// True exactly if the value, or its absence, passes the test.
    pub(super) fn meets(&self, test: &Test) -> Expr {
        match self {
            Self::Member { path, indexed, in_order } => {
                MemberAccess { path, indexed, in_order: *in_order }.meets(test)
            }
            Self::Text { column, helper } => text_meets(column, helper, test),
            Self::Integer(column) => integer_meets(column, test),
            Self::Time(column) => time_meets(column, test),
        }
    }
}

fn compare(left: Expr, comparison: Comparison, right: Expr) -> Expr {
    match comparison {
        Comparison::Greater => left.gt(right),
        Comparison::GreaterOrEqual => left.gte(right),
        Comparison::Less => left.lt(right),
        Comparison::LessOrEqual => left.lte(right),
    }
}

/// The necessary condition on values that are cut or rounded in the same direction.
fn compare_indexed(left: Expr, comparison: Comparison, right: Expr) -> Expr {
    match comparison {
        Comparison::Greater | Comparison::GreaterOrEqual => left.gte(right),
        Comparison::Less | Comparison::LessOrEqual => left.lte(right),
    }
}

/// Parses a text as an instant with the function that parses those in documents, so that both are parsed in
/// the same way; NULL if the text is not a time.
fn read(helper: &str, text: Expr) -> Expr {
    Func::cust(helper.to_owned()).arg(text).into()
}

fn instant(helper: &str, time: &Instant) -> Expr {
    read(helper, bind::text(time.as_str()))
}

fn contains(document: Expr, part: &str) -> Expr {
    document.binary(BinOper::Custom("@>"), bind_json(part.to_owned()))
}

/// Returns true if the GIN index has an entry for the value: it indexes scalars only.
fn has_scalar(json: &Json) -> bool {
    match json {
        Json::Array(elements) => elements.iter().any(has_scalar),
        Json::Object(members) => members.values().any(has_scalar),
        _ => true,
    }
}

/// A member of a document.
struct MemberAccess<'a> {
    path: &'a Path<'a>,
    indexed: &'a [IndexType],
    in_order: bool,
}

impl MemberAccess<'_> {
    fn meets(&self, test: &Test) -> Expr {
        let value = || self.path.value();
        match test {
            Test::Equal(operand) => self.equals(operand),
            Test::NotEqual(operand) => {
                let others = self.is_another_text(std::slice::from_ref(operand));
                every(others.into_iter().chain([value().ne(bind_json(operand.to_short_text()))]))
            }
            Test::Order(comparison, Operand::String(text)) => self.order_of_text(*comparison, text),
            Test::Order(comparison, Operand::Number(number)) => self.order_of_number(*comparison, number),
            Test::In(operands) => self.is_one_of(operands),
            Test::NotIn(operands) => {
                let all = Func::cust("ALL").arg(bind::jsonbs(operands.iter().map(Json::to_short_text)));
                let exact = value().is_not_null().and(value().ne(Expr::expr(all)));
                every(self.is_another_text(operands).into_iter().chain([exact]))
            }
            Test::Exists(true) => value().is_not_null(),
            Test::Exists(false) => value().is_null(),
            Test::Contains(operand) => self.contains(operand),
            Test::Before(time) => self.path.instant().lt(instant(self.path.helper, time)),
            Test::After(time) => self.path.instant().gt(instant(self.path.helper, time)),
        }
    }

    fn is_indexed(&self, index_type: IndexType) -> bool {
        self.indexed.contains(&index_type)
    }

    /// The text `{"member": operand}`.
    fn document(&self, operand: &str) -> String {
        // The name is an identifier, so it needs no escapes.
        format!("{{\"{}\": {operand}}}", self.path.member.as_str())
    }

    /// The condition that the document contains `{"member": operand}`.
    fn has(&self, operand: &str) -> Expr {
        contains(self.path.document(), &self.document(operand))
    }

    /// The condition [`Self::has`], for conditions that only the GIN index serves.
    ///
    /// PostgreSQL estimates containment from the hundred documents of a histogram, or has no estimate. A
    /// value that one of them has by chance seems to be in every hundredth document, so that a page seems to
    /// fill soon in key order, and all documents are read. A repeated condition counts twice in the estimate:
    /// a hundredth becomes a ten-thousandth, a half a quarter.
    fn found_by_gin(&self, operand: &str) -> Expr {
        if self.in_order { self.has(operand).and(self.has(operand)) } else { self.has(operand) }
    }

    /// Containment is equality for scalars, and a necessary condition for other values. Equality is checked
    /// first, and one containment step is enough for the index.
    fn equals(&self, operand: &Json) -> Expr {
        let by_index = self.equals_by_index(operand);
        let step = containment::steps(operand).and_then(|steps| steps.into_iter().find(has_scalar));
        let contains = step.map(|step| match (step.to_short_text(), &by_index) {
            (text, Some(_)) => self.has(&text),
            (text, None) => self.found_by_gin(&text),
        });
        let is_whole = matches!(operand, Json::Array(_) | Json::Object(_));
        let whole = is_whole.then(|| self.path.value().eq(bind_json(operand.to_short_text())));
        every(by_index.into_iter().chain(whole).chain(contains))
    }

    /// The necessary condition for equality that a declared index can check.
    fn equals_by_index(&self, operand: &Json) -> Option<Expr> {
        let (index_type, bound) = match operand {
            Json::String(text) => (IndexType::Text, bind::text(cut_as_indexed(text))),
            Json::Number(number) => (IndexType::Numeric, bind_number(&number_as_indexed(number))),
            Json::Bool(value) => (IndexType::Boolean, Expr::val(*value).cast_as("boolean")),
            _ => return None,
        };
        self.is_indexed(index_type).then(|| self.path.indexed(index_type).eq(bound))
    }

    fn order_of_text(&self, comparison: Comparison, text: &str) -> Expr {
        let exact = compare(self.path.string(), comparison, bind::text(text));
        if !self.is_indexed(IndexType::Text) {
            return exact;
        }
        let bound = bind::text(cut_as_indexed(text));
        compare_indexed(self.path.indexed(IndexType::Text), comparison, bound).and(exact)
    }

    fn order_of_number(&self, comparison: Comparison, number: &Number) -> Expr {
        let exact = compare(self.path.number(), comparison, bind_number(number));
        if !self.is_indexed(IndexType::Numeric) {
            return exact;
        }
        let index = self.path.indexed(IndexType::Numeric);
        compare_indexed(index, comparison, bind_number(&number_as_indexed(number))).and(exact)
    }

    /// Searches all operands at once in the declared index, or one alternative for each in the GIN index if
    /// they are few; the exact list decides.
    fn is_one_of(&self, operands: &[Json]) -> Expr {
        let exact = self.path.value().eq(any(bind::jsonbs(operands.iter().map(Json::to_short_text))));
        let texts: Vec<&str> = operands.iter().filter_map(Json::as_str).collect();
        if self.is_indexed(IndexType::Text) && texts.len() == operands.len() {
            let cut = bind::texts(texts.into_iter().map(cut_as_indexed));
            return self.path.indexed(IndexType::Text).eq(any(cut)).and(exact);
        }
        let numbers: Vec<&Number> = operands.iter().filter_map(Json::as_number).collect();
        if self.is_indexed(IndexType::Numeric) && numbers.len() == operands.len() {
            let cut = bind_numbers(numbers.into_iter().map(number_as_indexed));
            return self.path.indexed(IndexType::Numeric).eq(any(cut)).and(exact);
        }
        if operands.len() > MAX_ALTERNATIVES {
            return exact;
        }
        let step = |operand| containment::steps(operand)?.into_iter().find(has_scalar);
        match operands.iter().map(step).collect::<Option<Vec<Json>>>() {
            Some(steps) => {
                exact.and(some(steps.iter().map(|operand| self.found_by_gin(&operand.to_short_text()))))
            }
            None => exact,
        }
    }

    /// A condition that holds for every value that equals none of the operands, as ranges of a declared index
    /// on texts: before, between and after the texts that the index distinguishes, or not a text.
    fn is_another_text(&self, operands: &[Json]) -> Option<Expr> {
        let texts = told_apart(operands);
        if !self.is_indexed(IndexType::Text) || texts.is_empty() || texts.len() > MAX_ALTERNATIVES {
            return None;
        }
        let indexed = || self.path.indexed(IndexType::Text);
        let mut ranges = vec![indexed().is_null(), indexed().lt(bind::text(texts[0]))];
        for pair in texts.windows(2) {
            ranges.push(indexed().gt(bind::text(pair[0])).and(indexed().lt(bind::text(pair[1]))));
        }
        ranges.extend(texts.last().map(|last| indexed().gt(bind::text(*last))));
        Some(some(ranges))
    }

    /// Containment of the operand. An array contains a scalar that is one of its elements only at the top
    /// level, not within a document.
    fn contains(&self, operand: &Json) -> Expr {
        match operand {
            // The parser rejects values that cannot be split.
            Json::Array(_) | Json::Object(_) => {
                let steps = containment::steps(operand).unwrap_or_else(|| vec![operand.clone()]);
                every(steps.iter().map(|step| self.contains_step(step)))
            }
            _ => {
                let text = operand.to_short_text();
                self.found_by_gin(&text).or(self.found_by_gin(&format!("[{text}]")))
            }
        }
    }

    fn contains_step(&self, step: &Json) -> Expr {
        let text = step.to_short_text();
        if has_scalar(step) { self.found_by_gin(&text) } else { contains(self.path.value(), &text) }
    }
}

/// The texts among the operands that the index stores whole, in their order: no longer text has the same
/// indexed prefix.
fn told_apart(operands: &[Json]) -> Vec<&str> {
    let mut texts: Vec<&str> =
        operands.iter().filter_map(Json::as_str).filter(|text| is_indexed_whole(text)).collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

/// Returns true if an index finds the documents that pass the test, and statistics estimate their number.
pub(super) fn is_served(test: &Test, indexed: &[IndexType]) -> bool {
    let has = |index_type| indexed.contains(&index_type);
    let in_gin =
        |operand: &Json| containment::steps(operand).is_some_and(|steps| steps.iter().any(has_scalar));
    match test {
        Test::Equal(operand) | Test::Contains(operand) => in_gin(operand),
        Test::In(operands) => {
            (operands.len() <= MAX_ALTERNATIVES && operands.iter().all(in_gin))
                || (has(IndexType::Text) && operands.iter().all(|operand| operand.as_str().is_some()))
                || (has(IndexType::Numeric) && operands.iter().all(|operand| operand.as_number().is_some()))
        }
        Test::NotEqual(operand) => {
            has(IndexType::Text) && !told_apart(std::slice::from_ref(operand)).is_empty()
        }
        Test::NotIn(operands) => {
            has(IndexType::Text) && (1..=MAX_ALTERNATIVES).contains(&told_apart(operands).len())
        }
        Test::Order(_, Operand::String(_)) => has(IndexType::Text),
        Test::Order(_, Operand::Number(_)) => has(IndexType::Numeric),
        Test::Before(_) | Test::After(_) => has(IndexType::Timestamptz),
        Test::Exists(_) => false,
    }
}

/// The strings of a list, for comparison with a text column.
fn strings(operands: &[Json]) -> Expr {
    bind::texts(operands.iter().filter_map(Json::as_str))
}

fn text_meets(column: &Expr, helper: &str, test: &Test) -> Expr {
    let column = || column.clone();
    match test {
        Test::Equal(Json::String(text)) | Test::Contains(Json::String(text)) => column().eq(bind::text(text)),
        Test::Equal(_) | Test::Contains(_) | Test::Order(_, Operand::Number(_)) => never(),
        Test::NotEqual(Json::String(text)) => column().ne(bind::text(text)),
        Test::NotEqual(_) | Test::Exists(true) => column().is_not_null(),
        Test::Order(comparison, Operand::String(text)) => {
            compare(by_bytes(column()), *comparison, bind::text(text))
        }
        Test::In(operands) => column().eq(any(strings(operands))),
        Test::NotIn(operands) => {
            column().is_not_null().and(column().ne(Expr::expr(Func::cust("ALL").arg(strings(operands)))))
        }
        Test::Exists(false) => column().is_null(),
        Test::Before(time) => read(helper, column()).lt(instant(helper, time)),
        Test::After(time) => read(helper, column()).gt(instant(helper, time)),
    }
}

/// The integers of a list, for comparison with an integer column.
fn integers(operands: &[Json]) -> Expr {
    let integer = |operand: &Json| match operand {
        Json::Number(number) => number.to_i64(),
        _ => None,
    };
    bind::bigints(operands.iter().filter_map(integer))
}

fn integer_meets(column: &Expr, test: &Test) -> Expr {
    let column = || column.clone();
    match test {
        Test::Equal(operand) | Test::Contains(operand) => {
            column().eq(any(integers(std::slice::from_ref(operand))))
        }
        Test::NotEqual(operand) => not_one_of(column(), std::slice::from_ref(operand)),
        Test::Order(comparison, Operand::Number(number)) => {
            compare(column().cast_as("numeric"), *comparison, bind_number(number))
        }
        Test::Order(_, Operand::String(_)) | Test::Before(_) | Test::After(_) => never(),
        Test::In(operands) => column().eq(any(integers(operands))),
        Test::NotIn(operands) => not_one_of(column(), operands),
        Test::Exists(true) => column().is_not_null(),
        Test::Exists(false) => column().is_null(),
    }
}

fn not_one_of(column: Expr, operands: &[Json]) -> Expr {
    let all = Expr::expr(Func::cust("ALL").arg(integers(operands)));
    column.clone().is_not_null().and(column.ne(all))
}

fn time_meets(column: &Expr, test: &Test) -> Expr {
    let bound = |time: &Instant| bind::text(time.as_str()).cast_as("timestamptz");
    match test {
        Test::Before(time) => column.clone().lt(bound(time)),
        Test::After(time) => column.clone().gt(bound(time)),
        // The parser rejects all other tests.
        _ => never(),
    }
}
