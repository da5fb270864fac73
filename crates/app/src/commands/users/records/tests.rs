use super::super::lines::MAX_RECORD_BYTES;
use super::*;

type Seen = (u64, Result<(String, String), String>);

fn all(mut records: Records<&[u8]>) -> Vec<Record> {
    std::iter::from_fn(|| records.next().expect("memory")).collect()
}

fn seen(records: Records<&[u8]>) -> Vec<Seen> {
    let seen = all(records).into_iter().map(|record| {
        let text = |(key, value): (Key, Value)| (key.as_str().to_owned(), value.as_str().to_owned());
        (record.line, record.document.map(text))
    });
    seen.collect()
}

fn csv(text: &str) -> Records<&[u8]> {
    Records::csv(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
}

fn taken(line: u64, user_id: &str, value: &str) -> Seen {
    (line, Ok((format!("users/{user_id}"), value.to_owned())))
}

fn refused(line: u64, reason: &str) -> Seen {
    (line, Err(reason.to_owned()))
}

#[test]
fn a_line_of_json_is_a_document_without_its_user_id() {
    let text = "\u{feff}{\"user_id\":\"u-1\",\"email\":\"a@b\",\"n\":1.50}\r\n\n{\"user_id\":\"ü/..\"}\n {\"user_id\":\"u\",\"x\":{}}";
    let expected = [
        taken(1, "u-1", r#"{"n": 1.50, "email": "a@b"}"#),
        taken(3, "ü/..", "{}"),
        taken(4, "u", r#"{"x": {}}"#),
    ];
    assert_eq!(seen(Records::jsonl(text.as_bytes())), expected);
}

#[test]
fn a_line_that_is_no_user_is_refused_with_its_reason() {
    let long = "u".repeat(1_019);
    for (line, reason) in [
        ("nonsense", "it is no JSON that can be stored: "),
        ("{\"user_id\":\"u\"} {}", "it is no JSON that can be stored: "),
        ("{\"user_id\":\"a\\u0000b\"}", "it is no JSON that can be stored: "),
        ("[]", "it is no JSON object"),
        ("{}", "it has no user_id"),
        ("{\"user_id\":7}", "its user_id is no string"),
        ("{\"user_id\":null}", "its user_id is no string"),
        ("{\"user_id\":\"\"}", "its user_id is empty"),
        (
            &format!("{{\"user_id\":\"{long}\"}}"),
            "its user_id is longer than 128 bytes, so that no intent can name it",
        ),
        ("{\"user_id\":\"u\",\"email\":null}", "its email is no string"),
        ("{\"user_id\":\"u\",\"email\":7}", "its email is no string"),
        ("{\"user_id\":\"u\",\"email\":[\"a@b\"]}", "its email is no string"),
    ] {
        let record = all(Records::jsonl(line.as_bytes())).remove(0);
        assert!(record.document.as_ref().is_err_and(|found| found.starts_with(reason)), "{line}: {record:?}");
        assert_eq!(record.text, line);
    }
    let not_utf8 = all(Records::jsonl(b"{\"user_id\":\"\xff\"}\n{\"user_id\":\"u\"}"));
    assert!(not_utf8[0].document.is_err() && not_utf8[1].document.is_ok(), "{not_utf8:?}");
    assert_eq!(not_utf8[0].text, "{\"user_id\":\"\u{fffd}\"}");
}

#[test]
fn rows_are_documents_whose_other_columns_are_strings() {
    let text =
        "\u{feff}email,user_id,plan\r\na@b,u-1,7\r\n\r\n\"a \"\"quoted\"\"\r\nname\",u-2,\"x,y\"\r\n,u-3,";
    let expected = [
        taken(2, "u-1", r#"{"plan": "7", "email": "a@b"}"#),
        taken(4, "u-2", r#"{"plan": "x,y", "email": "a \"quoted\"\r\nname"}"#),
        taken(6, "u-3", r#"{"plan": "", "email": ""}"#),
    ];
    assert_eq!(seen(csv(text)), expected);
    assert_eq!(all(csv(text))[1].text, "\"a \"\"quoted\"\"\r\nname\",u-2,\"x,y\"");
}

#[test]
fn a_row_that_is_no_user_is_refused_and_the_next_one_is_read() {
    let text = "user_id,email\nu-1\nu-2,a,b\n,a\nu-3,a\r b\nu-4,\0\nu-5,a";
    let expected = [
        refused(2, "it has 1 fields, and the header has 2"),
        refused(3, "it has 3 fields, and the header has 2"),
        refused(4, "its user_id is empty"),
        refused(5, "it has a carriage return outside of quotes"),
        refused(6, "a field contains U+0000"),
        taken(7, "u-5", r#"{"email": "a"}"#),
    ];
    assert_eq!(seen(csv(text)), expected);
    let not_utf8 = Records::csv(&b"user_id\n\xff\nu"[..]).expect("a header");
    assert_eq!(seen(not_utf8), [refused(2, "it is not UTF-8"), taken(3, "u", "{}")]);
}

#[test]
fn a_quote_that_is_not_closed_costs_one_line_alone() {
    for rows in [3, MAX_RECORD_BYTES / 4] {
        let rest = (0..rows).map(|n| format!("u-{n},a\n")).collect::<String>();
        let text = format!("user_id,email\nu,\"a\n{rest}");
        let seen = seen(csv(&text));
        assert_eq!(seen[0], refused(2, "a quote is not closed"));
        assert_eq!(seen.len(), rows + 1);
        let last = taken(rows as u64 + 2, &format!("u-{}", rows - 1), r#"{"email": "a"}"#);
        assert_eq!(seen[rows], last);
    }
}

#[test]
fn a_record_is_as_large_as_it_may_be_and_no_larger() {
    for (bytes, is_taken) in [(MAX_RECORD_BYTES, true), (MAX_RECORD_BYTES + 1, false)] {
        let json = r#"{"user_id":"u","x":""}"#;
        let json = json.replace("\"\"", &format!("\"{}\"", "x".repeat(bytes - json.len())));
        let row = format!("u,{}", "x".repeat(bytes - 2));
        for records in [Records::jsonl(json.as_bytes()), csv(&format!("user_id,x\n{row}"))] {
            let seen = seen(records);
            assert_eq!(seen[0].1.is_ok(), is_taken, "{bytes}");
        }
    }
}

#[test]
fn a_header_without_user_id_or_with_a_column_twice_is_no_header() {
    for (text, reason) in [
        ("", "it has no header"),
        ("\n \n", "it has no header"),
        ("id,email\nu,a", "its header has no column user_id"),
        ("user_id;email\n", "its header has no column user_id"),
        ("user_id,email,email\n", "its header has the column \"email\" twice"),
        ("user_id,\n", "column 2 of its header has no name"),
        ("\"user_id\n", "its header cannot be read: a quote is not closed"),
    ] {
        match Records::csv(text.as_bytes()) {
            Err(NoRecords::Header(found)) => assert_eq!(found, reason, "{text:?}"),
            _ => panic!("{text:?}"),
        }
    }
}
