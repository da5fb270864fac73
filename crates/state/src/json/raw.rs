//! Operations on parts of a valid JSON text, without a tree: a tree of small values takes many times the
//! memory of its text.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::Json;

/// The text of a member of an object; `None` if it is missing, or if the value is not an object. Of equal
/// names the last one counts.
pub(crate) fn member<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    MemberPlaces::of(text)
        .filter(|(found, _)| unescaped(&text[found.clone()]) == name)
        .last()
        .map(|(_, value)| &text[value])
}

/// A scalar as a value; an array or an object as an empty one.
pub(crate) fn shallow(text: &str) -> Json {
    match text.as_bytes().first() {
        Some(b'{') => Json::Object(std::collections::BTreeMap::new()),
        Some(b'[') => Json::Array(Vec::new()),
        // Cannot fail: the text is JSON.
        _ => Json::parse(text.as_bytes()).unwrap_or(Json::Null),
    }
}

/// Merges `patch` into `target` by RFC 7396, as [`super::merge`] does. The result is no longer than both
/// together, and the only other memory used is for the places of the patch's members.
pub(crate) fn merge_texts(target: &str, patch: &str) -> String {
    let mut merged = String::with_capacity(target.len() + patch.len());
    merge_into(&mut merged, target, patch);
    merged
}

fn merge_into(merged: &mut String, target: &str, patch: &str) {
    let patch = patch.trim_ascii();
    if !patch.starts_with('{') {
        merged.push_str(patch);
        return;
    }
    let changes = Changes::of(patch);
    let mut used = vec![false; changes.places.len()];
    let begin = merged.len();
    let write = |merged: &mut String, name: &str, target: &str, change: Option<&str>| {
        merged.push(if merged.len() == begin { '{' } else { ',' });
        merged.push_str(name);
        merged.push(':');
        match change {
            None => merged.push_str(target),
            Some(change) => merge_into(merged, target, change),
        }
    };
    for (name, value) in MemberPlaces::of(target) {
        let (name, value) = (&target[name], &target[value]);
        match changes.find(name) {
            None => write(merged, name, value, None),
            Some(at) => {
                used[at] = true;
                if changes.value(at) != "null" {
                    write(merged, name, value, Some(changes.value(at)));
                }
            }
        }
    }
    for at in (0..used.len()).filter(|at| !used[*at] && changes.value(*at) != "null") {
        write(merged, changes.name(at), "null", Some(changes.value(at)));
    }
    if merged.len() == begin {
        merged.push('{');
    }
    merged.push('}');
}

/// The members of a patch by their names; of equal names the last one.
struct Changes<'a> {
    text: &'a str,
    places: Vec<(Range<u32>, Range<u32>)>,
}

impl<'a> Changes<'a> {
    fn of(text: &'a str) -> Self {
        // Cannot be cut: no body has four gigabytes.
        let short = |range: Range<usize>| range.start as u32..range.end as u32;
        let mut places: Vec<_> =
            MemberPlaces::of(text).map(|(name, value)| (short(name), short(value))).collect();
        let name = |place: &(Range<u32>, Range<u32>)| &text[long(&place.0)];
        places.sort_unstable_by(|one, other| {
            compare(name(one), name(other)).then(other.0.start.cmp(&one.0.start))
        });
        places.dedup_by(|one, other| compare(name(one), name(other)).is_eq());
        Self { text, places }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.places.binary_search_by(|place| compare(&self.text[long(&place.0)], name)).ok()
    }

    fn name(&self, at: usize) -> &'a str {
        &self.text[long(&self.places[at].0)]
    }

    fn value(&self, at: usize) -> &'a str {
        &self.text[long(&self.places[at].1)]
    }
}

fn long(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Compares two quoted names, whatever their escapes.
fn compare(one: &str, other: &str) -> Ordering {
    unescaped(one).cmp(&unescaped(other))
}

fn unescaped(name: &str) -> Cow<'_, str> {
    match name.contains('\\') {
        false => Cow::Borrowed(name.trim_matches('"')),
        // Cannot fail: the text is a JSON string.
        true => Cow::Owned(serde_json::from_str(name).unwrap_or_default()),
    }
}

/// The places of an object's members, names with their quotes; no places for another value.
struct MemberPlaces<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> MemberPlaces<'a> {
    fn of(text: &'a str) -> Self {
        let begin = text.len() - text.trim_ascii_start().len();
        let at = if text.as_bytes().get(begin) == Some(&b'{') { begin + 1 } else { text.len() };
        Self { text: text.as_bytes(), at }
    }

    fn skip(&mut self, skipped: &[u8]) {
        while self.text.get(self.at).is_some_and(|byte| byte.is_ascii_whitespace() || skipped.contains(byte))
        {
            self.at += 1;
        }
    }
}

impl Iterator for MemberPlaces<'_> {
    type Item = (Range<usize>, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        self.skip(b",");
        if self.text.get(self.at) != Some(&b'"') {
            return None;
        }
        let name = self.at..end_of_string(self.text, self.at);
        self.at = name.end;
        self.skip(b":");
        let value = self.at..end_of_value(self.text, self.at);
        self.at = value.end;
        Some((name, value))
    }
}

fn end_of_string(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn end_of_value(text: &[u8], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = end_of_string(text, at),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b',' if depth == 0 => return at,
            byte if depth == 0 && byte.is_ascii_whitespace() => return at,
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::merge;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_member_is_found_whatever_its_escapes_and_the_last_of_equal_ones() {
        let text = r#" { "a" : [1, {"b": "]}"}] , "b":"x\"y,","\u0063":1e5, "n":null ,"c" : true} "#;
        for (name, value) in [
            ("a", Some(r#"[1, {"b": "]}"}]"#)),
            ("b", Some(r#""x\"y,""#)),
            ("c", Some("true")),
            ("n", Some("null")),
            ("d", None),
        ] {
            assert_eq!(member(text, name), value, "{name}");
        }
        for text in ["{}", "[1]", "1", "\"a\"", "{\"b\":1}"] {
            assert_eq!(member(text, "a"), None, "{text}");
        }
    }

    /// JSON whose members have few names, so that patches hit them, in unusual spellings.
    fn text() -> impl Strategy<Value = String> {
        let scalar =
            prop::sample::select(vec!["null", "1", "-2.5e3", "true", "\"a\"", "\"{,\\\"\"", "[]", "{}"]);
        scalar.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
            let name =
                prop::sample::select(vec!["\"a\"", "\"\\u0061\"", "\"b\"", "\"c\\n\"", "\"\"", "\"ä\""]);
            let space = prop::sample::select(vec!["", " ", "\n\t"]);
            let member = (name, space.clone(), inner.clone());
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(|all| format!("[{}]", all.join(", "))),
                (prop::collection::vec(member, 0..4), space).prop_map(|(members, space)| {
                    let all: Vec<String> = members
                        .iter()
                        .map(|(name, gap, value)| format!("{gap}{name}{gap}:{gap}{value}{gap}"))
                        .collect();
                    format!("{space}{{{}}}{space}", all.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn texts_are_merged_as_trees_are(target in text(), patch in text()) {
            // PostgreSQL writes each name once.
            let target = json(&target).to_string();
            let merged = merge_texts(&target, &patch);
            prop_assert_eq!(json(&merged), merge(json(&target), json(&patch)), "{} with {}", target, patch);
            prop_assert!(merged.len() <= target.len() + patch.len().max(2));
        }

        #[test]
        fn the_stored_length_of_a_text_is_that_of_what_is_written(text in text()) {
            let tree = json(&text);
            let written = tree.to_string();
            // Repeated members all count.
            let once = Json::check(written.as_bytes()).expect("JSON");
            prop_assert_eq!(once, written.len());
            prop_assert!(Json::check(text.as_bytes()).expect("JSON") >= once);
        }
    }
}
