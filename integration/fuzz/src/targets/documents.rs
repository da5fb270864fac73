//! Documents of the state store and changes of them, separated by 0x1e.

use serde::de::IgnoredAny;
use state::json::{Json, merge};
use state::{Key, MemoryStore, Patch, Store, Value, Write, WriteConditions};

use crate::Target;
use crate::text::{has_place, records};

pub(super) const TARGET: Target = Target { name: "documents", max_bytes: 4 * 1024, check };

/// The largest document that is stored, in bytes. `1e131071` has 131,072 of them.
const MAX_STORED: usize = 256 * 1024;
/// The limits beyond those of JSON, as errors name them.
const LIMITS: [&str; 5] = [
    "more than 64 levels",
    "half of a surrogate pair",
    "U+0000",
    "a number beyond PostgreSQL's numeric",
    "when written out",
];

fn check(input: &[u8]) {
    let mut parts = records(input);
    let (text, change) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (document, change_of_it) = (parsed(text), parsed(change));
    if let (Some(document), Some(change_of_it)) = (document, change_of_it) {
        check_change(text, &document, change, change_of_it);
    }
}

fn parsed(text: &[u8]) -> Option<Json> {
    let by_library = str::from_utf8(text).ok().and_then(|text| serde_json::from_str::<IgnoredAny>(text).ok());
    match Json::parse(text) {
        Ok(json) => {
            assert!(by_library.is_some(), "the library refuses it");
            assert!(Value::parse(text).is_ok(), "it is JSON, and no value");
            Some(json)
        }
        Err(error) => {
            assert!(has_place(text, error.line, error.column), "{error}");
            let is_limit = LIMITS.iter().any(|limit| error.reason.contains(limit));
            assert!(by_library.is_none() || is_limit, "no limit is the reason: {error}");
            assert!(Value::parse(text).is_err(), "it is no JSON, and a value: {error}");
            None
        }
    }
}

/// Checks a document as it is stored, and a change of it against the rule on values.
fn check_change(text: &[u8], document: &Json, change: &[u8], change_of_it: Json) {
    let store = MemoryStore::default().with_max_value_bytes(MAX_STORED);
    let (Ok(value), Ok(change)) = (Value::parse(text), Value::parse(change)) else { return };
    let (key, conditions) = (Key::new("k").expect("a key"), WriteConditions::default());
    let written = now(store.put(&key, &value, &conditions));
    let Ok(Write::Applied(_)) = written else {
        assert!(written.is_err(), "no condition is set: {written:?}");
        return;
    };
    let stored =
        |store: &MemoryStore| now(store.get(&key)).expect("it is in memory").expect("it is stored").value;
    let kept = stored(&store);
    assert_eq!(kept.to_json().as_ref().ok(), Some(document), "it is stored as another value");
    assert!(Json::parse(kept.as_str().as_bytes()).is_ok_and(|again| again.to_string() == kept.as_str()));
    match now(store.patch(&key, &change, &conditions)) {
        Ok(Patch::Written(Write::Applied(_))) => {
            let expected = merge(document.clone(), change_of_it);
            assert_eq!(
                stored(&store).to_json().ok(),
                Some(expected),
                "texts and values are merged differently"
            );
        }
        Ok(Patch::Invalid(reason)) => assert!(!reason.is_empty() && stored(&store) == kept),
        outcome => panic!("a change of a document without conditions: {outcome:?}"),
    }
}

/// The output of a store in memory, which never waits.
fn now<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    match work.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("a store in memory waits"),
    }
}
