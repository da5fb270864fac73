//! The id of one grant. Its holder can release and extend the lock.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::LockError;
use crate::key::hash_key;

/// The id of a grant: sixteen random bytes as 22 characters of base64url. `Debug` shows a hash, because
/// anyone with the id can release the lock.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockId(String);

impl LockId {
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Parses an id. Returns [`LockError::InvalidArgument`] unless it is 22 characters of base64url.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        let well_formed = text.len() == 22
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(LockError::InvalidArgument(
                "Invalid lockId format: must be 22 characters of base64url".to_owned(),
            ))
        }
    }

    /// Returns the id itself. Treat it as a secret.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a hash that may be displayed.
    pub fn hash(&self) -> String {
        hash_key(&self.0)
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockId(#{})", self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // L-18
    #[test]
    fn an_id_made_of_random_bytes_is_well_formed() {
        for bytes in [[0; 16], [0xff; 16], *b"0123456789abcdef"] {
            let id = LockId::from_bytes(bytes);
            assert_eq!(LockId::parse(id.as_str()).expect("well formed"), id);
        }
    }

    // L-08
    #[test]
    fn what_is_not_22_characters_of_base64url_is_no_id() {
        let malformed = [
            "",
            "short",
            "AAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAA+",
            "AAAAAAAAAAAAAAAAAAAAA/",
            "AAAAAAAAAAAAAAAAAAAAA=",
            "AAAAAAAAAAA AAAAAAAAAA",
            "!@#$%!@#$%!@#$%!@#$%!@",
            "АAAAAAAAAAAAAAAAAAAAA",
        ];
        for text in malformed {
            let error = LockId::parse(text).expect_err("malformed").to_string();
            assert!(error.contains("Invalid lockId format"), "{text:?}: {error}");
        }
    }

    #[test]
    fn debug_output_does_not_contain_the_id() {
        let id = LockId::from_bytes(*b"0123456789abcdef");
        assert!(!format!("{id:?}").contains(id.as_str()));
    }
}
