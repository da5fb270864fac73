//! Compilation of one condition.

use pg::parameter::{self, Parameters};

use super::{FALSE, Source, every, some};
use crate::json::{Json, Number};
use crate::query::expressions::{
    IndexType, Path, add_json, add_number, by_bytes, cut_as_indexed, is_indexed_whole, number_as_indexed,
};
use crate::query::{Comparison, Instant, Operand, Test, containment};

/// The most elements of `$in` that are searched in the GIN index. Each is a separate scan, and planning many
/// takes longer than reading many rows.
const MAX_ALTERNATIVES: usize = 64;

impl Source<'_> {
    /// True exactly if the value, or its absence, passes the test.
    pub(super) fn meets(&self, test: &Test, parameters: &mut Parameters) -> String {
        match self {
            Self::Member { path, indexed, in_order } => {
                MemberAccess { path, indexed, in_order: *in_order, parameters }.meets(test)
            }
            Self::Text { column, helper } => text_meets(column, helper, test, parameters),
            Self::Integer(column) => integer_meets(column, test, parameters),
            Self::Time(column) => time_meets(column, test, parameters),
        }
    }
}

fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Greater => ">",
        Comparison::GreaterOrEqual => ">=",
        Comparison::Less => "<",
        Comparison::LessOrEqual => "<=",
    }
}

/// The necessary condition on values that are cut or rounded in the same direction.
fn operator_indexed(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Greater | Comparison::GreaterOrEqual => ">=",
        Comparison::Less | Comparison::LessOrEqual => "<=",
    }
}

/// Parses a time with the function that parses those in documents, so that both are parsed in the same way.
fn instant(helper: &str, time: &Instant, parameters: &mut Parameters) -> String {
    format!("{helper}({})", parameters.add(parameter::text(time.as_str())))
}

/// The operands as a `jsonb[]`.
fn documents(operands: &[Json], parameters: &mut Parameters) -> String {
    parameters.add(parameter::texts(operands.iter().map(Json::to_short_text))) + "::jsonb[]"
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
    parameters: &'a mut Parameters,
}

impl MemberAccess<'_> {
    fn meets(&mut self, test: &Test) -> String {
        let value = self.path.value();
        match test {
            Test::Equal(operand) => self.equals(operand),
            Test::NotEqual(operand) => {
                let others = self.is_another_text(std::slice::from_ref(operand));
                let exact = format!("{value} <> {}", self.json(operand));
                every(others.into_iter().chain([exact]))
            }
            Test::Order(comparison, Operand::String(text)) => self.order_of_text(*comparison, text),
            Test::Order(comparison, Operand::Number(number)) => self.order_of_number(*comparison, number),
            Test::In(operands) => self.is_one_of(operands),
            Test::NotIn(operands) => {
                let others = self.is_another_text(operands);
                let all = documents(operands, self.parameters);
                let exact = [format!("{value} IS NOT NULL"), format!("{value} <> ALL ({all})")];
                every(others.into_iter().chain(exact))
            }
            Test::Exists(true) => format!("{value} IS NOT NULL"),
            Test::Exists(false) => format!("{value} IS NULL"),
            Test::Contains(operand) => self.contains(operand),
            Test::Before(time) => format!("{} < {}", self.path.instant(), self.instant(time)),
            Test::After(time) => format!("{} > {}", self.path.instant(), self.instant(time)),
        }
    }

    fn instant(&mut self, time: &Instant) -> String {
        instant(self.path.helper, time, self.parameters)
    }

    fn json(&mut self, operand: &Json) -> String {
        add_json(self.parameters, &operand.to_short_text())
    }

    fn text(&mut self, text: &str) -> String {
        self.parameters.add(parameter::text(text))
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
    fn has(&mut self, operand: &str) -> String {
        let part = self.document(operand);
        format!("{} @> {}", self.path.document, add_json(self.parameters, &part))
    }

    /// The condition [`Self::has`], for conditions that only the GIN index serves.
    ///
    /// PostgreSQL estimates containment from the hundred documents of a histogram, or has no estimate. A
    /// value that one of them has by chance seems to be in every hundredth document, so that a page seems to
    /// fill soon in key order, and all documents are read. A repeated condition counts twice in the estimate:
    /// a hundredth becomes a ten-thousandth, a half a quarter.
    fn found_by_gin(&mut self, operand: &str) -> String {
        let has = self.has(operand);
        if self.in_order { format!("({has} AND {has})") } else { has }
    }

    /// Containment is equality for scalars, and a necessary condition for other values. Equality is checked
    /// first, and one containment step is enough for the index.
    fn equals(&mut self, operand: &Json) -> String {
        let by_index = self.equals_by_index(operand);
        let step = containment::steps(operand).and_then(|steps| steps.into_iter().find(has_scalar));
        let contains = step.map(|step| match (step.to_short_text(), &by_index) {
            (text, Some(_)) => self.has(&text),
            (text, None) => self.found_by_gin(&text),
        });
        let is_whole = matches!(operand, Json::Array(_) | Json::Object(_));
        let whole = is_whole.then(|| format!("{} = {}", self.path.value(), self.json(operand)));
        every(by_index.into_iter().chain(whole).chain(contains))
    }

    /// The necessary condition for equality that a declared index can check.
    fn equals_by_index(&mut self, operand: &Json) -> Option<String> {
        let index_type = match operand {
            Json::String(_) => IndexType::Text,
            Json::Number(_) => IndexType::Numeric,
            Json::Bool(_) => IndexType::Boolean,
            _ => return None,
        };
        if !self.is_indexed(index_type) {
            return None;
        }
        let bound = match operand {
            Json::String(text) => self.text(&cut_as_indexed(text)),
            Json::Number(number) => add_number(self.parameters, &number_as_indexed(number)),
            Json::Bool(value) => self.parameters.add(parameter::boolean(*value)),
            _ => return None,
        };
        Some(format!("{} = {bound}", self.path.indexed(index_type)))
    }

    fn order_of_text(&mut self, comparison: Comparison, text: &str) -> String {
        let exact = format!("{} {} {}", self.path.string(), operator(comparison), self.text(text));
        if !self.is_indexed(IndexType::Text) {
            return exact;
        }
        let bound = self.text(&cut_as_indexed(text));
        let index = self.path.indexed(IndexType::Text);
        every([format!("{index} {} {bound}", operator_indexed(comparison)), exact])
    }

    fn order_of_number(&mut self, comparison: Comparison, number: &Number) -> String {
        let bound = add_number(self.parameters, number);
        let exact = format!("{} {} {bound}", self.path.number(), operator(comparison));
        if !self.is_indexed(IndexType::Numeric) {
            return exact;
        }
        let bound = add_number(self.parameters, &number_as_indexed(number));
        let index = self.path.indexed(IndexType::Numeric);
        every([format!("{index} {} {bound}", operator_indexed(comparison)), exact])
    }

    /// Searches all operands at once in the declared index, or one alternative for each in the GIN index if
    /// they are few; the exact list decides.
    fn is_one_of(&mut self, operands: &[Json]) -> String {
        let exact = format!("{} = ANY ({})", self.path.value(), documents(operands, self.parameters));
        let texts: Vec<&str> = operands.iter().filter_map(Json::as_str).collect();
        if self.is_indexed(IndexType::Text) && texts.len() == operands.len() {
            let cut = self.parameters.add(parameter::texts(texts.into_iter().map(cut_as_indexed)));
            return every([format!("{} = ANY ({cut})", self.path.indexed(IndexType::Text)), exact]);
        }
        let numbers: Vec<&Number> = operands.iter().filter_map(Json::as_number).collect();
        if self.is_indexed(IndexType::Numeric) && numbers.len() == operands.len() {
            let cut = numbers.into_iter().map(|number| number_as_indexed(number).to_scientific());
            let cut = self.parameters.add(parameter::texts(cut));
            let index = self.path.indexed(IndexType::Numeric);
            return every([format!("{index} = ANY ({cut}::numeric[])"), exact]);
        }
        if operands.len() > MAX_ALTERNATIVES {
            return exact;
        }
        let step = |operand| containment::steps(operand)?.into_iter().find(has_scalar);
        match operands.iter().map(step).collect::<Option<Vec<Json>>>() {
            Some(steps) => {
                let found = steps.iter().map(|operand| self.found_by_gin(&operand.to_short_text()));
                every([exact, some(found)])
            }
            None => exact,
        }
    }

    /// A condition that holds for every value that equals none of the operands, as ranges of a declared index
    /// on texts: before, between and after the texts that the index distinguishes, or not a text.
    fn is_another_text(&mut self, operands: &[Json]) -> Option<String> {
        let texts = told_apart(operands);
        if !self.is_indexed(IndexType::Text) || texts.is_empty() || texts.len() > MAX_ALTERNATIVES {
            return None;
        }
        let indexed = self.path.indexed(IndexType::Text);
        let texts: Vec<String> = texts.into_iter().map(|text| self.text(text)).collect();
        let mut ranges = vec![format!("{indexed} IS NULL"), format!("{indexed} < {}", texts[0])];
        let between = |pair: &[String]| format!("({indexed} > {} AND {indexed} < {})", pair[0], pair[1]);
        ranges.extend(texts.windows(2).map(between));
        ranges.extend(texts.last().map(|last| format!("{indexed} > {last}")));
        Some(some(ranges))
    }

    /// Containment of the operand. An array contains a scalar that is one of its elements only at the top
    /// level, not within a document.
    fn contains(&mut self, operand: &Json) -> String {
        match operand {
            // The parser rejects values that cannot be split.
            Json::Array(_) | Json::Object(_) => {
                let steps = containment::steps(operand).unwrap_or_else(|| vec![operand.clone()]);
                every(steps.iter().map(|step| self.contains_step(step)))
            }
            _ => {
                let text = operand.to_short_text();
                some([self.found_by_gin(&text), self.found_by_gin(&format!("[{text}]"))])
            }
        }
    }

    fn contains_step(&mut self, step: &Json) -> String {
        if has_scalar(step) {
            self.found_by_gin(&step.to_short_text())
        } else {
            format!("{} @> {}", self.path.value(), self.json(step))
        }
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

fn text_meets(column: &str, helper: &str, test: &Test, parameters: &mut Parameters) -> String {
    let mut add = |text: &str| parameters.add(parameter::text(text));
    let strings = |operands: &[Json]| parameter::texts(operands.iter().filter_map(Json::as_str));
    match test {
        Test::Equal(Json::String(text)) | Test::Contains(Json::String(text)) => {
            format!("{column} = {}", add(text))
        }
        Test::Equal(_) | Test::Contains(_) | Test::Order(_, Operand::Number(_)) => FALSE.to_owned(),
        Test::NotEqual(Json::String(text)) => format!("{column} <> {}", add(text)),
        Test::NotEqual(_) | Test::Exists(true) => format!("{column} IS NOT NULL"),
        Test::Order(comparison, Operand::String(text)) => {
            format!("{} {} {}", by_bytes(column), operator(*comparison), add(text))
        }
        Test::In(operands) => format!("{column} = ANY ({})", parameters.add(strings(operands))),
        Test::NotIn(operands) => not_one_of(column, &parameters.add(strings(operands))),
        Test::Exists(false) => format!("{column} IS NULL"),
        Test::Before(time) => format!("{helper}({column}) < {}", instant(helper, time, parameters)),
        Test::After(time) => format!("{helper}({column}) > {}", instant(helper, time, parameters)),
    }
}

fn integer_meets(column: &str, test: &Test, parameters: &mut Parameters) -> String {
    let integer = |operand: &Json| match operand {
        Json::Number(number) => number.to_i64(),
        _ => None,
    };
    let mut add = |operands: &[Json]| parameters.add(parameter::bigints(operands.iter().filter_map(integer)));
    match test {
        Test::Equal(operand) | Test::Contains(operand) => {
            format!("{column} = ANY ({})", add(std::slice::from_ref(operand)))
        }
        Test::NotEqual(operand) => not_one_of(column, &add(std::slice::from_ref(operand))),
        Test::Order(comparison, Operand::Number(number)) => {
            format!("{column}::numeric {} {}", operator(*comparison), add_number(parameters, number))
        }
        Test::Order(_, Operand::String(_)) | Test::Before(_) | Test::After(_) => FALSE.to_owned(),
        Test::In(operands) => format!("{column} = ANY ({})", add(operands)),
        Test::NotIn(operands) => not_one_of(column, &add(operands)),
        Test::Exists(true) => format!("{column} IS NOT NULL"),
        Test::Exists(false) => format!("{column} IS NULL"),
    }
}

fn not_one_of(column: &str, operands: &str) -> String {
    every([format!("{column} IS NOT NULL"), format!("{column} <> ALL ({operands})")])
}

fn time_meets(column: &str, test: &Test, parameters: &mut Parameters) -> String {
    let mut bound = |time: &Instant| parameters.add(parameter::text(time.as_str()));
    match test {
        Test::Before(time) => format!("{column} < {}::timestamptz", bound(time)),
        Test::After(time) => format!("{column} > {}::timestamptz", bound(time)),
        // The parser rejects all other tests.
        _ => FALSE.to_owned(),
    }
}
