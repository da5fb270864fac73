//! The user directory.

use std::collections::HashMap;
use std::sync::Mutex;

use domain::ports::UserDirectory;
use domain::recipient::{Lookup, User};

use super::lock;

const USERS_PER_CALL: usize = 256;

/// A user directory. A user that was not set exists, with an address made from the id. It recalls only the
/// users given to [`MemoryDirectory::recall_user`].
#[derive(Debug, Default)]
pub struct MemoryDirectory {
    users: Mutex<HashMap<String, Lookup>>,
    recalled: Mutex<HashMap<String, User>>,
}

impl MemoryDirectory {
    /// Sets the result of lookups of this user.
    pub fn set(&self, user_id: &str, lookup: Lookup) {
        lock(&self.users).insert(user_id.to_owned(), lookup);
    }

    /// Recalls this user from now on, independently of lookups.
    pub fn recall_user(&self, user_id: &str, user: User) {
        lock(&self.recalled).insert(user_id.to_owned(), user);
    }

    /// Forgets all set and recalled users.
    pub fn clear(&self) {
        lock(&self.users).clear();
        lock(&self.recalled).clear();
    }
}

impl UserDirectory for MemoryDirectory {
    fn users_per_call(&self) -> usize {
        USERS_PER_CALL
    }

    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        let recalled = lock(&self.recalled);
        user_ids.iter().map(|id| recalled.get(*id).cloned().map(Lookup::Found)).collect()
    }

    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let known = lock(&self.users);
        let user =
            |id: &str| User { email: format!("{id}@example.com"), preferred_language: "en".to_owned() };
        user_ids.iter().map(|id| known.get(*id).cloned().unwrap_or_else(|| Lookup::Found(user(id)))).collect()
    }
}
