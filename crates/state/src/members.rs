//! Selected members of documents, for a reader that must not depend on how large other programs have made the
//! documents.

use crate::json::Json;
use crate::{Document, Key, StateError, Value};

/// The value of a document's member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberValue {
    /// The document has no such member.
    Absent,
    /// A value, as PostgreSQL writes it.
    Value(Value),
    /// A value whose text exceeds the requested limit in bytes.
    TooLarge,
}

/// Some members of one document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DocumentMembers {
    /// The document's key.
    pub key: Key,
    /// The members in the order of the requested names; `None` if the document is not an object.
    pub members: Option<Vec<MemberValue>>,
}

impl DocumentMembers {
    /// The members of a document that was read whole.
    pub(crate) fn of(document: &Document, names: &[&str], max_bytes: usize) -> Result<Self, StateError> {
        let json = document.value.to_json()?;
        let member = |name: &&str| match json.get(name).map(Value::from) {
            None => MemberValue::Absent,
            Some(value) if value.as_str().len() > max_bytes => MemberValue::TooLarge,
            Some(value) => MemberValue::Value(value),
        };
        let is_object = matches!(json, Json::Object(_));
        let members = is_object.then(|| names.iter().map(member).collect());
        Ok(Self { key: document.key.clone(), members })
    }
}

impl MemberValue {
    /// The member as the statement returns it: NULL for a missing one, and no text for one that is too large.
    pub(crate) fn from_column(text: Option<&str>) -> Self {
        match text {
            None => Self::Absent,
            Some("") => Self::TooLarge,
            Some(text) => Self::Value(Value::from_store(text)),
        }
    }
}
