//! Serialisation shared by the documents: what the API returns, the commands print and the console shows.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use ambient::Timestamp;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Implements `JsonSchema` with a schema that is repeated in place instead of being named.
macro_rules! inline_schema {
    ($type:ty, $schema:expr) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

pub(crate) use inline_schema;

/// Defines the form of a `Counted` as two members: the number, and a flag that is left out unless it is true.
macro_rules! counted_form {
    ($form:ident, $description:literal, $count:ident, $capped:ident, $capped_description:literal) => {
        #[derive(serde::Serialize, schemars::JsonSchema)]
        pub(crate) struct $form {
            #[doc = $description]
            $count: u64,
            #[doc = $capped_description]
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            $capped: bool,
        }

        impl $form {
            pub(crate) fn serialize<S: serde::Serializer>(
                counted: &crate::document::Counted,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                let form = Self { $count: counted.count, $capped: counted.capped };
                serde::Serialize::serialize(&form, serializer)
            }
        }
    };
}

pub(crate) use counted_form;

/// The schema of one of these names.
pub(crate) fn one_of(names: impl IntoIterator<Item = &'static str>) -> Schema {
    json_schema!({"type": "string", "enum": names.into_iter().collect::<Vec<_>>()})
}

/// The quality of a state, for colours and marks of the commands and the console; later variants matter more.
/// Words express it as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Tone {
    /// Neither good nor bad.
    #[default]
    Neutral,
    /// A healthy state.
    Good,
    /// Something that is being done.
    Busy,
    /// Something that will be retried, or that waits.
    Warning,
    /// Something that needs action.
    Bad,
}

/// The time since something began. Documents have it in milliseconds; text has its two largest units:
/// `1 min 10 s`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Age(pub Duration);

impl Age {
    /// The time from `since` to `now`; zero if `since` is later.
    pub fn between(since: Timestamp, now: Timestamp) -> Self {
        Self(now.saturating_since(since))
    }
}

impl Serialize for Age {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX))
    }
}

inline_schema!(Age, json_schema!({"type": "integer", "minimum": 0}));

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (large, small) = match seconds {
            0..60 => ((seconds, "s"), (0, "")),
            60..3_600 => ((seconds / 60, "min"), (seconds % 60, "s")),
            3_600..86_400 => ((seconds / 3_600, "h"), (seconds % 3_600 / 60, "min")),
            _ => ((seconds / 86_400, "d"), (seconds % 86_400 / 3_600, "h")),
        };
        write!(f, "{} {}", large.0, large.1)?;
        if small.0 > 0 { write!(f, " {} {}", small.0, small.1) } else { Ok(()) }
    }
}

/// A number with thousands separators.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Text that some readers may not see. Withheld text is empty here and `null` in documents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Guarded(Option<String>);

impl Guarded {
    /// Removes the text.
    pub fn withhold(&mut self) {
        self.0 = None;
    }

    /// Changes the text, unless it is withheld.
    pub fn change(&mut self, change: impl FnOnce(&mut String)) {
        self.0.as_mut().map(change);
    }

    /// The text, unless it is withheld.
    pub fn shown(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<String> for Guarded {
    fn from(text: String) -> Self {
        Self(Some(text))
    }
}

impl From<&str> for Guarded {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Deref for Guarded {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

inline_schema!(Guarded, json_schema!({"type": ["string", "null"]}));

/// Serialises stored JSON as what it is; as a string if another program wrote something that is not JSON.
pub(crate) fn stored_json<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_deref().map(json_of).serialize(serializer)
}

/// The same of text that some readers may not see.
pub(crate) fn guarded_json<S: Serializer>(text: &Guarded, serializer: S) -> Result<S::Ok, S::Error> {
    text.shown().map(json_of).serialize(serializer)
}

/// The schema of an object with any members.
pub(crate) fn object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// The schema of such an object, or `null`.
pub(crate) fn guarded_object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "null"]})
}

/// Parses JSON that PostgreSQL stores as text; returns a string if another program wrote something that is
/// not JSON.
pub fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// The schema of the raw fields of an entry.
pub(crate) fn raw_fields_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["array", "null"],
        "items": {"type": "array", "items": {"type": ["string", "object"]}, "minItems": 2, "maxItems": 2},
    })
}

/// The number at which counting of rows stops.
pub const COUNT_CAP: u64 = 10_000;

/// A count that stops at a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// The number.
    pub count: u64,
    /// True if there may be more.
    pub capped: bool,
}

impl Counted {
    /// The result of a count that stops at [`COUNT_CAP`].
    pub fn up_to_cap(count: u64) -> Self {
        Self { count: count.min(COUNT_CAP), capped: count >= COUNT_CAP }
    }

    /// True if there is none.
    pub fn is_zero(self) -> bool {
        self.count == 0 && !self.capped
    }
}

/// Format for people: `7` or `at least 10000`, and on pages (`{:#}`) `10,000 or more`.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, capped } = self;
        match (f.alternate(), capped) {
            (false, false) => write!(f, "{count}"),
            (false, true) => write!(f, "at least {count}"),
            (true, false) => f.write_str(&grouped(*count)),
            (true, true) => write!(f, "{} or more", grouped(*count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::{ReceiptStatus, Recorded};
    use crate::route::{Channel, RouteStatus};

    fn written<T: Serialize, const N: usize>(values: [T; N]) -> [Value; N] {
        values.map(|value| serde_json::to_value(value).expect("it is JSON"))
    }

    #[test]
    fn a_name_is_the_same_in_documents_and_in_tables() {
        assert_eq!(written(Channel::ALL), Channel::ALL.map(Channel::as_str));
        assert_eq!(written(RouteStatus::ALL), RouteStatus::ALL.map(RouteStatus::as_str));
        assert_eq!(written(ReceiptStatus::ALL), ReceiptStatus::ALL.map(ReceiptStatus::as_str));
        assert_eq!(written(Recorded::ALL), Recorded::ALL.map(Recorded::as_str));
    }

    #[test]
    fn withheld_text_is_null_and_empty_text_is_not() {
        let mut text = Guarded::from("a@example.com".to_owned());
        text.withhold();
        assert_eq!(written([text.clone(), String::new().into()]), [Value::Null, "".into()]);
        assert_eq!(&*text, "");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn an_age_is_shown_in_its_two_largest_units() {
        let ages = [0, 59, 60, 70, 7_260, 90_000].map(|seconds| Age(Duration::from_secs(seconds)));
        let prose = ["0 s", "59 s", "1 min", "1 min 10 s", "2 h 1 min", "1 d 1 h"];
        assert_eq!(ages.map(|age| age.to_string()), prose);
        assert_eq!(written([Age(Duration::from_micros(1_999))]), [1]);
    }

    #[test]
    fn json_that_another_program_broke_is_a_string() {
        assert_eq!(json_of("{"), "{");
        assert_eq!(json_of("[1]"), serde_json::json!([1]));
    }

    #[test]
    fn a_count_at_the_cap_may_be_more() {
        assert_eq!(Counted::up_to_cap(9_999), Counted { count: 9_999, capped: false });
        assert_eq!(Counted::up_to_cap(10_001), Counted { count: 10_000, capped: true });
    }

    #[test]
    fn a_count_that_is_not_complete_says_so() {
        let counted = [(7, false), (20_000, true)].map(|(count, capped)| Counted { count, capped });
        assert_eq!(counted.map(|counted| counted.to_string()), ["7", "at least 20000"]);
        assert_eq!(counted.map(|counted| format!("{counted:#}")), ["7", "20,000 or more"]);
    }
}
