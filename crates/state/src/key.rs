//! Keys and their beginnings.

use std::sync::Arc;

use crate::StateError;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1_024;

/// Names one document: 1 to [`MAX_KEY_BYTES`] bytes of UTF-8 without NUL. Keys sort by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(Arc<str>);

impl Key {
    /// [`StateError::InvalidKey`] if it is empty, too long, or contains NUL, which PostgreSQL cannot store.
    pub fn new(text: &str) -> Result<Self, StateError> {
        if text.is_empty() || text.len() > MAX_KEY_BYTES {
            return Err(invalid(format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", text.len())));
        }
        no_nul(text).map(Self)
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The beginning of keys, taken literally. The empty one is the beginning of every key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// [`StateError::InvalidKey`] if it contains NUL or is longer than [`MAX_KEY_BYTES`]: no key can begin with it.
    pub fn new(text: &str) -> Result<Self, StateError> {
        if text.len() > MAX_KEY_BYTES {
            return Err(invalid(format!(
                "a prefix has at most {MAX_KEY_BYTES} bytes, as a key has, not {}",
                text.len()
            )));
        }
        no_nul(text).map(Self)
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("".into())
    }
}

fn no_nul(text: &str) -> Result<Arc<str>, StateError> {
    if text.contains('\0') {
        return Err(invalid("a key must not contain NUL".to_owned()));
    }
    Ok(text.into())
}

fn invalid(reason: String) -> StateError {
    StateError::InvalidKey(reason)
}
