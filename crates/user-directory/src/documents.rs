//! The user directory as documents: `users/<user_id>` is `{"email":"…","preferred_language":"…"}`, with any
//! further members.
//!
//! One statement reads all users of a call, and only these two members, however large the documents are.
//! Calls that wait at the same moment share a statement (`reads.rs`). A missing document means that the user
//! does not exist. If a document is not an object, or its `email` is not a string, the user has neither
//! address nor language; a warning reports this, at most once per [`WARNING_INTERVAL`].

mod reads;
mod warnings;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ports::{Lookup, User, UserDirectory, error_chain};
use futures_util::FutureExt;
use futures_util::future::join_all;
use state::{DocumentMembers, Key, MemberValue, StateError, Store};

use self::reads::Reads;
use self::warnings::Warnings;
use crate::cache::Cache;
use crate::user;

/// The prefix of the keys of users.
pub const USERS_PREFIX: &str = "users/";
/// The members that are read, in this order.
const MEMBERS: [&str; 2] = ["email", "preferred_language"];
/// The largest member that is read, in bytes: more than an address needs if every character of it is escaped.
const MAX_MEMBER_BYTES: usize = 2_048;
/// The most users that one statement reads.
const MAX_USERS_PER_READ: usize = 4_096;
/// The time after the first statement from which no further statement is run for users whose documents fail
/// it.
const MAX_READ_TIME: Duration = Duration::from_secs(20);
/// The minimum time between two warnings about documents; a warning counts the users since the last one.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Settings of a [`StateUserDirectory`].
#[derive(Clone, Copy, Debug)]
pub struct StateDirectorySettings {
    /// The most concurrent statements, each with a connection of the store; 0 means 1.
    pub concurrency: usize,
    /// The time for which a found user is reused.
    pub cache_ttl: Duration,
    /// The most users that are cached; 0 disables the cache.
    pub cache_entries: usize,
}

/// A user directory on the documents of a store. Clones share the cache.
#[derive(Clone, Debug)]
pub struct StateUserDirectory<S> {
    shared: Arc<LookupState<S>>,
    reads: Reads,
}

#[derive(Debug)]
struct LookupState<S> {
    store: S,
    cache: Cache,
    warnings: Warnings,
}

impl<S: Store> StateUserDirectory<S> {
    /// Creates a directory on the documents of a store.
    pub fn new(store: S, settings: StateDirectorySettings) -> Self {
        let shared = LookupState {
            store,
            cache: Cache::new(settings.cache_entries, settings.cache_ttl),
            warnings: Warnings::default(),
        };
        Self { shared: Arc::new(shared), reads: Reads::new(settings.concurrency, MAX_USERS_PER_READ) }
    }

    /// Checks that the store can be read: its table exists, and the role has the right to read it.
    pub async fn check(&self) -> Result<(), StateError> {
        let key = Key::new(USERS_PREFIX)?;
        self.shared.store.get_members(&[key], &MEMBERS, MAX_MEMBER_BYTES).await.map(drop)
    }

    /// Looks up distinct users; the lookups are in their order.
    async fn read(&self, user_ids: &[&str]) -> Vec<Lookup> {
        let reads = user_ids.chunks(MAX_USERS_PER_READ).map(|chunk| {
            let shared = Arc::clone(&self.shared);
            let read = self.reads.join(chunk, |users| async move { shared.read(users).await }.boxed());
            async move {
                let answers = read.await;
                chunk.iter().map(|id| answers[*id].clone()).collect::<Vec<_>>()
            }
        });
        join_all(reads).await.concat()
    }
}

impl<S: Store> LookupState<S> {
    /// Returns one lookup for each user. A statement that fails because of the documents it reads is run
    /// again for one half and then for the other.
    async fn read(&self, user_ids: Vec<String>) -> HashMap<String, Lookup> {
        let mut lookups = HashMap::with_capacity(user_ids.len());
        let mut keys = Vec::with_capacity(user_ids.len());
        for id in user_ids {
            match Key::new(&format!("{USERS_PREFIX}{id}")) {
                Ok(key) => keys.push(key),
                // No document can have this key.
                Err(_) => drop(lookups.insert(id, Lookup::Missing)),
            }
        }
        let deadline = Instant::now() + MAX_READ_TIME;
        let mut parts = vec![&keys[..]];
        while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
            match self.store.get_members(part, &MEMBERS, MAX_MEMBER_BYTES).await {
                Ok(found) => lookups.extend(self.answers(part, &found)),
                Err(error) if part.len() > 1 && is_about_documents(&error) && Instant::now() < deadline => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(error) => {
                    let cause =
                        format!("the user directory gave no usable response: {}", error_chain(&error));
                    let unavailable = Lookup::Unavailable(cause);
                    lookups.extend(part.iter().map(|key| (user_id(key).to_owned(), unavailable.clone())));
                }
            }
        }
        lookups
    }

    fn answers(&self, keys: &[Key], found: &[DocumentMembers]) -> HashMap<String, Lookup> {
        let missing = |key: &Key| (user_id(key).to_owned(), Lookup::Missing);
        let mut lookups: HashMap<String, Lookup> = keys.iter().map(missing).collect();
        let read: Vec<_> = found.iter().map(|members| (user_id(&members.key), user_of(members))).collect();
        self.cache.keep(read.iter().map(|(id, (user, _))| (*id, user)));
        let unusable: Vec<&str> =
            read.iter().filter(|(_, (_, is_as_agreed))| !is_as_agreed).map(|(id, _)| *id).collect();
        self.warnings.note(&unusable, Instant::now());
        lookups.extend(read.into_iter().map(|(id, (user, _))| (id.to_owned(), Lookup::Found(user))));
        lookups
    }
}

/// Returns the user, and true if the document has the agreed form.
fn user_of(members: &DocumentMembers) -> (User, bool) {
    let Some([email, language]) = members.members.as_deref() else { return (User::default(), false) };
    match (text(email), text(language)) {
        (Err(NoText), _) => (User::default(), false),
        (Ok(email), language) => (user::of(email, language.clone().unwrap_or_default()), language.is_ok()),
    }
}

/// The member is present, but is not a string, or is too large.
#[derive(Clone, Copy)]
struct NoText;

fn text(member: &MemberValue) -> Result<Option<String>, NoText> {
    match member {
        MemberValue::Absent => Ok(None),
        MemberValue::TooLarge => Err(NoText),
        MemberValue::Value(value) => {
            value.to_json().ok().and_then(|json| json.as_str().map(str::to_owned)).map(Some).ok_or(NoText)
        }
    }
}

fn user_id(key: &Key) -> &str {
    key.as_str().strip_prefix(USERS_PREFIX).unwrap_or_default()
}

/// True if the statement may succeed without one of the documents.
fn is_about_documents(error: &StateError) -> bool {
    matches!(error, StateError::TimedOut { .. } | StateError::InvalidValue(_) | StateError::Corrupt { .. })
}

impl<S: Store> UserDirectory for StateUserDirectory<S> {
    fn users_per_call(&self) -> usize {
        MAX_USERS_PER_READ
    }

    fn recall(&self, user_ids: &[&str]) -> Option<Vec<Lookup>> {
        self.shared.cache.recall(user_ids)
    }

    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        self.shared.cache.look_up(user_ids, async |unknown| self.read(&unknown).await).await
    }
}

#[cfg(test)]
mod tests;
