//! JSON values with their place in the text.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use crate::json::{self, Builder, Fault, Json, Scalar};
use crate::query::{MAX_ELEMENTS, MAX_QUERY_VALUES};

/// The maximum nesting of a query's text. A literal may nest as deeply as a document, 64 levels; around it
/// are the query, at most 16 levels of logic, and its operators.
const MAX_QUERY_LEVELS: usize = 88;
/// The length to which an error cuts a name, in characters.
const MAX_QUOTED: usize = 64;

/// A value of a query and the byte at which it begins.
pub(super) struct Located {
    pub(super) at: usize,
    pub(super) kind: LocatedKind,
}

pub(super) enum LocatedKind {
    Null,
    Scalar(Json),
    Array(Vec<Located>),
    /// The members, with the place of each name.
    Object(BTreeMap<String, (usize, Located)>),
}

/// A name in an error: cut, and on one line.
pub(super) fn quoted(name: &str) -> String {
    let cut: String = name.chars().take(MAX_QUOTED).collect();
    let dots = if cut.len() < name.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

impl Located {
    pub(super) fn read(text: &[u8]) -> Result<Self, Fault> {
        json::read(text, MAX_QUERY_LEVELS, Places::default())
    }

    pub(super) fn into_json(self) -> Json {
        match self.kind {
            LocatedKind::Null => Json::Null,
            LocatedKind::Scalar(scalar) => scalar,
            LocatedKind::Array(elements) => Json::Array(elements.into_iter().map(Self::into_json).collect()),
            LocatedKind::Object(members) => Json::Object(
                members.into_iter().map(|(name, (_, value))| (name, value.into_json())).collect(),
            ),
        }
    }

    pub(super) fn into_string(self, what: &str) -> Result<String, Fault> {
        match self.kind {
            LocatedKind::Scalar(Json::String(text)) => Ok(text),
            _ => Err(Fault::new(self.at, format!("{what} must be a string"))),
        }
    }

    pub(super) fn into_bool(self, what: &str) -> Result<bool, Fault> {
        match self.kind {
            LocatedKind::Scalar(Json::Bool(value)) => Ok(value),
            _ => Err(Fault::new(self.at, format!("{what} must be true or false"))),
        }
    }

    /// The value as an integer from 0 to `max`.
    pub(super) fn into_integer(self, what: &str, max: i64) -> Result<u64, Fault> {
        let value = match &self.kind {
            LocatedKind::Scalar(Json::Number(number)) => number.to_i64(),
            _ => None,
        };
        let value = value.filter(|value| *value <= max).and_then(|value| u64::try_from(value).ok());
        value.ok_or_else(|| Fault::new(self.at, format!("{what} must be an integer from 0 to {max}")))
    }

    /// The members of a non-empty object.
    pub(super) fn into_members(self, what: &str) -> Result<BTreeMap<String, (usize, Located)>, Fault> {
        match self.kind {
            LocatedKind::Object(members) if members.is_empty() => {
                Err(Fault::new(self.at, format!("{what} is empty")))
            }
            LocatedKind::Object(members) => Ok(members),
            _ => Err(Fault::new(self.at, format!("{what} must be an object"))),
        }
    }

    pub(super) fn into_elements(self, what: &str) -> Result<Vec<Located>, Fault> {
        match self.kind {
            LocatedKind::Array(elements) => Ok(elements),
            _ => Err(Fault::new(self.at, format!("{what} must be an array"))),
        }
    }
}

/// Builds values with their places, at most [`MAX_QUERY_VALUES`].
#[derive(Default)]
struct Places {
    values: Cell<usize>,
}

impl Builder for Places {
    type Value = Located;
    type Array = Vec<Located>;
    type Object = BTreeMap<String, (usize, Located)>;

    fn scalar(&self, scalar: Scalar<'_>, at: usize) -> Located {
        let kind = match Json::from(scalar) {
            Json::Null => LocatedKind::Null,
            scalar => LocatedKind::Scalar(scalar),
        };
        Located { at, kind }
    }

    fn element(&self, array: &mut Vec<Located>, value: Located, at: usize) -> Result<(), Fault> {
        self.count(at)?;
        if array.len() == MAX_ELEMENTS {
            return Err(Fault::new(at, format!("an array with more than {MAX_ELEMENTS} elements")));
        }
        array.push(value);
        Ok(())
    }

    fn member(
        &self,
        object: &mut Self::Object,
        name: Cow<'_, str>,
        value: Located,
        at: usize,
    ) -> Result<(), Fault> {
        self.count(at)?;
        if object.contains_key(&*name) {
            return Err(Fault::new(at, format!("repeated member {}", quoted(&name))));
        }
        object.insert(name.into_owned(), (at, value));
        Ok(())
    }

    fn array(&self, array: Vec<Located>, at: usize) -> Located {
        Located { at, kind: LocatedKind::Array(array) }
    }

    fn object(&self, object: Self::Object, at: usize) -> Located {
        Located { at, kind: LocatedKind::Object(object) }
    }
}

impl Places {
    fn count(&self, at: usize) -> Result<(), Fault> {
        let values = self.values.get() + 1;
        self.values.set(values);
        match values > MAX_QUERY_VALUES {
            true => Err(Fault::new(at, format!("more than {MAX_QUERY_VALUES} values"))),
            false => Ok(()),
        }
    }
}
