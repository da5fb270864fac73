//! A user, and the result of looking one up in the user directory.

/// A user as the user directory has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// May be empty.
    pub email: String,
    /// A language tag; may be empty.
    pub preferred_language: String,
}

/// The result of looking up one user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// There is such a user.
    Found(User),
    /// There is no such user.
    Missing,
    /// The directory gave no usable answer; this is why.
    Unavailable(String),
}
