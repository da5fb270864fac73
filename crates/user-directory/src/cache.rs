//! Cache of found users, kept for a short time and shared by the calls of one directory. The cache is
//! bounded: when it is full, expired users are dropped, or all users if none has expired.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::{Lookup, User};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Cache {
    users: Mutex<CachedUsers>,
    ttl: Duration,
}

impl Cache {
    /// Creates a cache of at most `capacity` users, each kept for `ttl`.
    pub(crate) fn new(capacity: usize, ttl: Duration) -> Self {
        Self { users: Mutex::new(CachedUsers { entries: HashMap::new(), capacity }), ttl }
    }

    /// The users in the order of their ids, if all are cached.
    pub(crate) fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        let (users, now) = (self.users(), Instant::now());
        user_ids.iter().map(|id| users.get(id, now).cloned().map(Lookup::Found)).collect()
    }

    /// Looks up the ids; the lookups are in their order. `ask` receives the ids that are not cached, each
    /// once, and must return their lookups in that order.
    pub(crate) async fn look_up<'a, F>(
        &self,
        user_ids: &[&'a str],
        ask: impl FnOnce(Vec<&'a str>) -> F,
    ) -> Vec<Lookup>
    where
        F: Future<Output = Vec<Lookup>>,
    {
        let (mut lookups, unknown) = self.split(user_ids);
        let answers = ask(unknown.clone()).await;
        lookups.extend(unknown.into_iter().zip(answers));
        user_ids.iter().map(|id| lookups[id].clone()).collect()
    }

    /// Splits the ids into cached users and ids that are not cached, each once.
    fn split<'a>(&self, user_ids: &[&'a str]) -> (HashMap<&'a str, Lookup>, Vec<&'a str>) {
        let (users, now, mut seen) = (self.users(), Instant::now(), HashSet::new());
        let (mut kept, mut unknown) = (HashMap::new(), Vec::new());
        for &id in user_ids.iter().filter(|id| seen.insert(**id)) {
            match users.get(id, now) {
                Some(user) => drop(kept.insert(id, Lookup::Found(user.clone()))),
                None => unknown.push(id),
            }
        }
        (kept, unknown)
    }

    /// Caches users that were found now.
    pub(crate) fn keep<'a>(&self, found: impl IntoIterator<Item = (&'a str, &'a User)>) {
        let (mut users, now) = (self.users(), Instant::now());
        for (id, user) in found {
            users.insert(id, user.clone(), now, now + self.ttl);
        }
    }

    fn users(&self) -> MutexGuard<'_, CachedUsers> {
        // Nothing panics while the lock is held.
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct CachedUsers {
    /// Users, each with its time of expiry.
    entries: HashMap<String, (User, Instant)>,
    capacity: usize,
}

impl CachedUsers {
    fn get(&self, id: &str, now: Instant) -> Option<&User> {
        self.entries.get(id).filter(|(_, until)| now < *until).map(|(user, _)| user)
    }

    fn insert(&mut self, id: &str, user: User, now: Instant, until: Instant) {
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() >= self.capacity {
            self.entries.retain(|_, (_, until)| now < *until);
            if self.entries.len() >= self.capacity {
                self.entries.clear();
            }
        }
        self.entries.insert(id.to_owned(), (user, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn found() -> Lookup {
        Lookup::Found(User::default())
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let cache = Cache::new(3, TTL);
        for n in 0..10 {
            cache.keep([(n.to_string().as_str(), &User::default())]);
            assert!(cache.users().entries.len() <= 3);
        }
        assert_eq!(cache.recall(&["9"]), Some(vec![found()]));
        let none = Cache::new(0, TTL);
        none.keep([("u", &User::default())]);
        assert_eq!(none.recall(&["u"]), None);
    }

    #[test]
    fn a_user_is_not_used_past_its_time() {
        let cache = Cache::new(3, TTL);
        let (mut users, now) = (cache.users(), Instant::now());
        users.insert("u", User::default(), now, now + TTL);
        assert!(users.get("u", now + TTL - Duration::from_millis(1)).is_some());
        assert!(users.get("u", now + TTL).is_none());
    }

    #[test]
    fn users_are_recalled_in_the_order_of_their_ids_and_only_if_all_are_kept() {
        let cache = Cache::new(3, TTL);
        let ada = User { email: "ada@example.com".to_owned(), preferred_language: "en".to_owned() };
        cache.keep([("a", &ada), ("b", &User::default())]);
        assert_eq!(cache.recall(&["b", "a", "b"]), Some(vec![found(), Lookup::Found(ada), found()]));
        assert_eq!(cache.recall(&["a", "c"]), None);
        assert_eq!(Cache::new(3, Duration::ZERO).recall(&["a"]), None);
    }

    #[tokio::test]
    async fn a_look_up_asks_once_for_each_user_that_is_not_kept_and_answers_in_the_order_of_the_ids() {
        let cache = Cache::new(3, TTL);
        cache.keep([("kept", &User::default())]);
        let asked = Mutex::new(Vec::new());
        let ask = async |unknown: Vec<&str>| {
            asked.lock().expect("no panic").extend(unknown.iter().map(|id| (*id).to_owned()));
            vec![Lookup::Missing, Lookup::Unavailable("x".to_owned())]
        };
        let answers = cache.look_up(&["a", "kept", "b", "a"], ask).await;
        let expected = [Lookup::Missing, found(), Lookup::Unavailable("x".to_owned()), Lookup::Missing];
        assert_eq!(answers, expected);
        assert_eq!(*asked.lock().expect("no panic"), ["a", "b"]);
    }
}
