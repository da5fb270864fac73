//! Keys and key prefixes.

use std::sync::Arc;

use crate::StateError;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1_024;

/// The name of one document: 1 to [`MAX_KEY_BYTES`] bytes of UTF-8 without NUL. Keys sort by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(Arc<str>);

impl Key {
    /// [`StateError::InvalidKey`] if the text is empty, too long, or contains NUL, which PostgreSQL cannot
    /// store.
    pub fn new(text: &str) -> Result<Self, StateError> {
        if text.is_empty() || text.len() > MAX_KEY_BYTES {
            return Err(invalid(format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", text.len())));
        }
        no_nul(text).map(Self)
    }

    /// A key read from a table. A key of a table that was taken over may exceed the length limit.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// A key of a cursor. Its row may have a longer key that another program wrote.
    pub(crate) fn from_cursor(text: &str) -> Option<Self> {
        (!text.contains('\0')).then(|| Self(text.into()))
    }

    /// The key's text, unchanged.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A prefix of keys, taken literally. The empty prefix matches every key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// [`StateError::InvalidKey`] if the text contains NUL or is longer than [`MAX_KEY_BYTES`]: no key can
    /// start with it.
    pub fn new(text: &str) -> Result<Self, StateError> {
        if text.len() > MAX_KEY_BYTES {
            return Err(invalid(format!(
                "a prefix has at most {MAX_KEY_BYTES} bytes, as a key has, not {}",
                text.len()
            )));
        }
        no_nul(text).map(Self)
    }

    /// The prefix's text, unchanged.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Prefix {
    /// The smallest text, by bytes, that is after every text with this prefix; `None` if there is none.
    pub fn end(&self) -> Option<String> {
        let mut text = self.0.to_string();
        while let Some(last) = text.pop() {
            // After U+D7FF comes U+E000; nothing comes after U+10FFFF.
            if let Some(next) = (last..=char::MAX).nth(1) {
                text.push(next);
                return Some(text);
            }
        }
        None
    }

    /// Returns true if the key starts with this prefix.
    pub fn is_of(&self, key: &Key) -> bool {
        key.0.starts_with(&*self.0)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", &*self.0)
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
    fn the_end_of_a_prefix_is_the_least_text_after_all_that_begin_with_it() {
        for (prefix, end) in [
            ("", None),
            ("a", Some("b")),
            ("users/", Some("users0")),
            ("a\u{7f}", Some("a\u{80}")),
            ("a\u{d7ff}", Some("a\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}\u{10ffff}", None),
            ("\u{d7ff}\u{10ffff}", Some("\u{e000}")),
        ] {
            let prefix = Prefix::new(prefix).expect("a prefix");
            assert_eq!(prefix.end().as_deref(), end, "{prefix:?}");
            let last = format!("{}{}", prefix.as_str(), char::MAX);
            assert!(prefix.end().is_none_or(|end| *last < *end && !end.starts_with(prefix.as_str())));
        }
    }
}
