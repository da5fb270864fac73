//! Random documents, queries and changes that differ little, or in details that one of the two ways to run a
//! query might miss.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;
use state::query::Query;

/// The members of the documents. The first two may be indexed.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn quoted(text: impl AsRef<str>) -> String {
    serde_json::to_string(text.as_ref()).expect("a string")
}

/// Values that differ little, or in details that one of the two ways might miss.
fn atoms() -> Vec<String> {
    let mut atoms: Vec<String> = ["null", "true", "false"].map(str::to_owned).to_vec();
    atoms.extend(
        [
            "0",
            "-0",
            "1",
            "1.0",
            "10e-1",
            "-1",
            "1.5",
            "2",
            "10",
            "9",
            "-10.25",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775808",
            "1e100",
            "1.1e100",
            "1e101",
            "-1e101",
            "1e400",
            "10e399",
            "1.1e400",
            "-1e400",
            "1e131071",
            "-1e131071",
            "1e-16383",
            "1e-60",
            "2e-60",
            "-1e-60",
        ]
        .map(str::to_owned),
    );
    // Equal in the indexed digits.
    atoms.extend(["1", "2"].map(|last| format!("1.5{}{last}", "0".repeat(70))));
    // Too long for a cursor.
    atoms.extend(["1", "2"].map(|last| format!("0.{}{last}", "7".repeat(2_000))));
    let times = [
        "2024-01-01T00:00:00Z",
        "2024-01-01T01:00:00+01:00",
        "2024-01-01T00:00:00.5Z",
        "2024-01-01T00:00:00.500001Z",
        "2023-12-31T23:59:59.999999-00:00",
        "2024-02-29T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-01-01T00:00:00z",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:60Z",
        "0001-01-01T00:00:00+15:59",
        "9999-12-31T23:59:59.999999-15:59",
        "0000-01-01T00:00:00Z",
        "infinity",
    ];
    atoms.extend(times.map(quoted));
    let texts = [
        "",
        "a",
        "A",
        "b",
        "B",
        "ab",
        "a b",
        "a-b",
        "z",
        "Z",
        "ä",
        "a\u{308}",
        "é",
        "ß",
        "ss",
        "1",
        "10",
        "9",
        "null",
        "true",
        "'",
        "\\",
        "\"",
        "%",
        "_",
        "\u{1}",
        "\u{7f}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{ffff}",
        "\u{10000}",
        "\u{10ffff}",
        "$a",
        "{}",
        "[]",
    ];
    atoms.extend(texts.map(quoted));
    // Equal in the indexed characters, and in those that a cursor contains.
    atoms.extend(["", "a", "b"].map(|last| quoted("x".repeat(599) + last)));
    atoms.extend(["", "a", "b", "\u{10ffff}"].map(|last| quoted("\u{1f600}".repeat(600) + last)));
    atoms
}

/// Values of which any two are equal, or differ only in a part that an index or a cursor does not contain.
fn close_values() -> Vec<String> {
    let texts = ["", "a", "b"].map(|last| quoted("\u{1f600}".repeat(600) + last));
    let numbers =
        ["1e101", "10e100", "1e400", "-1e101", "-1e400", "1e-60", "2e-60", "-1e-60", "0"].map(str::to_owned);
    let times =
        ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00.000001Z"].map(quoted);
    texts.into_iter().chain(numbers).chain(times).collect()
}

fn any_value() -> impl Strategy<Value = String> {
    let atom = select(atoms());
    atom.prop_recursive(3, 8, 3, |inner| {
        let array = prop::collection::vec(inner.clone(), 0..3).prop_map(|all| format!("[{}]", all.join(",")));
        let object =
            prop::collection::btree_map(select(vec!["x", "y", "a"]), inner, 0..3).prop_map(|members| {
                let members: Vec<String> =
                    members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            });
        prop_oneof![array, object]
    })
}

/// A small set of values, so that operands and members are often equal.
fn any_small_value() -> impl Strategy<Value = String> {
    let few = [
        "1",
        "1.0",
        "2",
        "\"a\"",
        "\"b\"",
        "null",
        "true",
        "[]",
        "[1]",
        "[\"a\"]",
        "{}",
        "{\"x\":1}",
        "[[]]",
    ];
    prop_oneof![2 => any_value(), 3 => select(few.map(str::to_owned).to_vec()), 2 => select(close_values())]
}

pub(crate) fn any_document() -> impl Strategy<Value = String> {
    let member = || prop_oneof![1 => Just(None), 4 => any_small_value().prop_map(Some)];
    let object = [member(), member(), member(), member()].prop_map(|values| {
        let there =
            NAMES.iter().zip(values).filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?)));
        format!("{{{}}}", there.collect::<Vec<String>>().join(","))
    });
    let bare = [
        "\"a\"",
        "[\"a\"]",
        "[]",
        "{}",
        "null",
        "1",
        "true",
        "[{\"a\":1}]",
        "{\"x\":{\"a\":1}}",
        "{\"a\":1,\"a\":2}",
        "[\"a\",\"b\"]",
    ];
    prop_oneof![12 => object, 1 => select(bare.map(str::to_owned).to_vec())]
}

fn any_condition() -> impl Strategy<Value = String> {
    let ordered: Vec<String> =
        atoms().into_iter().filter(|atom| !["null", "true", "false"].contains(&&**atom)).collect();
    let times = [
        "2024-01-01T00:00:00Z",
        "2024-01-01T00:00:00.500000+00:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ];
    let operand = prop_oneof![select(ordered), select(close_values())];
    let order = (select(vec!["$gt", "$gte", "$lt", "$lte"]), operand)
        .prop_map(|(operator, operand)| format!("{{\"{operator}\":{operand}}}"));
    let equal = (select(vec!["$eq", "$ne", "$contains"]), any_small_value())
        .prop_map(|(operator, operand)| format!("{{\"{operator}\":{operand}}}"));
    let list = (select(vec!["$in", "$nin"]), prop::collection::vec(any_small_value(), 0..4))
        .prop_map(|(operator, operands)| format!("{{\"{operator}\":[{}]}}", operands.join(",")));
    let exists = any::<bool>().prop_map(|expected| format!("{{\"$exists\":{expected}}}"));
    let time = (select(vec!["$before", "$after"]), select(times.to_vec()))
        .prop_map(|(operator, time)| format!("{{\"{operator}\":\"{time}\"}}"));
    // Some are empty objects, which no filter accepts; they are left out.
    let literal = any_small_value().prop_filter("no operators", |value| value != "{}");
    prop_oneof![4 => order, 4 => equal, 2 => list, 1 => exists, 2 => time, 3 => literal]
}

fn any_filter() -> impl Strategy<Value = String> {
    let leaf =
        prop::collection::btree_map(select(NAMES.to_vec()), any_condition(), 1..3).prop_map(|members| {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
    let nested = leaf.prop_recursive(3, 8, 3, |inner| {
        let group = (select(vec!["$and", "$or"]), prop::collection::vec(inner.clone(), 1..3))
            .prop_map(|(name, all)| format!("{{\"{name}\":[{}]}}", all.join(",")));
        prop_oneof![2 => group, 1 => inner.prop_map(|filter| format!("{{\"$not\":{filter}}}"))]
    });
    prop_oneof![1 => Just("null".to_owned()), 6 => nested]
}

fn any_sort() -> impl Strategy<Value = String> {
    let names = vec!["a", "a", "a", "b", "c", "key", "created_at", "updated_at"];
    prop::collection::vec((select(names), any::<bool>()), 0..4).prop_map(|drawn| {
        let mut seen = BTreeSet::new();
        let terms = drawn.iter().filter(|(name, _)| seen.insert(*name));
        let terms: Vec<String> =
            terms.map(|(name, down)| format!("\"{}{name}\"", if *down { "-" } else { "" })).collect();
        format!("[{}]", terms.join(","))
    })
}

#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) prefix: &'static str,
    pub(crate) filter: String,
    pub(crate) sort: String,
    pub(crate) limit: usize,
    pub(crate) offset: usize,
}

pub(crate) fn any_query() -> impl Strategy<Value = Drawn> {
    let prefix = select(vec!["", "", "k/", "k/1", "\u{10ffff}"]);
    (prefix, any_filter(), any_sort(), 1..7_usize, prop_oneof![3 => Just(0), 1 => 0..5_usize])
        .prop_map(|(prefix, filter, sort, limit, offset)| Drawn { prefix, filter, sort, limit, offset })
}

impl Drawn {
    pub(crate) fn text(&self, cursor: Option<&str>) -> String {
        let start = match cursor {
            Some(cursor) => format!("\"cursor\":{cursor:?}"),
            None => format!("\"offset\":{}", self.offset),
        };
        format!(
            "{{\"prefix\":{},\"filter\":{},\"sort\":{},\"limit\":{},\"matched\":true,{start}}}",
            quoted(self.prefix),
            self.filter,
            self.sort,
            self.limit
        )
    }

    pub(crate) fn query(&self, cursor: Option<&str>) -> Query {
        let text = self.text(cursor);
        Query::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}

/// A write between two pages: the number of a key, and its new value, or nothing.
pub(crate) type Change = (u8, Option<String>);

pub(crate) fn any_change() -> impl Strategy<Value = Change> {
    (0..40_u8, prop_oneof![1 => Just(None), 3 => any_document().prop_map(Some)])
}

pub(crate) fn key(number: u8) -> String {
    match number % 8 {
        0 => format!("\u{10ffff}/{number}"),
        1 => format!("K/{number}"),
        _ => format!("k/{number}"),
    }
}
