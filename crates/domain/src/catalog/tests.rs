//! The rules of a catalogue file, and the error for each breach.

use serde_json::json;

use super::*;

/// A valid catalogue of one type, with five lines before its schema.
const ONE: &str = r#"[[type]]
name = "a.b_1"
producers = ["p", "q-2"]
audiences.user = ["email", "push"]
audiences.admin_email = ["email"]
payload = { type = "object" }
"#;

fn assert_wrong(text: &str, line: usize, reason: &str) {
    let error = Catalog::parse(text).expect_err(text);
    assert_eq!(error.line, line, "{error}\n{text}");
    assert!(error.reason.contains(reason), "{error}");
    assert_eq!(error.to_string(), format!("line {line}: {}", error.reason));
}

/// The catalogue `ONE` with `old` replaced by `new`.
fn with(old: &str, new: &str) -> String {
    assert_eq!(ONE.matches(old).count(), 1, "{old}");
    ONE.replace(old, new)
}

fn schema(schema: &str) -> Result<Catalog, CatalogError> {
    Catalog::parse(&with("{ type = \"object\" }", schema))
}

#[test]
fn a_type_defines_its_producers_its_audiences_and_their_channels() {
    let catalog = Catalog::parse(ONE).expect("valid");
    let known = catalog.get("a.b_1").expect("the type");
    assert_eq!(known.name(), "a.b_1");
    assert_eq!(known.producers(), ["p", "q-2"]);
    assert!(known.allows_producer("q-2") && !known.allows_producer("q") && !known.allows_producer(""));
    assert_eq!(known.channels(AudienceKind::User), Some(&[Channel::Email, Channel::Push][..]));
    assert_eq!(known.channels(AudienceKind::AdminEmail), Some(&[Channel::Email][..]));
    assert_eq!(known.admin_emails_variable(), "NOTIFICATION_ADMIN_EMAILS_A_B_1");
    assert!(catalog.get("a.b").is_none());
}

#[test]
fn an_audience_that_is_not_listed_is_not_allowed() {
    let catalog = Catalog::parse(&with("audiences.admin_email = [\"email\"]", "")).expect("valid");
    assert_eq!(catalog.get("a.b_1").expect("the type").channels(AudienceKind::AdminEmail), None);
}

#[test]
fn types_come_in_the_order_of_the_file() {
    let text = format!("{}{ONE}", ONE.replace("a.b_1", "z"));
    let names: Vec<String> =
        Catalog::parse(&text).expect("valid").types().map(|known| known.name().to_owned()).collect();
    assert_eq!(names, ["z", "a.b_1"]);
}

#[test]
fn a_syntax_error_names_its_line() {
    assert_wrong(&with("name = ", "name = = "), 2, "");
    assert_wrong("\n\n[[type", 3, "");
}

#[test]
fn an_unknown_or_missing_key_names_its_line() {
    assert_wrong(&format!("{ONE}colour = 1\n"), 7, "colour");
    assert_wrong(&format!("colour = 1\n{ONE}"), 1, "colour");
    assert_wrong(&with("producers = [\"p\", \"q-2\"]\n", ""), 1, "producers");
    assert_wrong(&with("payload = { type = \"object\" }\n", ""), 1, "payload");
    assert_wrong(&with("[\"p\", \"q-2\"]", "\"p\""), 3, "invalid type");
}

#[test]
fn a_catalogue_without_types_is_refused() {
    assert_wrong("type = []", 1, "no types");
    assert_wrong("", 1, "type");
}

#[test]
fn a_second_type_of_the_same_name_is_refused() {
    assert_wrong(&format!("{ONE}\n{ONE}"), 9, "a second type \"a.b_1\"");
}

#[test]
fn a_bad_type_name_is_refused() {
    let long = "a".repeat(129);
    for name in ["", ".", "a.", ".a", "a..b", "A", "a-b", "a b", "ä", long.as_str()] {
        assert_wrong(&with("a.b_1", name), 2, "a name of 1 to 128 bytes takes lower-case letters");
    }
    assert!(Catalog::parse(&with("a.b_1", &"a".repeat(128))).is_ok());
}

#[test]
fn a_bad_producer_or_none_is_refused() {
    assert_wrong(&with("[\"p\", \"q-2\"]", "[]"), 3, "no producers");
    let producers = |length| format!("[\"{}\"]", "p".repeat(length));
    assert_wrong(&with("[\"p\", \"q-2\"]", &producers(129)), 3, "a name of 1 to 128 bytes");
    assert!(Catalog::parse(&with("[\"p\", \"q-2\"]", &producers(128))).is_ok());
    for name in ["", "a b", "ä", "\\n", &"a".repeat(129)] {
        assert_wrong(&with("\"q-2\"", &format!("\n\"{name}\"")), 4, "takes visible ASCII characters");
    }
}

#[test]
fn a_bad_audience_or_none_is_refused() {
    assert_wrong(
        &with("audiences.admin_email", "audiences.everyone"),
        5,
        "an audience is user or admin_email",
    );
    let lines = "audiences.user = [\"email\", \"push\"]\naudiences.admin_email = [\"email\"]";
    assert_wrong(&with(lines, "\naudiences = {}"), 5, "no audiences");
}

#[test]
fn a_bad_channel_or_none_is_refused() {
    let user = "[\"email\", \"push\"]";
    assert_wrong(&with(user, "[]"), 4, "no channels");
    assert_wrong(&with(user, "[\"email\", \"sms\"]"), 4, "a channel is push or email");
    assert_wrong(&with(user, "[\"email\", \"email\"]"), 4, "channel email twice");
}

#[test]
fn a_push_to_administrators_is_refused() {
    assert_wrong(&with("admin_email = [\"email\"]", "admin_email = [\"push\"]"), 5, "no user id to push to");
}

#[test]
fn what_is_no_json_schema_is_refused() {
    for wrong in [
        "{ type = \"strng\" }",
        "{ minLength = -1 }",
        "{ pattern = \"(\" }",
        "{ pattern = \"(a)\\\\1\" }",
        "{ const = 1979-05-27 }",
        "{ minimum = inf }",
        "{ \"$ref\" = \"https://schemas.example/x.json\" }",
        "{ \"$ref\" = \"file:///x.json\" }",
    ] {
        let error = schema(wrong).expect_err(wrong);
        assert_eq!(error.line, 6, "{wrong}: {error}");
        assert!(error.reason.starts_with("payload is not a JSON Schema"), "{wrong}: {error}");
    }
}

#[test]
fn a_bad_schema_is_found_at_the_header_of_its_table() {
    let table = "\n[type.payload]\ntype = \"object\"\n[type.payload.properties.a]\ntype = \"strng\"\n";
    assert_wrong(&with("payload = { type = \"object\" }\n", table), 7, "payload is not a JSON Schema");
}

#[test]
fn a_schema_may_refer_to_itself() {
    let text = r##"{ properties.a = { "$ref" = "#/$defs/name" }, "$defs".name = { type = "string", maxLength = 1 } }"##;
    let catalog = schema(text).expect("valid");
    let known = catalog.get("a.b_1").expect("the type");
    assert_eq!(known.check_payload(&json!({"a": "x"})), Ok(()));
    assert!(known.check_payload(&json!({"a": "xy"})).is_err());
}

#[test]
fn a_refused_payload_is_described_by_place_and_rule_without_its_values() {
    let text = r#"{ required = ["a"], additionalProperties = false, properties.a = { items.enum = ["x"] } }"#;
    let catalog = schema(text).expect("valid");
    let known = catalog.get("a.b_1").expect("the type");
    for (payload, expected) in [
        (
            json!({"a": ["x", "secret"]}),
            "at /a/1 breaks the rule /properties/a/items/enum of the type's schema: it is not one of \"x\"",
        ),
        (json!({}), "as a whole breaks the rule /required of the type's schema: \"a\" is missing"),
        (
            json!({"a": [], "b\n": "secret"}),
            "as a whole breaks the rule /additionalProperties of the type's schema: \
             \"b\\n\" is not one of the fields",
        ),
    ] {
        assert_eq!(known.check_payload(&payload), Err(expected.to_owned()));
    }
}

#[test]
fn a_description_is_short_however_long_the_keys() {
    let catalog = schema(r#"{ additionalProperties = { type = "integer" } }"#).expect("valid");
    let payload = json!({ "k".repeat(60_000): "secret" });
    let message = catalog.get("a.b_1").expect("the type").check_payload(&payload).expect_err("no integer");
    assert!(message.len() < 400, "{message}");
}
