use super::*;
use crate::query::MemberNames;
use crate::query::compile::page;
use crate::query::expressions::Member;
use crate::{Document, Key, Value, Version};

#[test]
fn a_filter_fixes_a_type_only_if_every_match_has_it() {
    for (filter, shape) in [
        (r#"{"f": 1}"#, Shape::Constant),
        (r#"{"f": []}"#, Shape::Constant),
        (r#"{"f": {"$gt": 1}}"#, Shape::Number),
        (r#"{"f": {"$lte": "a"}}"#, Shape::Text),
        (r#"{"f": {"$after": "2024-01-01T00:00:00Z"}}"#, Shape::Text),
        (r#"{"f": {"$in": [1, 2.5]}}"#, Shape::Number),
        (r#"{"f": {"$in": ["a", "b"]}}"#, Shape::Text),
        (r#"{"f": {"$in": ["a", 1]}}"#, Shape::Any),
        (r#"{"f": {"$in": [true, false]}}"#, Shape::Any),
        (r#"{"f": {"$in": []}}"#, Shape::Any),
        (r#"{"f": {"$ne": 1}}"#, Shape::Any),
        (r#"{"f": {"$nin": ["a"]}}"#, Shape::Any),
        (r#"{"f": {"$exists": true}}"#, Shape::Any),
        (r#"{"f": {"$contains": "a"}}"#, Shape::Any),
        (r#"{"g": {"$gt": 1}}"#, Shape::Any),
        (r#"{"$not": {"f": {"$gt": 1}}}"#, Shape::Any),
        (r#"{"$and": [{"g": 1}, {"f": {"$gt": 1}}]}"#, Shape::Number),
        (r#"{"$or": [{"f": {"$gt": 1}}, {"f": {"$lt": 0}}]}"#, Shape::Number),
        (r#"{"$or": [{"f": {"$gt": 1}}, {"f": {"$lt": "a"}}]}"#, Shape::Any),
        (r#"{"$or": [{"f": {"$gt": 1}}, {"g": 1}]}"#, Shape::Any),
        (r#"{"$or": [{"f": 1}, {"f": 2}]}"#, Shape::Any),
        (r#"{"$or": [{"f": {"$gt": 1}}, {"f": 2}]}"#, Shape::Any),
    ] {
        let read = Filter::parse(filter.as_bytes(), &MemberNames).expect(filter);
        assert_eq!(Shape::of_member("f", &read), shape, "{filter}");
    }
}

#[test]
fn the_ranks_of_the_types_are_in_their_order() {
    use crate::json::Number;
    let values = [
        SortValue::Null,
        SortValue::String(String::new()),
        SortValue::Number(Number::from(1)),
        SortValue::Bool(false),
        SortValue::Array,
        SortValue::Object,
    ];
    assert!(values.is_sorted_by_key(rank_of) && values.is_sorted() && rank_of(&values[0]) == 1);
}

#[test]
fn every_parameter_of_a_page_after_a_cursor_is_in_its_text() {
    let table = Table::new("kv", vec![(Member::new("n").expect("a name"), IndexType::Numeric)]);
    let document = |key: &str| Document {
        key: Key::new(key).expect("a key"),
        value: Value::parse(r#"{"a": "x", "n": 1, "b": true}"#).expect("a value"),
        version: Version(1),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    };
    for query in [
        r#""filter": {"a": "x"}, "sort": ["a"]"#,
        r#""filter": {"n": {"$gt": 0}}, "sort": ["-n"]"#,
        r#""filter": {"n": {"$gt": "text"}}, "sort": ["n", "missing"]"#,
        r#""sort": ["a", "-n", "b", "-created_at"]"#,
    ] {
        let parse = |more: &str| Query::parse(format!("{{{query}, \"limit\": 1{more}}}").as_bytes());
        let first = parse("").expect(query).page(vec![document("1"), document("2")], None).expect(query);
        let cursor = first.next_cursor.expect("there is another page");
        let next = parse(&format!(", \"cursor\": {cursor:?}")).expect(query);
        let mut parameters = Parameters::default();
        let text = page(&next, &table, ReadPlan::Planned, "*", &mut parameters).expect(query);
        for number in 1..=parameters.into_iter().len() {
            assert!(text.contains(&format!("${number}::")), "${number} of {query}: {text}");
        }
    }
}
