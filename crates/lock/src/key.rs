//! Keys of locks: the caller's form, the form in the tables, and the hash for display.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

use crate::LockError;

/// The maximum length of a key, in bytes of UTF-8 after normalisation.
pub const MAX_KEY_BYTES: usize = 512;
/// The maximum length of a row's key, in bytes. A key of [`MAX_KEY_BYTES`] is far shorter; a B-tree would
/// hold 2,700.
pub const STORAGE_KEY_LIMIT: usize = 1700;

/// A validated key, with the keys of its two rows.
#[derive(Clone)]
pub(crate) struct LockKey {
    /// The caller's key, in NFC.
    pub(crate) user: String,
    /// The key of the lock's row.
    pub(crate) storage: String,
    /// The key of the fence counter, derived from that of the lock.
    pub(crate) fence: String,
}

impl LockKey {
    pub(crate) fn parse(text: &str) -> Result<Self, LockError> {
        let user: String = text.nfc().collect();
        if user.is_empty() {
            return Err(invalid("a key must not be empty"));
        }
        if user.len() > MAX_KEY_BYTES {
            return Err(invalid(format!(
                "the key exceeds maximum length: {} of {MAX_KEY_BYTES} bytes",
                user.len()
            )));
        }
        if user.contains('\0') {
            return Err(invalid("a key must not contain NUL"));
        }
        let storage = storage_key("", &user, STORAGE_KEY_LIMIT, 0)?;
        let fence = storage_key("", &format!("fence:{storage}"), STORAGE_KEY_LIMIT, 0)?;
        Ok(Self { user, storage, fence })
    }
}

fn invalid(reason: impl Into<String>) -> LockError {
    LockError::InvalidArgument(reason.into())
}

/// Returns `prefix:key` in NFC or, if that and `reserve` bytes exceed `limit`, the prefix and 22 characters
/// of a hash of the whole.
///
/// Returns [`LockError::InvalidArgument`] if even that is too long.
pub fn storage_key(prefix: &str, key: &str, limit: usize, reserve: usize) -> Result<String, LockError> {
    let prefix = match prefix.trim_end_matches(':') {
        "" => String::new(),
        prefix => format!("{prefix}:"),
    };
    let fits = |text: &str| text.len().saturating_add(reserve) <= limit;
    let whole: String = format!("{prefix}{key}").nfc().collect();
    if fits(&whole) {
        return Ok(whole);
    }
    let hash = URL_SAFE_NO_PAD.encode(&Sha256::digest(whole.as_bytes())[..16]);
    let short = format!("{prefix}{hash}");
    if fits(&short) {
        return Ok(short);
    }
    Err(invalid(format!("no key with this prefix fits into {limit} bytes with {reserve} of them reserved")))
}

/// Returns the hash shown by logs and telemetry instead of a key or a lock id: 24 hexadecimal digits, the
/// same for the same text.
///
/// It hides a text from a reader, not from an attacker who tries texts one by one.
pub fn hash_key(text: &str) -> String {
    let mut sums = [0_i32; 3];
    for unit in text.nfc().collect::<String>().encode_utf16().map(i32::from) {
        for (sum, (factor, weight)) in sums.iter_mut().zip([(31, 1), (127, 3), (2047, 7)]) {
            *sum = sum.wrapping_mul(factor).wrapping_add(unit * weight);
        }
    }
    sums.map(|sum| format!("{sum:08x}")).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    // L-18
    #[test]
    fn hashes_for_display_are_those_that_others_show_for_the_same_text() {
        let vectors = [
            ("", "000000000000000000000000"),
            ("a", "0000006100000123000002a7"),
            ("payment:123", "a422dabee27fcc7ad506f372"),
            ("caf\u{e9}", "002e7a21248b3503a22cdb87"),
            ("cafe\u{301}", "002e7a21248b3503a22cdb87"),
            ("key-with-emoji-🔒", "f3ea5595dc40e41f3d8dcc73"),
        ];
        for (text, hash) in vectors {
            assert_eq!(hash_key(text), hash, "{text:?}");
        }
    }

    // L-18
    #[test]
    fn storage_keys_are_those_that_others_make_of_the_same_key() {
        let long = storage_key("test", &"x".repeat(500), 100, 0).expect("fits");
        assert_eq!(long, "test:almAngpz1zHVEeEfkwDrhg");
        assert_eq!(storage_key("", &"x".repeat(2000), 1700, 0).expect("fits"), "XA4OpCFXHDALXfauwKEYtQ");
        assert_eq!(storage_key("test:", "resource:456", 1700, 0).expect("fits"), "test:resource:456");
    }

    #[test]
    fn a_storage_key_at_its_limit_is_kept_and_one_byte_more_is_hashed() {
        assert_eq!(storage_key("", &"x".repeat(100), 100, 0).expect("fits"), "x".repeat(100));
        assert_eq!(storage_key("", &"x".repeat(101), 100, 0).expect("fits").len(), 22);
        assert_eq!(storage_key("", &"x".repeat(100), 100, 1).expect("fits").len(), 22);
    }

    #[test]
    fn a_limit_that_holds_no_hash_is_refused() {
        assert!(matches!(
            storage_key("prefix", "longer than that", 10, 0),
            Err(LockError::InvalidArgument(_))
        ));
    }

    #[test]
    fn the_prefix_takes_part_in_the_hash() {
        let one = storage_key("a", &"x".repeat(200), 100, 0).expect("fits");
        let other = storage_key("b", &"x".repeat(200), 100, 0).expect("fits");
        assert_ne!(one[2..], other[2..]);
    }

    // L-08
    #[test]
    fn a_key_of_512_bytes_is_the_longest() {
        assert!(LockKey::parse(&"a".repeat(512)).is_ok());
        assert!(LockKey::parse(&"é".repeat(256)).is_ok());
        for text in ["a".repeat(513), "é".repeat(257)] {
            let error = LockKey::parse(&text).err().expect("too long").to_string();
            assert!(error.contains("exceeds maximum length"), "{error}");
        }
    }

    #[test]
    fn length_counts_after_normalisation() {
        assert!(LockKey::parse(&"e\u{301}".repeat(256)).is_ok());
    }

    #[test]
    fn the_fence_key_is_derived_from_the_storage_key() {
        let key = LockKey::parse("payment:123").expect("a key");
        assert_eq!((key.storage.as_str(), key.fence.as_str()), ("payment:123", "fence:payment:123"));
    }
}
