use super::*;

fn user(id: &str) -> ErasedUser {
    ErasedUser::new(id.to_owned(), b"installation").expect("an id")
}

#[test]
fn a_hash_is_the_hmac_of_the_id_under_the_key() {
    // RFC 4231, test cases 2 and 6.
    let of = |key: &[u8], data: &[u8]| hex::encode(hmac_sha256(key, &[data]));
    assert_eq!(
        of(b"Jefe", b"what do ya want for nothing?"),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
    assert_eq!(
        of(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    );
    let other = ErasedUser::new("u-1".to_owned(), b"other").expect("an id");
    assert!(user("u-1").hash() == user("u-1").hash() && user("u-1").hash() != other.hash());
    assert!(!format!("{:?}", user("u-1")).contains("u-1"));
}

#[test]
fn only_an_id_of_a_user_is_taken() {
    for wrong in ["", " u-1", "u-1\n", "u\0", &"u".repeat(129)] {
        assert!(checked_user_id(wrong.to_owned()).is_err(), "{wrong:?}");
    }
    assert!(checked_user_id("u".repeat(128)).is_ok());
}

#[test]
fn an_outbound_entry_is_the_users_by_its_route_and_no_other() {
    let entry = |id: &str| [("event_id", id), ("user_id", "u-1")].into_iter().collect::<RawFields>();
    assert!(user("u-1").is_recipient_of(&entry("1-0/push:user:u-1")));
    assert!(user("u-1").is_recipient_of(&entry("1-0/email:user:u-1")));
    for other in ["1-0/push:user:u-12", "1-0/email:email:u-1", "u-1", ""] {
        assert!(!user("u-1").is_recipient_of(&entry(other)), "{other}");
    }
}

#[test]
fn an_entry_names_its_recipients_and_what_is_no_list_names_whom_it_contains() {
    for (list, expected) in [
        (r#"["u-1","u-2"]"#, true),
        (r#"["u-12"]"#, false),
        (r#""u-1""#, true),
        ("u-1, u-2", true),
        ("u-12", false),
        ("[\"u-1\"", true),
    ] {
        let entry: RawFields = [("recipient_user_ids_json", list)].into_iter().collect();
        assert_eq!(user("u-1").is_named_by(&entry), expected, "{list}");
        let stored = json!([["recipient_user_ids_json", list]]).to_string();
        assert_eq!(user("u-1").is_named_by_stored(&stored), expected, "{list}");
    }
    let mention: RawFields = [("payload_json", r#"{"user_id":"u-1"}"#)].into_iter().collect();
    assert!(!user("u-1").is_named_by(&mention));
}

#[test]
fn fields_that_are_not_text_are_searched_too() {
    // The bytes `["u-1",` and `u-12`, each with a byte that is not UTF-8.
    for (base64, expected) in [("WyJ1LTEiLP8=", true), ("dS0xMv8=", false)] {
        let stored = json!([["recipient_user_ids_json", {"base64": base64}]]).to_string();
        assert_eq!(user("u-1").is_named_by_stored(&stored), expected, "{stored}");
        assert_eq!(user("u-1").is_mentioned_by_stored(&stored), expected, "{stored}");
    }
    let other = json!([["payload_json", r#"{"by":"a\"b"}"#], ["colour", "u-1"]]).to_string();
    for (id, expected) in [("u-1", true), ("a\"b", true), ("by", true), ("u", false), ("colour", true)] {
        assert_eq!(user(id).is_mentioned_by_stored(&other), expected, "{id}");
    }
}

#[test]
fn a_pattern_has_no_special_characters_of_the_id() {
    assert_eq!(user("a.b*").pattern(), r"(^|[^[:alnum:]_-])a\.b\*($|[^[:alnum:]_-])");
    assert!(user("a\"b").pattern().contains(r#"(a\\\"b|a\\\\\\\"b)"#), "{}", user("a\"b").pattern());
}

#[test]
fn arguments_lose_the_id_as_a_word_and_nothing_else() {
    let arguments = json!({
        "ids": ["1-0/push:user:u-1", "1-0/push:user:u-12", "1-0/email:user:x-u-1"],
        "filter": {"recipient": "u-1"}, "reason": "u-1, u-1 asked", "max_attempts": {"u-1": 1},
    });
    let without = user("u-1").without_user(arguments).expect("it has the id");
    let expected = json!({
        "ids": ["1-0/push:user:erased", "1-0/push:user:u-12", "1-0/email:user:x-u-1"],
        "filter": {"recipient": "erased"}, "reason": "erased, erased asked", "max_attempts": {"u-1": 1},
    });
    assert_eq!(without, expected);
    assert_eq!(user("u-1").without_user(without), None, "a second time finds nothing");
    assert_eq!(user("5").without_user(json!({"affected": 5})), None, "a number is not an id");
}
