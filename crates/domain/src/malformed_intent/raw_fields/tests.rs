use serde_json::{Value, json};

use super::*;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn kept(fields: &RawFields, max: usize) -> Value {
    parsed(&KeptFields::within(fields.clone(), max, usize::MAX).text())
}

fn joined(kept: &KeptFields) -> String {
    String::from_utf8(kept.pieces().flatten().collect()).expect("UTF-8")
}

#[test]
fn fields_are_kept_in_the_order_received_with_repeats() {
    let fields = RawFields::from_iter([("b", "1"), ("a", "\u{1}é\""), ("b", ""), ("", "2")]);
    let expected = json!([["b", "1"], ["a", "\u{1}é\""], ["b", ""], ["", "2"]]);
    assert_eq!(parsed(&KeptFields::of(fields).text()), expected);
    assert_eq!(KeptFields::of(RawFields::default()).text(), "[]");
}

#[test]
fn what_is_not_utf_8_or_holds_a_nul_is_kept_as_base64() {
    let fields =
        RawFields::from_iter([(b"\xff".to_vec(), b"x\0".to_vec()), (b"a".to_vec(), b"\xc3".to_vec())]);
    let expected = json!([[{"base64": "/w=="}, {"base64": "eAA="}], ["a", {"base64": "ww=="}]]);
    assert_eq!(parsed(&KeptFields::of(fields).text()), expected);
}

#[test]
fn the_pieces_of_few_long_fields_are_the_whole_and_none_is_large() {
    // Characters of one to four bytes and escapes, shifted across the ends of pieces.
    for shift in 0..4 {
        let text = format!("{}{}", "x".repeat(shift), "aé€😀\"\\\u{1}".repeat(90_000));
        let fields = RawFields::from_iter([
            (b"text".to_vec(), text.into_bytes()),
            (vec![0xff; PIECE + shift], b"\0".repeat(3 * PIECE + shift)),
            (Vec::new(), Vec::new()),
            (vec![b'n'; PIECE], vec![b'v'; 2 * PIECE]),
        ]);
        let kept = KeptFields::of(fields.clone());
        assert!(matches!(kept.source, FieldsSource::Whole(_)));
        let whole = json(&Whole(&fields), 0);
        assert!(joined(&kept) == whole && kept.text() == whole && kept.json_length() == whole.len());
        assert!(kept.pieces().all(|piece| piece.len() <= 7 * PIECE));
    }
}

#[test]
fn the_pieces_of_short_fields_are_the_whole() {
    let fields = RawFields(vec![(b"name".to_vec(), b"value".to_vec()); 20_000]);
    let kept = KeptFields::of(fields);
    assert!(matches!(kept.source, FieldsSource::Text(_)) && kept.pieces().count() > 1);
    assert_eq!(joined(&kept), kept.text());
    assert_eq!(joined(&KeptFields::of(RawFields::default())), "[]");
}

#[test]
fn of_an_entry_that_is_too_large_long_parts_keep_size_hash_and_head() {
    let long = vec![0xff; TRUNCATED_HEAD + 1];
    let edge = "x".repeat(TRUNCATED_HEAD);
    let fields = RawFields::from_iter([
        (b"a".to_vec(), long.clone()),
        (b"b".to_vec(), edge.clone().into_bytes()),
        (b"c".to_vec(), vec![0xff; 1 << 20]),
    ]);
    assert_eq!(kept(&fields, fields.cost())[0], json!(["a", {"base64": BASE64.encode(&long)}]));
    let truncated = json!({
        "bytes": TRUNCATED_HEAD + 1,
        "sha256": hex::encode(Sha256::digest(&long)),
        "head_base64": BASE64.encode(&long[..TRUNCATED_HEAD]),
    });
    assert_eq!(kept(&fields, fields.cost() - 1)[0], json!(["a", {"truncated": truncated}]));
    assert_eq!(kept(&fields, fields.cost() - 1)[1], json!(["b", edge]));
}

#[test]
fn text_that_json_writes_many_times_as_long_is_cut_like_what_is_too_large() {
    let fields = RawFields::from_iter([("a", "\u{1}".repeat(TRUNCATED_HEAD + 1))]);
    let whole = KeptFields::within(fields.clone(), usize::MAX, usize::MAX);
    assert!(whole.json_length() > 6 * TRUNCATED_HEAD);
    assert_eq!(KeptFields::within(fields.clone(), usize::MAX, whole.json_length()), whole);
    let cut = KeptFields::within(fields, usize::MAX, whole.json_length() - 1);
    assert_eq!(parsed(&cut.text())[0][1]["truncated"]["bytes"], TRUNCATED_HEAD + 1);
}

#[test]
fn what_is_kept_of_the_largest_entries_is_bounded_whatever_their_fields_are() {
    for (value, count) in [(vec![0xff_u8; 1_000], 30_000), (vec![1; 60_000], 1_000), (Vec::new(), 300_000)] {
        let fields = RawFields(vec![(b"f".to_vec(), value); count]);
        let length = KeptFields::within(fields, 1 << 20, 1 << 21).json_length();
        assert!(length < (1 << 20) + 100, "{count} fields: {length} bytes");
    }
}

#[test]
fn fields_for_which_there_is_no_room_are_counted() {
    let fields = RawFields::from_iter(vec![("name", "value"); 10]);
    let three = 3 * (r#"["name","value"]"#.len() + FIELD_COST);
    let last = json!([{"omitted": {"fields": 7}}, {"omitted": {"bytes": 63}}]);
    let pair = json!(["name", "value"]);
    assert_eq!(kept(&fields, three), json!([pair, pair, pair, last]));
    assert_eq!(kept(&fields, three + 24), json!([pair, pair, pair, last]));
}

#[test]
fn what_is_reduced_is_small_and_is_not_reduced_again() {
    for size in [200_000, 2_000_000] {
        let whole = KeptFields::of(RawFields::from_iter([("a", "x".repeat(size))]));
        let reduced = whole.reduced().expect("it was not reduced before");
        let text = whole.text();
        let truncated = json!({
            "bytes": text.len(),
            "sha256": hex::encode(Sha256::digest(text.as_bytes())),
            "head_base64": BASE64.encode(&text.as_bytes()[..TRUNCATED_HEAD]),
        });
        assert_eq!(parsed(&reduced.text()), json!([["raw_fields", {"truncated": truncated}]]));
        assert_eq!(reduced.reduced(), None);
    }
}
