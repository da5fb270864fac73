//! Reads the catalogue file with serde and checks it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use jsonschema::{Draft, PatternOptions, Validator};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::{AudienceKind, CatalogError, MAX_NAME, NotificationType, quote};
use crate::route::Channel;

/// Returns the types of a catalogue file in file order: at least one, with distinct names.
pub(super) fn read(text: &str) -> Result<Vec<NotificationType>, CatalogError> {
    let file: CatalogFile = toml::from_str(text).map_err(|error| {
        let reason = error.message().replace('\n', ", ");
        CatalogError { line: line_of(text, error.span().unwrap_or_default()), reason }
    })?;
    if file.types.is_empty() {
        return Err(CatalogError { line: 1, reason: "no types".to_owned() });
    }
    let mut names = HashSet::new();
    let compile = |entry: TypeEntry| match names.insert(entry.name.get_ref().clone()) {
        true => entry.compile(),
        false => Err(wrong(&entry.name, format!("a second type {:?}", entry.name.get_ref()))),
    };
    let types: Result<_, Wrong> = file.types.into_iter().map(compile).collect();
    types.map_err(|wrong| CatalogError { line: line_of(text, wrong.span), reason: wrong.reason })
}

/// The line of a span, counted from 1.
fn line_of(text: &str, span: Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
}

/// The file as serde reads it. Spans provide the line numbers of errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogFile {
    #[serde(rename = "type")]
    types: Vec<TypeEntry>,
}

type SpannedText = Spanned<String>;
type SpannedTexts = Spanned<Vec<SpannedText>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeEntry {
    name: SpannedText,
    producers: SpannedTexts,
    audiences: Spanned<BTreeMap<SpannedText, SpannedTexts>>,
    payload: Spanned<toml::Table>,
}

impl TypeEntry {
    fn compile(self) -> Result<NotificationType, Wrong> {
        let sound = is_type_name(self.name.get_ref());
        check_name(&self.name, sound, "takes lower-case letters, digits, `_` and dots")?;
        let producers = compile_producers(self.producers)?;
        let audiences = compile_audiences(self.audiences)?;
        let (payload_schema, payload) = compile_schema(self.payload)?;
        Ok(NotificationType { name: self.name.into_inner(), producers, audiences, payload_schema, payload })
    }
}

/// An error and the part of the file that contains it.
struct Wrong {
    span: Range<usize>,
    reason: String,
}

fn wrong<T>(part: &Spanned<T>, reason: impl Into<String>) -> Wrong {
    Wrong { span: part.span(), reason: reason.into() }
}

fn check_name(part: &SpannedText, sound: bool, takes: &str) -> Result<(), Wrong> {
    match sound && (1..=MAX_NAME).contains(&part.get_ref().len()) {
        true => Ok(()),
        false => Err(wrong(part, format!("a name of 1 to {MAX_NAME} bytes {takes}"))),
    }
}

fn is_type_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.split('.').all(|part| !part.is_empty() && part.bytes().all(allowed))
}

fn compile_producers(entries: SpannedTexts) -> Result<Vec<String>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(&entries, "no producers: at least one may send the type"));
    }
    for name in entries.get_ref() {
        let sound = name.get_ref().bytes().all(|byte| byte.is_ascii_graphic());
        check_name(name, sound, "takes visible ASCII characters")?;
    }
    Ok(entries.into_inner().into_iter().map(Spanned::into_inner).collect())
}

fn compile_audiences(
    entries: Spanned<BTreeMap<SpannedText, SpannedTexts>>,
) -> Result<BTreeMap<AudienceKind, Vec<Channel>>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(&entries, "no audiences: the type takes user, admin_email or both"));
    }
    let compile = |(name, channels): (SpannedText, SpannedTexts)| {
        let kind = name.get_ref().parse().map_err(|_| wrong(&name, "an audience is user or admin_email"))?;
        Ok((kind, compile_channels(kind, &channels)?))
    };
    entries.into_inner().into_iter().map(compile).collect()
}

fn compile_channels(kind: AudienceKind, entries: &SpannedTexts) -> Result<Vec<Channel>, Wrong> {
    if entries.get_ref().is_empty() {
        return Err(wrong(entries, "no channels: an audience takes push, email or both"));
    }
    let mut seen = HashSet::new();
    let compile = |entry: &SpannedText| match entry.get_ref().parse() {
        Err(_) => Err(wrong(entry, "a channel is push or email")),
        Ok(Channel::Push) if kind == AudienceKind::AdminEmail => {
            Err(wrong(entry, "administrators have no user id to push to, only email"))
        }
        Ok(channel) if seen.insert(channel) => Ok(channel),
        Ok(channel) => Err(wrong(entry, format!("channel {channel} twice"))),
    };
    entries.get_ref().iter().map(compile).collect()
}

/// Returns the schema as JSON, and compiled.
fn compile_schema(table: Spanned<toml::Table>) -> Result<(Value, Validator), Wrong> {
    let span = table.span();
    let invalid = |reason: &str| {
        let reason = format!("payload is not a JSON Schema: {}", quote(reason));
        Wrong { span: span.clone(), reason }
    };
    let schema = to_json(toml::Value::Table(table.into_inner())).map_err(invalid)?;
    // The linear-time regex engine, because patterns are matched against producers' payloads.
    let options = jsonschema::options().with_draft(Draft::Draft202012).offline();
    let options = options.with_pattern_options(PatternOptions::regex());
    let validator = options.build(&schema).map_err(|error| invalid(&error.to_string()))?;
    Ok((schema, validator))
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
            let members = members.into_iter().map(|(key, value)| to_json(value).map(|value| (key, value)));
            Value::Object(members.collect::<Result<_, _>>()?)
        }
    })
}
