use crate::query::{
    Comparison, Condition, Filter, Group, MAX_PAGE, MemberNames, NameKind, Names, Operand, Query, Test,
};

fn refused(text: &str) -> String {
    Query::parse(text.as_bytes()).expect_err(text).to_string()
}

fn accepted(text: &str) -> Query {
    Query::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The query `{"filter": …}`.
fn filter(text: &str) -> String {
    format!("{{\"filter\": {text}}}")
}

// K-08
#[test]
fn what_a_query_must_not_have_is_refused_with_its_name_and_place() {
    for (text, error) in [
        ("", "the text ends where a value is expected at line 1 column 1"),
        ("[]", "a query must be an object at line 1 column 1"),
        (
            r#"{"colour": 1}"#,
            "unknown member \"colour\"; a query has prefix, filter, sort, limit, offset, cursor, count and matched \
             at line 1 column 2",
        ),
        (r#"{"limit": 1, "limit": 2}"#, "repeated member \"limit\" at line 1 column 14"),
        (r#"{"prefix": 1}"#, "prefix must be a string at line 1 column 12"),
        (r#"{"prefix": "a\u0000"}"#, "U+0000, which PostgreSQL cannot store at line 1 column 14"),
        (r#"{"limit": -1}"#, "limit must be an integer from 0 to 10000 at line 1 column 11"),
        (r#"{"limit": 10001}"#, "limit must be an integer from 0 to 10000 at line 1 column 11"),
        (r#"{"limit": 1.5}"#, "limit must be an integer from 0 to 10000 at line 1 column 11"),
        (r#"{"limit": "1"}"#, "limit must be an integer from 0 to 10000 at line 1 column 11"),
        (r#"{"offset": -1}"#, "offset must be an integer from 0 to 9223372036854775807 at line 1 column 12"),
        (
            r#"{"offset": 9223372036854775808}"#,
            "offset must be an integer from 0 to 9223372036854775807 at line 1 column 12",
        ),
        (r#"{"count": 1}"#, "count must be true or false at line 1 column 11"),
        (r#"{"matched": "true"}"#, "matched must be true or false at line 1 column 13"),
        (r#"{"cursor": "abc"}"#, "the cursor is none of this query's at line 1 column 12"),
        (r#"{"cursor": ""}"#, "the cursor is none of this query's at line 1 column 12"),
        (r#"{"cursor": "abc", "offset": 0}"#, "offset and cursor exclude each other at line 1 column 29"),
        (r#"{"sort": "a"}"#, "sort must be an array of names at line 1 column 10"),
        (r#"{"sort": [1]}"#, "an element of sort must be a string at line 1 column 11"),
        (r#"{"sort": ["a", "-a"]}"#, "\"-a\" is sorted by twice at line 1 column 16"),
        (
            r#"{"sort": ["bad field!"]}"#,
            "unknown name \"bad field!\": a name must be ASCII letters, digits and _, and must not begin with a digit \
             at line 1 column 11",
        ),
        (
            r#"{"sort": ["a","b","c","d","e","f","g","h","i"]}"#,
            "sort has more than 8 names at line 1 column 10",
        ),
        (r#"{"filter": []}"#, "filter must be an object at line 1 column 12"),
        (
            r#"{"filter": {"a b": 1}}"#,
            "unknown name \"a b\": a name must be ASCII letters, digits and _, and must not begin with a digit \
             at line 1 column 13",
        ),
        ("{\"filter\":\n {\"a\": {\"$foo\": 1}}}", "unknown operator \"$foo\" of \"a\" at line 2 column 9"),
        (
            r#"{"filter": {"$foo": 1}}"#,
            "unknown operator \"$foo\" in the place of a name at line 1 column 13",
        ),
        (r#"{"filter": {"$eq": 1}}"#, "unknown operator \"$eq\" in the place of a name at line 1 column 13"),
        (r#"{"filter": {"a": {}}}"#, "the object of operators of \"a\" is empty at line 1 column 18"),
        (
            r#"{"filter": {"a": {"$gt": 1, "b": 2}}}"#,
            "the member \"b\" among the operators of \"a\" at line 1 column 29",
        ),
        (r#"{"filter": {"a": 1, "a": 2}}"#, "repeated member \"a\" at line 1 column 21"),
        (r#"{"filter": {"a": {"$gt": 1, "$gt": 2}}}"#, "repeated member \"$gt\" at line 1 column 29"),
        (r#"{"filter": {"a": {"x": 1, "x": 2}}}"#, "repeated member \"x\" at line 1 column 27"),
        (r#"{"filter": {"$and": []}}"#, "$and is empty at line 1 column 21"),
        (r#"{"filter": {"$or": []}}"#, "$or is empty at line 1 column 20"),
        (r#"{"filter": {"$not": {}}}"#, "$not is empty at line 1 column 21"),
        (r#"{"filter": {"$and": {"a": 1}}}"#, "$and must be an array at line 1 column 21"),
        (r#"{"filter": {"$or": [1]}}"#, "an element of $or must be an object at line 1 column 21"),
        (r#"{"filter": {"$not": [{"a": 1}]}}"#, "$not must be an object at line 1 column 21"),
        (
            r#"{"filter": {"a": {"$gt": true}}}"#,
            "$gt of \"a\" must be a number or a string at line 1 column 26",
        ),
        (
            r#"{"filter": {"a": {"$lte": null}}}"#,
            "$lte of \"a\" must be a number or a string at line 1 column 27",
        ),
        (r#"{"filter": {"a": {"$in": 1}}}"#, "$in of \"a\" must be an array at line 1 column 26"),
        (r#"{"filter": {"a": {"$nin": {"b": 1}}}}"#, "$nin of \"a\" must be an array at line 1 column 27"),
        (
            r#"{"filter": {"a": {"$exists": 1}}}"#,
            "$exists of \"a\" must be true or false at line 1 column 30",
        ),
        (
            r#"{"filter": {"a": {"$before": "yesterday"}}}"#,
            "$before of \"a\" must be a time such as 2026-04-02T09:21:40.123456Z at line 1 column 30",
        ),
        (
            r#"{"filter": {"a": {"$after": 1}}}"#,
            "$after of \"a\" must be a time such as 2026-04-02T09:21:40.123456Z at line 1 column 29",
        ),
        (r#"{"filter": {"a": 1e200000}}"#, "a number beyond PostgreSQL's numeric at line 1 column 18"),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
}

#[test]
fn a_long_name_is_cut_in_its_error() {
    let error = refused(&filter(&format!("{{\"{} x\": 1}}", "é\\n".repeat(1_000))));
    assert!(error.len() < 400 && error.contains('…') && !error.contains('\n'), "{error}");
}

#[test]
fn every_limit_is_kept_to_the_number() {
    let conditions = |count: usize| {
        let all: Vec<String> = (2..count).map(|n| format!("\"a{n}\": 1")).collect();
        filter(&format!("{{\"b\": {{\"$gt\": 1, \"$lt\": 2}}, {}}}", all.join(", ")))
    };
    accepted(&conditions(64));
    assert!(refused(&conditions(65)).starts_with("more than 64 conditions"));
    let elements = |count: usize| filter(&format!("{{\"a\": {{\"$in\": [{}1]}}}}", "1,".repeat(count - 1)));
    accepted(&elements(1_000));
    assert!(refused(&elements(1_001)).starts_with("an array with more than 1000 elements"));
    let literal = |count: usize| filter(&format!("{{\"a\": [[{}1]]}}", "1,".repeat(count - 1)));
    accepted(&literal(1_000));
    assert!(refused(&literal(1_001)).starts_with("an array with more than 1000 elements"));
    // Elements within arrays all count together, however they are nested.
    let nested = |count: usize| format!("[{}[[1]]]", "[2,3,{\"x\":[4]},[]],".repeat(count));
    for operator in ["$eq", "$ne", "$contains"] {
        let within = |count: usize| filter(&format!("{{\"a\": {{{operator:?}: {}}}}}", nested(count)));
        accepted(&within(249));
        let error = refused(&within(250));
        assert!(error.starts_with("arrays with more than 1000 elements in all"), "{operator}: {error}");
    }
    refused(&filter(&format!("{{\"a\": {}}}", nested(250))));
    refused(&filter(&format!("{{\"a\": {{\"$in\": [{}]}}}}", nested(250))));
    // Elements of all operands of a filter count together.
    let each = |operator: &str, count: usize| {
        let conditions: Vec<String> = (0..10)
            .map(|n| format!("{{\"a{n}\": {{{operator:?}: [{}1]}}}}", "1,".repeat(count - 1)))
            .collect();
        filter(&format!("{{\"$or\": [{}]}}", conditions.join(",")))
    };
    for operator in ["$eq", "$ne", "$in", "$nin", "$contains"] {
        accepted(&each(operator, 100));
        let error = refused(&each(operator, 101));
        assert!(error.starts_with("arrays with more than 1000 elements in all"), "{operator}: {error}");
    }
    let within =
        |count: usize| filter(&format!("{{\"a\": {{\"$contains\": [1, [{}1]]}}}}", "1,".repeat(count - 1)));
    accepted(&within(8));
    let error = refused(&within(9));
    assert!(error.contains("an element whose own arrays have more than 8 elements"), "{error}");
    let members = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!("\"m{n}\": 1")).collect();
        filter(&format!("{{\"a\": {{{}}}}}", all.join(",")))
    };
    accepted(&members(9_998));
    assert!(refused(&members(9_999)).starts_with("more than 10000 values"));
    for (begin, end) in [("{\"$not\": ", "}"), ("{\"$and\": [", "]}"), ("{\"$or\": [", "]}")] {
        let levels =
            |count: usize| filter(&format!("{}{{\"a\": 1}}{}", begin.repeat(count), end.repeat(count)));
        accepted(&levels(8));
        assert!(
            refused(&levels(9)).contains("nested more than 8 levels deep in $and, $or and $not"),
            "{}",
            refused(&levels(9))
        );
        refused(&levels(100_000));
    }
    let deep = |levels: usize| {
        filter(&format!("{{\"a\": {{\"$eq\": {}{}}}}}", "[".repeat(levels), "]".repeat(levels)))
    };
    accepted(&deep(64));
    accepted(r#"{"limit": 10000, "offset": 9223372036854775807}"#);
    accepted(r#"{"sort": ["a","-b","c","d","e","f","g","key"]}"#);
}

#[test]
fn what_is_null_or_empty_is_absent() {
    let text = r#"{"prefix": null, "filter": null, "sort": null, "limit": null, "offset": null, "cursor": null,
                   "count": null, "matched": null}"#;
    for query in
        [accepted(text), accepted("{}"), accepted(r#"{"filter": {}, "sort": [], "limit": 0, "offset": 0}"#)]
    {
        assert_eq!((query.limit, query.offset, query.count, query.matched), (MAX_PAGE, 0, false, false));
        assert!(
            query.filter == Filter::default() && query.sort.is_empty() && query.prefix.as_str().is_empty()
        );
        assert_eq!(query.position(), None);
    }
}

#[test]
fn a_filter_is_read_object_by_object() {
    let text = br#"{"b": {"$eq": {"$gt": 1}}, "a": {"x": 1}, "$not": {"c": {"$gte": "s", "$exists": true}}}"#;
    let read = Filter::parse(text, &MemberNames).expect("a filter");
    let json = |text: &str| crate::json::Json::parse(text.as_bytes()).expect("JSON");
    let condition = |name: &str, test| Condition { name: name.into(), test };
    let expected = Filter {
        conditions: vec![
            condition("a", Test::Equal(json("{\"x\": 1}"))),
            condition("b", Test::Equal(json("{\"$gt\": 1}"))),
        ],
        groups: vec![Group::Not(Filter {
            conditions: vec![
                condition("c", Test::Exists(true)),
                condition("c", Test::Order(Comparison::GreaterOrEqual, Operand::String("s".to_owned()))),
            ],
            groups: Vec::new(),
        })],
    };
    assert_eq!(read, expected);
}

struct Others;

impl Names for Others {
    fn kind(&self, name: &str) -> Option<NameKind> {
        match name {
            "accepted_at" => Some(NameKind::Time),
            "route.status" => Some(NameKind::Json),
            _ => None,
        }
    }

    fn describe(&self) -> &str {
        "accepted_at or route.status"
    }
}

#[test]
fn another_table_has_other_names_and_its_times_take_two_operators() {
    let parse = |text: &str| Filter::parse(text.as_bytes(), &Others).map_err(|error| error.to_string());
    let after = r#"{"accepted_at": {"$after": "2026-01-01T00:00:00Z"}, "route.status": "failed"}"#;
    assert_eq!(parse(after).expect("a filter").conditions.len(), 2);
    for (text, error) in [
        (
            r#"{"status": 1}"#,
            "unknown name \"status\": a name must be accepted_at or route.status at line 1 column 2",
        ),
        (
            r#"{"accepted_at": "2026-01-01T00:00:00Z"}"#,
            "\"accepted_at\" takes $before and $after, not a literal at line 1 column 2",
        ),
        (
            r#"{"accepted_at": {"$gt": "2026"}}"#,
            "\"accepted_at\" takes $before and $after, not $gt at line 1 column 18",
        ),
    ] {
        assert_eq!(parse(text), Err(error.to_owned()), "{text}");
    }
}
