//! Which notification type may go to whom, from whom, by which channel, and what its payload must look like.
//!
//! The catalogue is data: a TOML file whose head comment explains the format to operators. It is read once, at
//! start; schemas are compiled then and reach for nothing outside the file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use crate::route::{Channel, UnknownName};

/// The longest name of a type or producer, in bytes.
pub const MAX_NAME: usize = 128;

/// How many characters of a payload's path or of a property's name a message repeats.
const MAX_QUOTED: usize = 200;

/// The catalogue that the service has built in.
const BUILT_IN: &str = include_str!("../catalog.toml");

/// Whether an intent goes to users or to administrators.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AudienceKind {
    /// The users that the intent names.
    User,
    /// The addresses that configuration names for the type.
    AdminEmail,
}

impl AudienceKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::User, Self::AdminEmail];

    /// As it is spelled in intents, tables and the catalogue.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::AdminEmail => "admin_email",
        }
    }
}

impl fmt::Display for AudienceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AudienceKind {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownName)
    }
}

/// What is wrong with a catalogue file, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct CatalogError {
    /// Counted from 1.
    pub line: usize,
    /// For the operator who wrote the file.
    pub reason: String,
}

/// The notification types.
#[derive(Debug)]
pub struct Catalog {
    types: Vec<NotificationType>,
    by_name: HashMap<String, usize>,
}

impl Catalog {
    /// The types that the service knows without being told.
    pub fn built_in() -> Self {
        // Cannot fail: a test reads the same text.
        Self::parse(BUILT_IN).expect("the built-in catalogue is valid")
    }

    /// Reads the text of a catalogue file and compiles its schemas.
    pub fn parse(text: &str) -> Result<Self, CatalogError> {
        let file: CatalogFile = toml::from_str(text).map_err(|error| {
            let reason = error.message().replace('\n', ", ");
            CatalogError { line: line_of(text, error.span().unwrap_or_default()), reason }
        })?;
        let mut catalog = Self { types: Vec::with_capacity(file.types.len()), by_name: HashMap::new() };
        for entry in file.types {
            let span = entry.name.span();
            let added = NotificationType::compile(entry).and_then(|known| catalog.add(known, span));
            added.map_err(|wrong| CatalogError { line: line_of(text, wrong.span), reason: wrong.reason })?;
        }
        match catalog.types.is_empty() {
            true => Err(CatalogError { line: 1, reason: "no types".to_owned() }),
            false => Ok(catalog),
        }
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&NotificationType> {
        self.by_name.get(name).map(|at| &self.types[*at])
    }

    /// Every type, in the order of the file.
    pub fn types(&self) -> impl Iterator<Item = &NotificationType> {
        self.types.iter()
    }

    fn add(&mut self, known: NotificationType, span: Range<usize>) -> Result<(), Wrong> {
        if self.by_name.insert(known.name.clone(), self.types.len()).is_some() {
            return Err(Wrong { span, reason: format!("a second type {:?}", known.name) });
        }
        self.types.push(known);
        Ok(())
    }
}

/// What the catalogue says about one notification type.
#[derive(Debug)]
pub struct NotificationType {
    name: String,
    producers: Vec<String>,
    audiences: BTreeMap<AudienceKind, Vec<Channel>>,
    payload: Validator,
}

impl NotificationType {
    /// As intents spell it; event type and mail template at once.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who may send it; at least one, in the order of the file.
    pub fn producers(&self) -> &[String] {
        &self.producers
    }

    /// Whether `producer` may send it.
    pub fn allows_producer(&self, producer: &str) -> bool {
        self.producers.iter().any(|allowed| allowed == producer)
    }

    /// The channels that reach such an audience, at least one; `None` if the type is not for it.
    pub fn channels(&self, audience: AudienceKind) -> Option<&[Channel]> {
        self.audiences.get(&audience).map(Vec::as_slice)
    }

    /// Holds a payload against the schema. The message names the place and the rule, never a value: payloads are
    /// private.
    pub fn check_payload(&self, payload: &Value) -> Result<(), String> {
        self.payload.validate(payload).map_err(|error| describe(&error))
    }

    /// The environment variable that lists the administrators' addresses.
    pub fn admin_emails_variable(&self) -> String {
        format!("NOTIFICATION_ADMIN_EMAILS_{}", self.name.to_ascii_uppercase().replace('.', "_"))
    }

    fn compile(entry: TypeEntry) -> Result<Self, Wrong> {
        check(&entry.name, is_type_name(entry.name.get_ref()), "takes lower-case letters, digits, `_` and dots")?;
        Ok(Self {
            producers: compile_producers(entry.producers)?,
            audiences: compile_audiences(entry.audiences)?,
            payload: compile_schema(entry.payload)?,
            name: entry.name.into_inner(),
        })
    }
}

/// The file as serde sees it. Spans are kept for the line numbers of errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogFile {
    #[serde(rename = "type")]
    types: Vec<TypeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeEntry {
    name: Spanned<String>,
    producers: Spanned<Vec<Spanned<String>>>,
    audiences: Spanned<BTreeMap<Spanned<String>, Spanned<Vec<Spanned<String>>>>>,
    payload: Spanned<toml::Table>,
}

/// What is wrong with which part of the file.
struct Wrong {
    span: Range<usize>,
    reason: String,
}

fn wrong<T>(part: &Spanned<T>, reason: impl Into<String>) -> Wrong {
    Wrong { span: part.span(), reason: reason.into() }
}

fn check(part: &Spanned<String>, holds: bool, takes: &str) -> Result<(), Wrong> {
    match holds && (1..=MAX_NAME).contains(&part.get_ref().len()) {
        true => Ok(()),
        false => Err(wrong(part, format!("a name of 1 to {MAX_NAME} bytes {takes}"))),
    }
}

fn line_of(text: &str, span: Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
}

fn is_type_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.split('.').all(|part| !part.is_empty() && part.bytes().all(allowed))
}

fn compile_producers(entries: Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(&entries, "no producers: at least one may send the type"));
    }
    for name in entries.get_ref() {
        check(name, name.get_ref().bytes().all(|byte| byte.is_ascii_graphic()), "takes visible ASCII characters")?;
    }
    Ok(entries.into_inner().into_iter().map(Spanned::into_inner).collect())
}

type AudienceEntries = BTreeMap<Spanned<String>, Spanned<Vec<Spanned<String>>>>;

fn compile_audiences(entries: Spanned<AudienceEntries>) -> Result<BTreeMap<AudienceKind, Vec<Channel>>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(&entries, "no audiences: the type takes user, admin_email or both"));
    }
    let compile = |(name, channels): (Spanned<String>, _)| {
        let kind = name.get_ref().parse().map_err(|_| wrong(&name, "an audience is user or admin_email"))?;
        Ok((kind, compile_channels(kind, &channels)?))
    };
    entries.into_inner().into_iter().map(compile).collect()
}

fn compile_channels(kind: AudienceKind, entries: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<Channel>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(entries, "no channels: an audience takes push, email or both"));
    }
    let mut seen = HashSet::new();
    let compile = |entry: &Spanned<String>| match entry.get_ref().parse() {
        Err(_) => Err(wrong(entry, "a channel is push or email")),
        Ok(Channel::Push) if kind == AudienceKind::AdminEmail => {
            Err(wrong(entry, "administrators have no user id to push to, only email"))
        }
        Ok(channel) if seen.insert(channel) => Ok(channel),
        Ok(channel) => Err(wrong(entry, format!("channel {channel} twice"))),
    };
    entries.get_ref().iter().map(compile).collect()
}

fn compile_schema(table: Spanned<toml::Table>) -> Result<Validator, Wrong> {
    let span = table.span();
    let invalid = |reason: String| Wrong { span: span.clone(), reason: format!("payload is no JSON Schema: {reason}") };
    let schema = to_json(toml::Value::Table(table.into_inner())).map_err(|reason| invalid(reason.to_owned()))?;
    // The regex engine is the one whose time is linear in the text: patterns meet payloads from outside.
    let options = jsonschema::options().with_draft(Draft::Draft202012).offline();
    let options = options.with_pattern_options(PatternOptions::regex());
    options.build(&schema).map_err(|error| invalid(quote(&error.to_string())))
}

fn to_json(value: toml::Value) -> Result<Value, &'static str> {
    Ok(match value {
        toml::Value::String(text) => Value::from(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) if number.is_finite() => Value::from(number),
        toml::Value::Float(_) => return Err("JSON has no infinity"),
        toml::Value::Boolean(truth) => Value::from(truth),
        toml::Value::Datetime(_) => return Err("JSON has no dates"),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect::<Result<_, _>>()?,
        toml::Value::Table(members) => {
            let members = members.into_iter().map(|(key, value)| Ok((key, to_json(value)?)));
            Value::Object(members.collect::<Result<_, _>>()?)
        }
    })
}

/// Names where a payload breaks which rule, from the schema and the payload's keys alone.
fn describe(error: &ValidationError<'_>) -> String {
    let place = match error.instance_path().as_str() {
        "" => "as a whole".to_owned(),
        path => format!("at {}", quote(path)),
    };
    let detail = match error.kind() {
        ValidationErrorKind::Required { property } => format!(": {property} is missing"),
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let first = unexpected.first().map_or("", String::as_str);
            format!(": \"{}\" is not one of the fields", quote(first))
        }
        _ => String::new(),
    };
    format!("payload_json {place} breaks the rule {} of the type's schema{detail}", error.schema_path().as_str())
}

fn quote(text: &str) -> String {
    text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A valid catalogue of one type, five lines long before its schema.
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
    fn a_type_says_who_may_send_it_to_whom_by_which_channels() {
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
        for name in ["", "a b", "ä", "\\n", &"a".repeat(129)] {
            assert_wrong(&with("\"q-2\"", &format!("\n\"{name}\"")), 4, "takes visible ASCII characters");
        }
    }

    #[test]
    fn a_bad_audience_or_none_is_refused() {
        assert_wrong(&with("audiences.admin_email", "audiences.everyone"), 5, "an audience is user or admin_email");
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
            assert!(error.reason.starts_with("payload is no JSON Schema"), "{wrong}: {error}");
        }
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
                "payload_json at /a/1 breaks the rule /properties/a/items/enum of the type's schema",
            ),
            (json!({}), "payload_json as a whole breaks the rule /required of the type's schema: \"a\" is missing"),
            (
                json!({"a": [], "b\n": "secret"}),
                "payload_json as a whole breaks the rule /additionalProperties of the type's schema: \
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
}
