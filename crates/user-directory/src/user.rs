//! Validation of users, common to all directories.

use domain::ports::User;

/// The longest valid e-mail address, in bytes.
const MAX_EMAIL_BYTES: usize = 320;
/// The longest valid language tag, in bytes.
const MAX_LANGUAGE_TAG_BYTES: usize = 64;

/// Builds a user from the directory's data. An invalid address or language counts as none.
pub(crate) fn of(email: Option<String>, preferred_language: Option<String>) -> User {
    let plain = |text: &String| text.len() <= MAX_LANGUAGE_TAG_BYTES && !text.chars().any(char::is_control);
    User {
        email: email.filter(|email| is_address(email)).unwrap_or_default(),
        preferred_language: preferred_language.filter(plain).unwrap_or_default(),
    }
}

fn is_address(email: &str) -> bool {
    let has_both_sides =
        email.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    has_both_sides
        && email.len() <= MAX_EMAIL_BYTES
        && !email.chars().any(|c| c.is_control() || c.is_whitespace())
}
