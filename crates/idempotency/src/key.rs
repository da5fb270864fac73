//! The parts that identify a claim: owner, key and token.

use std::fmt;
use std::sync::Arc;

use ambient::Tokens;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::IdempotencyError;

/// The header that carries the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The maximum length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// The maximum length of an owner, in bytes.
pub const MAX_OWNER_BYTES: usize = 255;

/// The owner of a key, for example endpoint and authenticated client. Equal keys of two owners are different
/// keys, so that no client can block or read the keys of another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Creates an owner of 1 to [`MAX_OWNER_BYTES`] bytes of UTF-8 without NUL;
    /// [`IdempotencyError::InvalidArgument`] otherwise.
    pub fn new(text: &str) -> Result<Self, IdempotencyError> {
        checked("an owner", text, MAX_OWNER_BYTES).map(Self)
    }

    /// Returns the text as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An idempotency key, as chosen by the client.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(Arc<str>);

impl Key {
    /// Creates a key of 1 to [`MAX_KEY_BYTES`] bytes of UTF-8 without NUL;
    /// [`IdempotencyError::InvalidArgument`] otherwise.
    pub fn new(text: &str) -> Result<Self, IdempotencyError> {
        checked("an idempotency key", text, MAX_KEY_BYTES).map(Self)
    }

    /// Reads the key from the header `Idempotency-Key`: bare, or as a quoted string of RFC 9651 without
    /// parameters. `"k"` and `k` are the same key; the length limit applies to the content. Returns `None`
    /// without the header.
    ///
    /// Returns [`IdempotencyError::InvalidArgument`] if the header is repeated, empty, too long or not of
    /// that form.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, IdempotencyError> {
        let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(invalid("the header Idempotency-Key is repeated"));
        }
        Self::from_header(value).map(Some)
    }

    fn from_header(value: &HeaderValue) -> Result<Self, IdempotencyError> {
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| invalid("the header Idempotency-Key is not UTF-8"))?
            .trim_matches([' ', '\t']);
        match text.strip_prefix('"') {
            None => Self::new(text),
            Some(rest) => Self::new(&unquoted(rest).ok_or_else(|| {
                invalid("the header Idempotency-Key begins with a quote and is not a structured-field string")
            })?),
        }
    }

    /// Returns the text as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the content of a structured-field string after its first quote; `None` if it is malformed, or if
/// anything follows it.
fn unquoted(rest: &str) -> Option<String> {
    let mut content = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return characters.next().is_none().then_some(content),
            '\\' => content.push(characters.next().filter(|next| ['"', '\\'].contains(next))?),
            character @ ' '..='~' => content.push(character),
            _ => return None,
        }
    }
}

fn checked(what: &str, text: &str, max_bytes: usize) -> Result<Arc<str>, IdempotencyError> {
    if text.is_empty() || text.len() > max_bytes {
        return Err(invalid(format!("{what} has 1 to {max_bytes} bytes, not {}", text.len())));
    }
    // PostgreSQL cannot store NUL.
    if text.contains('\0') {
        return Err(invalid(format!("{what} must not contain NUL")));
    }
    Ok(text.into())
}

fn invalid(reason: impl Into<String>) -> IdempotencyError {
    IdempotencyError::InvalidArgument(reason.into())
}

/// The identifier of one claim of a key: unguessable, and different for each attempt. Only its holder can end
/// the claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Creates a token from the next bytes of `tokens`.
    pub fn next(tokens: &dyn Tokens) -> Self {
        Self(tokens.next())
    }

    /// Returns 32 hexadecimal digits.
    pub(crate) fn to_text(self) -> String {
        hex::encode(self.0)
    }
}

/// Converts bytes that no other attempt has.
impl From<[u8; 16]> for Token {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// A token is a secret, so logs only show that it exists.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(values: &[&[u8]]) -> Result<Option<Key>, IdempotencyError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).expect("a header value"));
        }
        Key::from_headers(&headers)
    }

    // I-15
    #[test]
    fn a_bare_key_and_a_quoted_key_are_the_same_key() {
        let pairs: [(&str, &str); 5] = [
            ("abc", "abc"),
            (r#""abc""#, "abc"),
            (r#"  "abc"  "#, "abc"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            ("über", "über"),
        ];
        for (written, expected) in pairs {
            let key = header(&[written.as_bytes()]).expect("valid").expect("there is one");
            assert_eq!(key.as_str(), expected, "{written}");
        }
        assert!(header(&[]).expect("valid").is_none());
    }

    // I-15
    #[test]
    fn a_key_that_is_empty_repeated_or_of_another_form_is_refused() {
        let quoted_empty: &[u8] = br#""""#;
        for values in [
            &[&b""[..]][..],
            &[quoted_empty],
            &[b"a", b"a"],
            &[br#""a"#],
            &[br#""a";b=1"#],
            &[br#""a" "b""#],
            &[br#""a\n""#],
            &["\"ü\"".as_bytes()],
            &[&[0xff]],
        ] {
            assert!(matches!(header(values), Err(IdempotencyError::InvalidArgument(_))), "{values:?}");
        }
    }

    // I-15
    #[test]
    fn a_key_of_255_bytes_is_the_longest_and_quotes_do_not_count() {
        for text in ["a".repeat(255), format!("\"{}\"", "a".repeat(255)), "é".repeat(127)] {
            assert!(header(&[text.as_bytes()]).is_ok(), "{text}");
        }
        for text in ["a".repeat(256), format!("\"{}\"", "a".repeat(256)), "é".repeat(128)] {
            assert!(header(&[text.as_bytes()]).is_err(), "{text}");
        }
    }

    #[test]
    fn what_postgresql_cannot_store_is_refused() {
        assert!(Key::new("a\0b").is_err() && Owner::new("\0").is_err());
        assert!(Owner::new("").is_err() && Owner::new(&"s".repeat(256)).is_err());
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token([7; 16]);
        assert!(!format!("{token:?}").contains('7'));
        assert_eq!(token.to_text(), "07".repeat(16));
    }
}
