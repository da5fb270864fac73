use std::cmp::Ordering;

use super::*;

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    let tree = Json::parse(text.as_bytes()).expect_err(text);
    assert_eq!(Json::check(text.as_bytes()), Err(tree.clone()), "both readers agree");
    tree.to_string()
}

fn number(text: &str) -> Number {
    Number::parse(text).unwrap_or_else(|| panic!("{text} is a number"))
}

#[test]
fn a_value_is_written_as_postgresql_writes_it() {
    for (text, written) in [
        (" null ", "null"),
        ("[1,2 , 3]", "[1, 2, 3]"),
        (r#"{"bb":1,"a":{"y":[],"x":{}},"a":true}"#, r#"{"a": true, "bb": 1}"#),
        (r#"{"bb":1,"c":2}"#, r#"{"c": 2, "bb": 1}"#),
        (
            r#""\u00e9\ud83d\ude00\/\u0001\u001f\b\f\n\r\t\"\\""#,
            "\"é😀/\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\\"",
        ),
        ("-0", "0"),
        ("-0.00", "0.00"),
        ("0e5", "0"),
        ("1.0", "1.0"),
        ("1e2", "100"),
        ("1.50e1", "15.0"),
        ("10e-1", "1.0"),
        ("-1.5E-3", "-0.0015"),
        ("0.00e-2", "0.0000"),
        ("123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789"),
    ] {
        assert_eq!(json(text).to_string(), written, "{text}");
        assert!(Json::check(text.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    for (text, error) in [
        ("", "the text ends where a value is expected at line 1 column 1"),
        ("[1,\n 2,, 3]", "expected a value at line 2 column 4"),
        ("{\"a\":1,}", "expected the name of a member at line 1 column 8"),
        ("{\"a\" 1}", "expected : at line 1 column 6"),
        ("[1 2]", "expected , or ] at line 1 column 4"),
        ("1 2", "expected the end of the text at line 1 column 3"),
        ("01", "a number must not begin with 0 at line 1 column 1"),
        ("1.", "expected a digit at line 1 column 3"),
        ("-", "expected a digit at line 1 column 2"),
        ("1e+", "expected a digit at line 1 column 4"),
        ("+1", "expected a value at line 1 column 1"),
        ("NaN", "expected a value at line 1 column 1"),
        ("nul", "expected a value at line 1 column 1"),
        ("\"a", "the text ends within a string at line 1 column 3"),
        ("\"a\nb\"", "a control character within a string must be escaped at line 1 column 3"),
        ("\"\\x\"", "an unknown escape at line 1 column 2"),
        ("\"\\u00g0\"", "expected four hexadecimal digits after \\u at line 1 column 2"),
        ("\"\\u12é\"", "expected four hexadecimal digits after \\u at line 1 column 2"),
        ("\"a\\u0000\"", "U+0000, which PostgreSQL cannot store at line 1 column 3"),
        ("{\"\\u0000\":1}", "U+0000, which PostgreSQL cannot store at line 1 column 3"),
        ("\"\\ud800\"", "half of a surrogate pair, which is not a character at line 1 column 2"),
        ("\"\\ud800\\u0041\"", "half of a surrogate pair, which is not a character at line 1 column 2"),
        ("\"\\udc00\"", "half of a surrogate pair, which is not a character at line 1 column 2"),
        ("1e200000", "a number beyond PostgreSQL's numeric at line 1 column 1"),
        ("\u{feff}1", "expected a value at line 1 column 1"),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
    assert_eq!(
        Json::parse(b"\"\xff\"").expect_err("no UTF-8").to_string(),
        "invalid UTF-8 at line 1 column 2"
    );
}

#[test]
fn a_value_nests_to_the_limit_and_no_deeper() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(json(&nested(MAX_LEVELS)).to_string(), nested(MAX_LEVELS));
    assert_eq!(refused(&nested(MAX_LEVELS + 1)), "more than 64 levels at line 1 column 65");
    refused(&"[".repeat(1_000_000));
    refused(&"{\"a\":".repeat(1_000_000));
}

#[test]
fn a_number_is_in_range_to_the_digit() {
    for text in ["1e131071", "9.99e131071", "-1e131071", "1e-16383", "0e1000000000", "0.1e131072", "1e400"] {
        assert!(Number::parse(text).is_some(), "{text}");
    }
    for text in [
        "1e131072",
        "10e131071",
        "0.1e131073",
        "1e-16384",
        "0e-16384",
        "1.0e-16383",
        "0e1073741823",
        "0e-1073741823",
        "1e99999999999999999999999",
    ] {
        assert!(Number::parse(text).is_none(), "{text}");
    }
}

#[test]
fn numbers_that_are_short_in_a_body_must_not_be_endless_in_an_answer() {
    let many = |count: usize| format!("[{}1]", "1e131071,".repeat(count));
    assert!(Json::check(many(500).as_bytes()).is_ok());
    assert!(refused(&many(520)).starts_with("numbers that take more than 67108864 bytes when written out"));
}

#[test]
fn numbers_compare_by_value_with_all_their_digits() {
    let ascending = [
        "-1e131071",
        "-1e400",
        "-11",
        "-10.5",
        "-1",
        "-0.1",
        "-0.01",
        "-1e-16383",
        "0",
        "1e-16383",
        "0.01",
        "0.011",
        "0.1",
        "1",
        "1.000000000000000000000000000001",
        "9",
        "10",
        "9007199254740992",
        "9007199254740993",
        "1e400",
        "1.1e400",
        "1e131071",
    ];
    for (one, text) in ascending.iter().enumerate() {
        for (other, with) in ascending.iter().enumerate() {
            assert_eq!(number(text).cmp(&number(with)), one.cmp(&other), "{text} with {with}");
        }
    }
    for equal in [["1", "1.0"], ["1", "10e-1"], ["0", "-0.00"], ["1e400", "10e399"], ["0.5", "5e-1"]] {
        assert_eq!(number(equal[0]).cmp(&number(equal[1])), Ordering::Equal, "{equal:?}");
    }
}

#[test]
fn a_number_is_cut_towards_zero_and_keeps_what_fits() {
    for (text, cut) in [
        ("0", "0"),
        ("-0", "0"),
        ("1e2", "1e2"),
        ("-1e2", "-1e2"),
        ("100.000001", "1e2"),
        ("1e400", "1e2"),
        ("-1e400", "-1e2"),
        ("99.999", "99.99"),
        ("-99.999", "-99.99"),
        ("0.01", "0.01"),
        ("0.0099", "0"),
        ("-0.0099", "0"),
        ("1e-400", "0"),
        ("5.1009", "5.1"),
        ("12.00", "12"),
    ] {
        assert_eq!(number(text).cut(2, 2), number(cut), "{text}");
        assert_eq!(number(text).cut(2, 2).to_scientific(), number(cut).to_scientific(), "{text}");
    }
}

#[test]
fn a_number_has_a_short_text_and_an_integer() {
    for (text, short, integer) in [
        ("0.00", "0", Some(0)),
        ("1e131071", "1e131071", None),
        ("-1.50", "-15e-1", None),
        ("100", "1e2", Some(100)),
        ("1e2", "1e2", Some(100)),
        ("12.0", "12", Some(12)),
        ("9223372036854775807", "9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", "-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", "9223372036854775808", None),
        ("99999999999999999999", "99999999999999999999", None),
    ] {
        assert_eq!(number(text).to_scientific(), short, "{text}");
        assert_eq!(number(short), number(text));
        assert_eq!(number(text).to_i64(), integer, "{text}");
    }
}

#[test]
fn a_merge_patch_does_what_the_examples_of_its_rfc_say() {
    for (target, patch, merged) in [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
        (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
        (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
        (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
        (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
        (r#"{"a":"foo"}"#, "null", "null"),
        (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
        ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        (r#"{"n":1.50}"#, r#"{"m":1e400}"#, r#"{"n":1.50,"m":1e400}"#),
    ] {
        let result = merge(json(target), json(patch));
        assert_eq!(result.to_string(), json(merged).to_string(), "{target} with {patch}");
    }
}
