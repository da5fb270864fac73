//! A user, and the result of looking one up in the user directory.

/// A user in the user directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// The e-mail address; may be empty.
    pub email: String,
    /// The preferred language tag; may be empty.
    pub preferred_language: String,
}

/// The result of looking up one user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The user exists.
    Found(User),
    /// The user does not exist.
    Missing,
    /// The directory gave no usable result, for this reason.
    Unavailable(String),
}
