//! JSON is parsed and written as PostgreSQL does it.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use state::json::{Json, merge};

use crate::query_support::Database;

/// PostgreSQL's form of a text, or nothing if it rejects the text.
async fn by_postgresql(database: &Database, text: &str) -> Option<String> {
    match database.client.query_one("SELECT $1::text::jsonb::text", &[&text]).await {
        Ok(row) => Some(row.get(0)),
        Err(error) => {
            let refused = error.as_db_error().unwrap_or_else(|| panic!("{text}: {error:?}"));
            assert!(refused.code().code().starts_with("22"), "{text}: {refused:?}");
            None
        }
    }
}

fn any_number() -> impl Strategy<Value = String> {
    let digits = || {
        prop_oneof![
            Just("0".to_owned()),
            "[0-9]{1,4}",
            "[1-9][0-9]{0,40}",
            Just("0".repeat(9)),
            Just("9".repeat(300))
        ]
    };
    let exponents = [
        "",
        "e0",
        "e5",
        "E-5",
        "e+40",
        "e131071",
        "e131072",
        "e-16383",
        "e-16384",
        "e131068",
        "e1073741823",
        "e-1073741823",
        "e99999999999",
        "e",
    ];
    (
        select(vec!["", "-", "+"]),
        digits(),
        prop_oneof![Just(None), digits().prop_map(Some)],
        select(exponents.to_vec()),
    )
        .prop_map(|(sign, integer, fraction, exponent)| {
            let fraction = fraction.map(|digits| format!(".{digits}")).unwrap_or_default();
            format!("{sign}{integer}{fraction}{exponent}")
        })
}

fn any_string() -> impl Strategy<Value = String> {
    let parts = [
        "a",
        "é",
        "\u{10ffff}",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\u0041",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\ude00",
        "\\u0000",
        "\\u0001",
        "\\x",
        "\n",
        "\t",
        "\u{7f}",
        "\\uD7FF",
        "\\uE000",
        "\\u12",
        " ",
        "'",
        "\\b\\f",
    ];
    prop::collection::vec(select(parts.to_vec()), 0..4).prop_map(|parts| format!("\"{}\"", parts.concat()))
}

fn any_text() -> impl Strategy<Value = String> {
    let words = [
        "null", "true", "false", "nul", "True", "", "NaN", "Infinity", "[", "}", "{", "]", ",", "[]", "{}",
        "[,]", "{\"a\"}", "[1,]", "\u{a0}1", "/**/1", "01", "1 2", ".5", "1.", "0x1",
    ];
    let scalar =
        prop_oneof![4 => any_number(), 4 => any_string(), 2 => select(words.map(str::to_owned).to_vec())];
    scalar.prop_recursive(4, 16, 4, |inner| {
        let space = || select(vec!["", "", " ", "\n\t", "\r"]);
        let array = (space(), prop::collection::vec(inner.clone(), 0..4))
            .prop_map(|(space, all)| format!("{space}[{}{space}]", all.join(",")));
        let member = (prop_oneof![Just("\"a\"".to_owned()), Just("\"bb\"".to_owned()), any_string()], inner);
        let object = (space(), prop::collection::vec(member, 0..4)).prop_map(|(space, members)| {
            let members: Vec<String> =
                members.into_iter().map(|(name, value)| format!("{name}{space}:{space}{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
        prop_oneof![array, object]
    })
}

#[test]
fn a_drawn_text_is_json_here_if_and_only_if_it_is_in_postgresql_and_is_written_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let database = runtime.block_on(Database::new());
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let accepted = std::cell::Cell::new(0);
    let outcome = runner.run(&any_text(), |text| {
        let expected = runtime.block_on(by_postgresql(&database, &text));
        let found = Json::parse(text.as_bytes()).ok();
        accepted.set(accepted.get() + u32::from(found.is_some()));
        prop_assert_eq!(found.map(|json| json.to_string()), expected, "{}", text);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!((200..1_800).contains(&accepted.get()), "of both kinds there are many: {}", accepted.get());
}

#[test]
fn a_merged_value_nests_no_deeper_than_its_parts() {
    let nested = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    let json = |text: &str| Json::parse(text.as_bytes()).expect("JSON");
    for (target, patch) in [(64, 1), (1, 64), (64, 64), (32, 64)] {
        let merged = merge(json(&nested(target)), json(&nested(patch))).to_string();
        assert!(Json::parse(merged.as_bytes()).is_ok(), "{target} with {patch}");
    }
}
