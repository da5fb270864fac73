//! The fingerprint, fixed to the byte: if it changed, keys in use would become conflicts. The hashes were
//! computed from the texts by another implementation of SHA-256.

use domain::catalog::Catalog;
use domain::entry::RawFields;
use domain::intent::decode;
use sha2::{Digest, Sha256};

use crate::{OPEN, entry};

fn assert_fingerprint(catalog: &Catalog, fields: RawFields, text: &str, expected: &str) {
    assert_eq!(format!("v1:{}", hex::encode(Sha256::digest(text))), expected, "the vector itself: {text}");
    assert_eq!(decode(&fields, catalog).expect("valid").fingerprint, expected, "{text}");
}

#[test]
fn of_an_intent_for_users_named_twice_and_unsorted() {
    let payload = "{\"turn_number\": 7,\n \"game_name\": \"Galaxy\", \"game_id\": \"g-1\"}";
    let recipients = r#"[ "u-2", "u-10", "u-1", "u-2" ]"#;
    assert_fingerprint(
        &Catalog::built_in(),
        entry("game.turn.ready", "game_master", recipients, "001775121700123", payload),
        r#"{"audience_kind":"user","notification_type":"game.turn.ready","occurred_at_ms":1775121700123,"payload":{"game_id":"g-1","game_name":"Galaxy","turn_number":7},"producer":"game_master","recipients":["u-1","u-10","u-2"]}"#,
        "v1:62d0870c403231b674b4b411202bc5e04509f4d122c6fc58c915892d44d4128a",
    );
}

#[test]
fn of_an_intent_for_administrators() {
    let payload = r#"{"user_id":"u-1","user_email":"u-1@example.com","observed_country":"NZ",
        "usual_connection_country":"IS","review_reason":"moved"}"#;
    assert_fingerprint(
        &Catalog::built_in(),
        entry("geo.review_recommended", "geoprofile", "", "0", payload),
        r#"{"audience_kind":"admin_email","notification_type":"geo.review_recommended","occurred_at_ms":0,"payload":{"observed_country":"NZ","review_reason":"moved","user_email":"u-1@example.com","user_id":"u-1","usual_connection_country":"IS"},"producer":"geoprofile","recipients":[]}"#,
        "v1:8d062af680c3125d30fe6cff55cf79b323aae580c79d138f32e90e6c0de34dea",
    );
}

#[test]
fn of_text_beyond_ascii_which_is_escaped_no_more_than_it_must_be() {
    let payload = r#"{"race_name":"\u017b\u00f3\u0142w \ud83d\ude00 \"\\\/\u007f\u0001\b\f\n\r\t\u2028"}"#;
    let recipients = r#"["\ud800\udc00","｡","ö-1","\u00e9","\u0055"]"#;
    assert_fingerprint(
        &Catalog::built_in(),
        entry("lobby.race_name.registered", "game_lobby", recipients, "253402300799999", payload),
        "{\"audience_kind\":\"user\",\"notification_type\":\"lobby.race_name.registered\",\"occurred_at_ms\":253402300799999,\
         \"payload\":{\"race_name\":\"Żółw 😀 \\\"\\\\/\u{7f}\\u0001\\b\\f\\n\\r\\t\u{2028}\"},\"producer\":\"game_lobby\",\
         \"recipients\":[\"U\",\"é\",\"ö-1\",\"｡\",\"𐀀\"]}",
        "v1:04cedeb51f1fe47c18abd680252253d231e223a16465b6da412b2b9aa9df6c78",
    );
}

#[test]
fn of_numbers_and_nested_keys() {
    let payload = r#"{"j":{"a":true,"A":null},"i":[-0.0,0,0.0,9007199254740993,9007199254740993.0],"h":4.9e-324,"g":1e300,
        "f":0.1000000000000000055511151231257827,"e":1.0,"d":-9223372036854775808,"c":18446744073709551615,"b":1e2,"a":-0}"#;
    assert_fingerprint(
        &Catalog::parse(OPEN).expect("valid"),
        entry("test.open", "p\"q", r#"["u"]"#, "1", payload),
        r#"{"audience_kind":"user","notification_type":"test.open","occurred_at_ms":1,"payload":{"a":-0,"b":100.0,"c":18446744073709551615,"d":-9223372036854775808,"e":1.0,"f":0.1,"g":1e+300,"h":5e-324,"i":[-0,0,0.0,9007199254740993,9007199254740992.0],"j":{"A":null,"a":true}},"producer":"p\"q","recipients":["u"]}"#,
        "v1:97b68fde4b67118f653483cf21feba3221fab74bb8a339745325b816aa4d7d5d",
    );
}
