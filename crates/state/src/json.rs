//! JSON as `jsonb` keeps it: numbers digit by digit, the last of repeated members, written in PostgreSQL's
//! form.
//!
//! [`Json::parse`] accepts exactly what `jsonb` accepts, with two bounds of its own: [`MAX_LEVELS`] and
//! [`MAX_WRITTEN_BYTES`].

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

/// The maximum nesting of arrays and objects; the outermost one is level 1.
pub const MAX_LEVELS: usize = 64;
/// The maximum nesting of a value that is read from the database. Only another program can nest a value more
/// deeply than [`MAX_LEVELS`]; this limit still fits into a thread's stack.
const MAX_STORED_LEVELS: usize = 1_000;
/// The most bytes that the numbers of a value may take when they are written out. `1e131071` has 8 bytes in a
/// body and 131,072 when it is read back, and PostgreSQL cannot return a text of a gigabyte.
pub const MAX_WRITTEN_BYTES: usize = 64 * 1024 * 1024;

/// A JSON value. Two values are equal if `jsonb` treats them as equal: 1 equals 1.0.
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
    /// An object, ordered by the bytes of its members' names.
    Object(BTreeMap<String, Json>),
}

/// The error for a text that is not JSON, or not JSON that `jsonb` can hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} at line {line} column {column}")]
pub struct JsonError {
    /// The fault.
    pub reason: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in bytes, counted from 1.
    pub column: usize,
}

impl Json {
    /// Parses one value with nothing after it. The error contains the place of the fault.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        read(text, MAX_LEVELS, Tree).map_err(|fault| fault.in_text(text))
    }

    /// Checks that a text is a value, without copying it in memory. Returns the most bytes that PostgreSQL's
    /// text of it can have.
    pub(crate) fn check(text: &[u8]) -> Result<usize, JsonError> {
        read(text, MAX_LEVELS, Check).map_err(|fault| fault.in_text(text))
    }

    /// Parses a value from the database, which another program may have nested more deeply.
    pub(crate) fn parse_stored(text: &str) -> Result<Self, JsonError> {
        read(text.as_bytes(), MAX_STORED_LEVELS, Tree).map_err(|fault| fault.in_text(text.as_bytes()))
    }

    /// The member of an object; `None` if there is none, or if the value is not an object.
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Object(members) => members.get(name),
            _ => None,
        }
    }

    /// The number; `None` for another type.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The text of a string; `None` for another type.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

/// Builds nothing; counts the bytes of PostgreSQL's text. Repeated members all count.
struct Check;

/// The bytes between two elements or members, and between name and value.
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
