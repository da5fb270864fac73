//! The catalogue: the producers, audiences, channels and payload schema of each notification type.
//!
//! The catalogue is data: a TOML file whose head comment explains the format to operators. It is read once,
//! at start. Schemas are compiled then and may not refer to other files.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use crate::route::{Channel, UnknownName};

mod example;
mod file;

/// The longest name of a type or producer, in bytes.
pub const MAX_NAME: usize = 128;

/// The most characters of a payload path, a property name or a rule that a message quotes.
const MAX_QUOTED: usize = 200;

/// The text of the built-in catalogue.
/// The text of the built-in catalogue.
pub const BUILT_IN: &str = include_str!("../catalog.toml");

/// The kind of an intent's recipients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AudienceKind {
    /// The users listed in the intent.
    User,
    /// The addresses configured for the type.
    AdminEmail,
}

impl AudienceKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::User, Self::AdminEmail];

    /// The spelling in intents, tables and the catalogue.
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

/// An error in a catalogue file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct CatalogError {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, for the operator who wrote the file.
    pub reason: String,
}

/// The notification types.
#[derive(Debug)]
pub struct Catalog {
    types: Vec<NotificationType>,
    by_name: HashMap<String, usize>,
}

impl Catalog {
    /// The built-in types.
    pub fn built_in() -> Self {
        // Cannot fail: a test reads the same text.
        Self::parse(BUILT_IN).expect("the built-in catalogue is valid")
    }

    /// Reads the text of a catalogue file and compiles its schemas.
    pub fn parse(text: &str) -> Result<Self, CatalogError> {
        let types = file::read(text)?;
        let by_name = types.iter().enumerate().map(|(at, known)| (known.name.clone(), at)).collect();
        Ok(Self { types, by_name })
    }

    /// Returns the type with this name.
    pub fn get(&self, name: &str) -> Option<&NotificationType> {
        self.by_name.get(name).map(|at| &self.types[*at])
    }

    /// Every type, in the order of the file.
    pub fn types(&self) -> impl Iterator<Item = &NotificationType> {
        self.types.iter()
    }
}

/// One notification type of the catalogue.
#[derive(Debug)]
pub struct NotificationType {
    name: String,
    producers: Vec<String>,
    audiences: BTreeMap<AudienceKind, Vec<Channel>>,
    payload_schema: Value,
    payload: Validator,
}

impl NotificationType {
    /// The name in intents. It is also the event type and the mail template.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The producers that may send this type; at least one, in the order of the file.
    pub fn producers(&self) -> &[String] {
        &self.producers
    }

    /// True if `producer` may send this type.
    pub fn allows_producer(&self, producer: &str) -> bool {
        self.producers.iter().any(|allowed| allowed == producer)
    }

    /// The channels to this audience, at least one; `None` if the type does not allow the audience.
    pub fn channels(&self, audience: AudienceKind) -> Option<&[Channel]> {
        self.audiences.get(&audience).map(Vec::as_slice)
    }

    /// The JSON Schema (draft 2020-12) of the payload, as written in the file.
    pub fn payload_schema(&self) -> &Value {
        &self.payload_schema
    }

    /// Checks a payload against the schema. The message continues one that names the payload. It contains the
    /// path and the rule, never a value, because payloads are private.
    pub fn check_payload(&self, payload: &Value) -> Result<(), String> {
        self.payload.validate(payload).map_err(|error| describe(&error))
    }

    /// Returns a payload that the schema allows, as a starting point for writing an intent. `None` if none
    /// was found, which can happen with patterns and with conditions on several members together.
    pub fn example_payload(&self) -> Option<Value> {
        let example = example::of(&self.payload_schema, "value", 0)?;
        (example.is_object() && self.check_payload(&example).is_ok()).then_some(example)
    }

    /// The name of the environment variable that lists the administrators' addresses.
    pub fn admin_emails_variable(&self) -> String {
        format!("NOTIFICATION_ADMIN_EMAILS_{}", self.name.to_ascii_uppercase().replace('.', "_"))
    }
}

/// True if the library's message, with the value masked, contains nothing but the schema.
fn names_only_the_schema(kind: &ValidationErrorKind) -> bool {
    use ValidationErrorKind as Kind;
    matches!(
        kind,
        Kind::Type { .. }
            | Kind::Enum { .. }
            | Kind::Constant { .. }
            | Kind::Format { .. }
            | Kind::Pattern { .. }
            | Kind::MultipleOf { .. }
            | Kind::UniqueItems
            | Kind::Minimum { .. }
            | Kind::Maximum { .. }
            | Kind::ExclusiveMinimum { .. }
            | Kind::ExclusiveMaximum { .. }
            | Kind::MinLength { .. }
            | Kind::MaxLength { .. }
            | Kind::MinItems { .. }
            | Kind::MaxItems { .. }
            | Kind::MinProperties { .. }
            | Kind::MaxProperties { .. }
    )
}

/// Describes the path and the rule that a payload breaks, using only the schema and the payload's keys.
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
        kind if names_only_the_schema(kind) => {
            let message = error.masked_with("it").to_string();
            format!(": {}", message.chars().take(MAX_QUOTED).collect::<String>())
        }
        _ => String::new(),
    };
    format!("{place} breaks the rule {} of the type's schema{detail}", error.schema_path().as_str())
}

fn quote(text: &str) -> String {
    text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
