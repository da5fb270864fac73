//! Some members of documents, for a reader who does not want whole documents, however large others have made
//! them.

use crate::json::Json;
use crate::{Document, Key, StateError, Value};

/// What a document has under a member's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Member {
    /// Nothing.
    Absent,
    /// A value, as PostgreSQL writes it.
    Value(Value),
    /// A value whose text has more bytes than was asked for.
    TooLarge,
}

/// Some members of one document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    /// Of the document.
    pub key: Key,
    /// In the order of the names asked for; `None` if the document is no object.
    pub members: Option<Vec<Member>>,
}

impl Members {
    /// Those of a document that was read whole.
    pub(crate) fn of(document: &Document, names: &[&str], max_bytes: usize) -> Result<Self, StateError> {
        let json = document.value.to_json()?;
        let member = |name: &&str| match json.get(name).map(Value::from) {
            None => Member::Absent,
            Some(value) if value.as_str().len() > max_bytes => Member::TooLarge,
            Some(value) => Member::Value(value),
        };
        let is_object = matches!(json, Json::Object(_));
        let members = is_object.then(|| names.iter().map(member).collect());
        Ok(Self { key: document.key.clone(), members })
    }
}

impl Member {
    /// As the statement returns it: NULL for nothing, and no text for one that is too large.
    pub(crate) fn from_column(text: Option<&str>) -> Self {
        match text {
            None => Self::Absent,
            Some("") => Self::TooLarge,
            Some(text) => Self::Value(Value::from_store(text)),
        }
    }
}
