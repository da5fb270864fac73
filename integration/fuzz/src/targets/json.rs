//! Strict JSON and its normal form.

use domain::json::{NormalForm, canonical, has_more_values_than, least_normal_length, normalise, parse};
use serde_json::Value;

use crate::Target;
use crate::text::SECRET;

pub(super) const TARGET: Target = Target { name: "json", max_bytes: 4 * 1024, check };

/// The limits beyond those of JSON, as errors name them.
const LIMITS: [&str; 5] =
    ["a repeated key", "more than 64 levels", "an integer outside", "beyond the doubles", "U+0000"];

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let by_library: Result<Value, _> = serde_json::from_str(text);
    match parse(text) {
        Ok(value) => {
            assert!(by_library.is_ok(), "the library refuses it: {by_library:?}");
            check_value(text, &value);
        }
        Err(error) => {
            let error = error.to_string();
            assert!(!error.contains(SECRET), "the error repeats the text: {error}");
            let is_limit = LIMITS.iter().any(|limit| error.contains(limit));
            assert!(by_library.is_err() || is_limit, "no limit is the reason: {error}");
            assert!(normalise(text, usize::MAX).is_err(), "it has a normal form, and no value");
        }
    }
}

fn check_value(text: &str, value: &Value) {
    let normal = canonical(value);
    let again = parse(&normal).expect("the normal form is strict JSON");
    assert_eq!(canonical(&again), normal, "the normal form has another normal form");
    assert_eq!(*value, again, "the normal form is another value");
    let whole = Ok(NormalForm::Text(normal.clone()));
    assert_eq!(normalise(text, usize::MAX), whole, "from text to text it is another form");
    assert_eq!(normalise(text, normal.len()), whole);
    assert_eq!(normalise(&normal, usize::MAX), whole);
    assert_eq!(normalise(text, normal.len() - 1), Ok(NormalForm::TooLong));
    assert!(least_normal_length(text, usize::MAX - 1) <= normal.len(), "the lower bound is none");
    let count = count(value);
    assert!(!has_more_values_than(text, count) && (count == 0 || has_more_values_than(text, count - 1)));
    if value.is_number() {
        check_number(text.trim(), &normal);
    }
}

/// The number of values and keys, by the rules of [`has_more_values_than`].
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len().max(1) + items.iter().map(count).sum::<usize>(),
        Value::Object(members) => (2 * members.len()).max(1) + members.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Checks that an integer is exact and another number the same double.
fn check_number(text: &str, normal: &str) {
    if text.contains(['.', 'e', 'E']) {
        let double = |text: &str| text.parse::<f64>().map(f64::to_bits).ok();
        assert_eq!(double(text), double(normal), "{text} and {normal} are different doubles");
    } else {
        assert_eq!(text, normal, "an integer was changed");
    }
}
