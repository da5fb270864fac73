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

    /// As a table has it. One of a table that was taken over may be longer than a new one.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
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

impl Prefix {
    /// The least text, by bytes, after every text that begins with the prefix; `None` if there is none. Bytes of UTF-8 sort as
    /// code points do, of which those of surrogates are none.
    pub(crate) fn end(&self) -> Option<String> {
        let mut end = self.0.to_string();
        while let Some(last) = end.pop() {
            let next = match last {
                '\u{D7FF}' => Some('\u{E000}'),
                other => char::from_u32(u32::from(other) + 1),
            };
            if let Some(next) = next {
                end.push(next);
                return Some(end);
            }
        }
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_1_to_1024_bytes_and_no_nul() {
        for text in ["a", "/", "..", "ä", &"k".repeat(1_024)] {
            assert_eq!(Key::new(text).expect("a key").as_str(), text);
        }
        for text in ["", "a\0", &"k".repeat(1_025), &"ä".repeat(513)] {
            assert!(matches!(Key::new(text), Err(StateError::InvalidKey(_))), "{text}");
        }
    }

    #[test]
    fn a_range_ends_before_the_first_text_that_does_not_begin_with_the_prefix() {
        for (prefix, end) in [
            ("", None),
            ("a", Some("b")),
            ("a_", Some("a`")),
            ("a\u{10FFFF}", Some("b")),
            ("\u{10FFFF}\u{10FFFF}", None),
            ("\u{D7FF}", Some("\u{E000}")),
            ("\u{7F}", Some("\u{80}")),
            ("\u{FFFF}", Some("\u{10000}")),
        ] {
            assert_eq!(Prefix::new(prefix).expect("a prefix").end().as_deref(), end, "{prefix:?}");
        }
    }
}
