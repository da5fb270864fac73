//! JSON as `jsonb` keeps it: numbers digit by digit, of a repeated member the last, written in the form in
//! which PostgreSQL writes it.
//!
//! What [`Json::parse`] accepts, `jsonb` accepts, and the reverse, with two bounds of its own: [`MAX_LEVELS`]
//! and [`MAX_WRITTEN_BYTES`].

mod merge;
mod number;
mod parser;
mod raw;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use merge::merge;
pub use number::Number;
pub(crate) use parser::{Builder, Fault, Scalar, read};
pub(crate) use raw::{member, merge_texts, shallow};

/// How deep arrays and objects may nest; the outermost one is level 1.
pub const MAX_LEVELS: usize = 64;
/// How deep a value may nest that is read from the database: so deep that only another program writes it, and
/// no deeper than a thread's stack takes.
const MAX_STORED_LEVELS: usize = 1_000;
/// The most bytes that the numbers of a value may take when they are written out. `1e131071` is 8 bytes in a
/// body and 131,072 where it is read, and PostgreSQL cannot return a text of a gigabyte.
pub const MAX_WRITTEN_BYTES: usize = 64 * 1024 * 1024;

/// A JSON value. Two are equal if `jsonb` calls them equal: 1 equals 1.0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number with all its digits.
    Number(Number),
    /// A string without U+0000.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, by the bytes of its members' names.
    Object(BTreeMap<String, Json>),
}

/// A text is not JSON, or not JSON that `jsonb` can hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} at line {line} column {column}")]
pub struct JsonError {
    /// What is wrong.
    pub reason: String,
    /// From 1.
    pub line: usize,
    /// In bytes, from 1.
    pub column: usize,
}

impl Json {
    /// Reads one value and nothing after it. The error says where the text is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        read(text, MAX_LEVELS, Tree).map_err(|fault| fault.in_text(text))
    }

    /// Whether a text is a value, without a copy of it in memory: how many bytes PostgreSQL's text of it has
    /// at most.
    pub(crate) fn check(text: &[u8]) -> Result<usize, JsonError> {
        read(text, MAX_LEVELS, Check).map_err(|fault| fault.in_text(text))
    }

    /// Reads what the database holds, which another program may have nested more deeply.
    pub(crate) fn parse_stored(text: &str) -> Result<Self, JsonError> {
        read(text.as_bytes(), MAX_STORED_LEVELS, Tree).map_err(|fault| fault.in_text(text.as_bytes()))
    }

    /// The member of an object; `None` if there is none, or if this is no object.
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Object(members) => members.get(name),
            _ => None,
        }
    }

    /// The number that it is.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

/// Builds nothing, and counts the bytes of what PostgreSQL writes. Of repeated members it counts all.
struct Check;

/// Between two elements or members, and between name and value.
const SEPARATOR_BYTES: usize = 2;

fn enclosed(within: usize) -> usize {
    2 + within.saturating_sub(SEPARATOR_BYTES)
}

impl Builder for Check {
    type Value = usize;
    type Array = usize;
    type Object = usize;

    fn scalar(&self, scalar: Scalar<'_>, _: usize) -> usize {
        match scalar {
            Scalar::Null | Scalar::Bool(true) => 4,
            Scalar::Bool(false) => 5,
            Scalar::Number(digits) => digits.written_bytes(),
            Scalar::String(text) => write::string_bytes(&text),
        }
    }

    fn element(&self, array: &mut usize, value: usize, _: usize) -> Result<(), Fault> {
        *array += value + SEPARATOR_BYTES;
        Ok(())
    }

    fn member(&self, object: &mut usize, name: Cow<'_, str>, value: usize, _: usize) -> Result<(), Fault> {
        *object += write::string_bytes(&name) + value + 2 * SEPARATOR_BYTES;
        Ok(())
    }

    fn array(&self, array: usize, _: usize) -> usize {
        enclosed(array)
    }

    fn object(&self, object: usize, _: usize) -> usize {
        enclosed(object)
    }
}

/// Builds the value.
struct Tree;

impl Builder for Tree {
    type Value = Json;
    type Array = Vec<Json>;
    type Object = BTreeMap<String, Json>;

    fn scalar(&self, scalar: Scalar<'_>, _: usize) -> Json {
        scalar.into()
    }

    fn element(&self, array: &mut Vec<Json>, value: Json, _: usize) -> Result<(), Fault> {
        array.push(value);
        Ok(())
    }

    fn member(
        &self,
        object: &mut BTreeMap<String, Json>,
        name: Cow<'_, str>,
        value: Json,
        _: usize,
    ) -> Result<(), Fault> {
        object.insert(name.into_owned(), value);
        Ok(())
    }

    fn array(&self, array: Vec<Json>, _: usize) -> Json {
        Json::Array(array)
    }

    fn object(&self, object: BTreeMap<String, Json>, _: usize) -> Json {
        Json::Object(object)
    }
}

impl From<Scalar<'_>> for Json {
    fn from(scalar: Scalar<'_>) -> Self {
        match scalar {
            Scalar::Null => Self::Null,
            Scalar::Bool(value) => Self::Bool(value),
            Scalar::Number(digits) => Self::Number(digits.to_number()),
            Scalar::String(text) => Self::String(text.into_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
