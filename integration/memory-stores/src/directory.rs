//! The user directory.

use std::collections::HashMap;
use std::sync::Mutex;

use domain::ports::UserDirectory;
use domain::recipient::{Lookup, User};

use super::lock;

/// A user directory. A user that was not set exists, with an address made of the id.
#[derive(Debug, Default)]
pub struct MemoryDirectory(Mutex<HashMap<String, Lookup>>);

impl MemoryDirectory {
    /// Answers `lookup` about this user from now on.
    pub fn set(&self, user_id: &str, lookup: Lookup) {
        lock(&self.0).insert(user_id.to_owned(), lookup);
    }

    /// Forgets what was set.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }
}

impl UserDirectory for MemoryDirectory {
    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let known = lock(&self.0);
        let user =
            |id: &str| User { email: format!("{id}@example.com"), preferred_language: "en".to_owned() };
        user_ids.iter().map(|id| known.get(*id).cloned().unwrap_or_else(|| Lookup::Found(user(id)))).collect()
    }
}
