//! A short-lived cache of answers. It is bounded: when it is full, expired answers are dropped, or all if none has expired.

use std::collections::HashMap;
use std::time::Instant;

use domain::ports::User;

#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<String, (User, Instant)>,
    capacity: usize,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity }
    }

    pub(crate) fn get(&self, id: &str, now: Instant) -> Option<&User> {
        self.entries.get(id).filter(|(_, until)| now < *until).map(|(user, _)| user)
    }

    pub(crate) fn insert(&mut self, id: &str, user: User, until: Instant) {
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() >= self.capacity {
            let now = Instant::now();
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let later = Instant::now() + Duration::from_secs(60);
        let mut cache = Cache::new(3);
        for n in 0..10 {
            cache.insert(&n.to_string(), User::default(), later);
            assert!(cache.entries.len() <= 3);
        }
        assert!(cache.get("9", Instant::now()).is_some());
    }

    #[test]
    fn an_answer_is_not_used_past_its_time() {
        let until = Instant::now() + Duration::from_secs(5);
        let mut cache = Cache::new(3);
        cache.insert("u", User::default(), until);
        assert!(cache.get("u", until - Duration::from_millis(1)).is_some());
        assert!(cache.get("u", until).is_none());
    }
}
