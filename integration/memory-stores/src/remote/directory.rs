//! The user directory behind a link.

use domain::ports::{Lookup, UserDirectory};

use super::{Link, Remote, texts};

impl<S: UserDirectory, L: Link> UserDirectory for Remote<S, L> {
    fn users_per_call(&self) -> usize {
        self.store.users_per_call()
    }

    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        self.store.recall(user_ids)
    }

    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let answers = async { Ok(self.store.look_up(user_ids).await) };
        match self.call("look_up", texts(user_ids), answers).await {
            Ok(lookups) => lookups,
            Err(error) => vec![Lookup::Unavailable(error.to_string()); user_ids.len()],
        }
    }
}
