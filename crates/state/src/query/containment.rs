//! Evaluation of `@>` in steps between which PostgreSQL can be interrupted.
//!
//! PostgreSQL compares each element of the operand's arrays with each one of the document's, and checks for
//! cancellation only before it reads the document again. An array of ten million bytes takes tenths of a
//! second for each element, so a step has at most [`MAX_CONTAINED_ELEMENTS`].

use std::collections::BTreeMap;

use super::MAX_CONTAINED_ELEMENTS;
use crate::json::Json;

/// The number of elements of the arrays within a value, excluding elements that are non-empty arrays
/// themselves.
pub(super) fn elements(json: &Json) -> usize {
    match json {
        Json::Array(array) => array.iter().map(|element| elements(element).max(1)).sum(),
        Json::Object(members) => members.values().map(elements).sum(),
        _ => 0,
    }
}

/// Splits a value into values of at most [`MAX_CONTAINED_ELEMENTS`] elements: a document contains the value
/// exactly if it contains all of them. `None` if an element of an array exceeds that alone: it cannot be
/// split.
pub(super) fn steps(json: &Json) -> Option<Vec<Json>> {
    if elements(json) <= MAX_CONTAINED_ELEMENTS {
        return Some(vec![json.clone()]);
    }
    match json {
        Json::Object(members) => {
            let each = members.iter().map(|(name, value)| {
                let alone = |value| Json::Object(BTreeMap::from([(name.clone(), value)]));
                Some(steps(value)?.into_iter().map(alone).collect::<Vec<Json>>())
            });
            each.collect::<Option<Vec<_>>>().map(|steps| steps.concat())
        }
        Json::Array(array) => {
            let mut steps: Vec<Vec<Json>> = Vec::new();
            let mut room = 0;
            for element in array {
                let size = elements(element).max(1);
                if size > room {
                    room = MAX_CONTAINED_ELEMENTS.checked_sub(size)?;
                    steps.push(vec![element.clone()]);
                } else if let Some(step) = steps.last_mut() {
                    room -= size;
                    step.push(element.clone());
                }
            }
            Some(steps.into_iter().map(Json::Array).collect())
        }
        // A scalar has no elements.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).expect("JSON")
    }

    fn texts(steps: Option<Vec<Json>>) -> Option<Vec<String>> {
        steps.map(|steps| steps.iter().map(Json::to_short_text).collect())
    }

    #[test]
    fn an_operand_is_split_between_its_members_and_the_elements_of_its_arrays() {
        for (operand, expected) in [
            ("1", &["1"][..]),
            ("[]", &["[]"]),
            ("[1,2,3,4,5,6,7,8]", &["[1,2,3,4,5,6,7,8]"]),
            ("[1,2,3,4,5,6,7,8,9]", &["[1,2,3,4,5,6,7,8]", "[9]"]),
            ("[1,2,[3,4,5],[6,7,8,9],5,{}]", &["[1,2,[3,4,5]]", "[[6,7,8,9],5,{}]"]),
            (
                r#"{"a":[1,2,3,4,5],"b":[1,2,3,4,5,6,7,8,9],"c":{"d":1}}"#,
                &[r#"{"a":[1,2,3,4,5]}"#, r#"{"b":[1,2,3,4,5,6,7,8]}"#, r#"{"b":[9]}"#, r#"{"c":{"d":1}}"#],
            ),
        ] {
            assert_eq!(
                texts(steps(&json(operand))).as_deref(),
                Some(&expected.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn an_element_that_has_too_many_elements_itself_cannot_be_split() {
        for operand in ["[1,[1,2,3,4,5,6,7,8,9]]", r#"{"a":[{"b":[1,2,3,4,5,6,7,8,9]}]}"#] {
            assert_eq!(steps(&json(operand)), None);
        }
    }
}
