//! Statements that calls share. A call joins the statement that waits for a permit, or creates one. There is
//! no timer: while permits are free, each call has its own statement; while all are in use, the calls that
//! arrive wait together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ports::Lookup;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;

/// The lookups of a statement, by user id.
type UserLookups = Arc<HashMap<String, Lookup>>;
type StatementRead = BoxFuture<'static, UserLookups>;

/// The shared statements. Clones share them. A waiting statement is dropped with its calls, so the bound of
/// the calls bounds the statements.
#[derive(Clone, Debug)]
pub(super) struct Reads {
    turns: Arc<Semaphore>,
    forming: Arc<Mutex<Option<Forming>>>,
    max_users: usize,
}

/// The newest statement. Calls add users to it until it runs.
#[derive(Debug)]
struct Forming {
    /// `None` once the statement runs.
    users: Arc<Mutex<Option<Vec<String>>>>,
    read: WeakShared<StatementRead>,
}

impl Reads {
    /// Allows at most `concurrency` statements at a time. Calls share a statement as long as it has at most
    /// `max_users`.
    pub(super) fn new(concurrency: usize, max_users: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(concurrency.max(1))), forming: Arc::default(), max_users }
    }

    /// The lookups that `run` returns for these users, and for those of other calls. The joined ids may
    /// contain a user twice.
    pub(super) fn join(
        &self,
        user_ids: &[&str],
        run: impl FnOnce(Vec<String>) -> BoxFuture<'static, HashMap<String, Lookup>> + Send + 'static,
    ) -> Shared<StatementRead> {
        let mut forming = lock(&self.forming);
        if let Some(read) = forming.as_ref().and_then(|forming| forming.join(user_ids, self.max_users)) {
            return read;
        }
        let users = Arc::new(Mutex::new(Some(user_ids.iter().map(|id| (*id).to_owned()).collect())));
        let (taken, turns) = (Arc::clone(&users), Arc::clone(&self.turns));
        let read = async move {
            // Fails only if the semaphore is closed, which never happens.
            let _turn = turns.acquire().await;
            let user_ids: Vec<String> = lock(&taken).take().unwrap_or_default();
            Arc::new(run(user_ids).await)
        };
        let read = read.boxed().shared();
        *forming = read.downgrade().map(|read| Forming { users, read });
        read
    }
}

impl Forming {
    fn join(&self, user_ids: &[&str], max_users: usize) -> Option<Shared<StatementRead>> {
        let read = self.read.upgrade()?;
        let mut users = lock(&self.users);
        let users = users.as_mut().filter(|users| users.len() + user_ids.len() <= max_users)?;
        users.extend(user_ids.iter().map(|id| (*id).to_owned()));
        Some(read)
    }
}

/// Locks; nothing panics while a lock is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    fn all_missing(user_ids: Vec<String>) -> HashMap<String, Lookup> {
        user_ids.into_iter().map(|id| (id, Lookup::Missing)).collect()
    }

    fn at_once(user_ids: Vec<String>) -> BoxFuture<'static, HashMap<String, Lookup>> {
        async { all_missing(user_ids) }.boxed()
    }

    async fn users(read: Shared<StatementRead>) -> Vec<String> {
        let mut users: Vec<String> = read.await.keys().cloned().collect();
        users.sort();
        users
    }

    #[tokio::test]
    async fn calls_that_come_while_every_turn_is_taken_share_a_statement_as_far_as_it_may_grow() {
        let (reads, (release, released)) = (Reads::new(1, 3), oneshot::channel());
        let first = reads.join(&["a"], |users| {
            async { released.await.map(|()| all_missing(users)).unwrap_or_default() }.boxed()
        });
        assert!(first.clone().now_or_never().is_none(), "it runs");
        let waiting: Vec<_> =
            [&["b"][..], &["c", "d"], &["e"], &["f"]].iter().map(|ids| reads.join(ids, at_once)).collect();
        release.send(()).expect("it waits");
        assert_eq!(users(first).await, ["a"]);
        let mut seen = Vec::new();
        for read in waiting {
            seen.push(users(read).await.concat());
        }
        assert_eq!(seen, ["bcd", "bcd", "ef", "ef"]);
        assert_eq!(users(reads.join(&["g"], at_once)).await, ["g"], "what has run is joined by no call");
    }

    #[tokio::test]
    async fn a_statement_ends_with_its_last_caller_and_leaves_its_turn_to_the_next() {
        let reads = Reads::new(1, 3);
        let first = reads.join(&["a"], |_| pending().boxed());
        assert!(first.clone().now_or_never().is_none(), "it runs");
        let (second, third) = (reads.join(&["b"], at_once), reads.join(&["c"], at_once));
        assert!(second.clone().now_or_never().is_none(), "it waits");
        drop((first, second));
        assert_eq!(users(third).await, ["b", "c"]);
    }
}
