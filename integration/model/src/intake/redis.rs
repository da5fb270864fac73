//! Redis: the intents stream and the cached checkpoint.

use std::fmt;
use std::ops::Deref;

use domain::checkpoint::StreamState;
use domain::entry::EntryId;

use crate::Server;

/// The most entries of a stream.
const ENTRIES: usize = super::INTENTS;

/// An entry of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Entry {
    /// The id. 0 is before the first one.
    pub id: u8,
    /// The intent. Entries of one intent have the same key and the same content.
    pub intent: u8,
}

/// Entries in the order of their ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Entries {
    length: u8,
    entries: [Entry; ENTRIES],
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.entries[..usize::from(self.length)]
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut all = Self::default();
        for entry in entries {
            all.entries[usize::from(all.length)] = entry;
            all.length += 1;
        }
        all
    }
}

/// The cached checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cached {
    /// The entry.
    pub id: u8,
    /// The fence.
    pub fence: u8,
}

/// The server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Redis {
    /// The identity.
    pub server: Server,
    /// The stream. Without an entry the key does not exist.
    pub entries: Entries,
    /// The cached checkpoint.
    pub cached: Option<Cached>,
    /// An id that the clock is past.
    clock: u8,
}

impl Default for Redis {
    fn default() -> Self {
        Self { server: Server::First, entries: Entries::default(), cached: None, clock: 0 }
    }
}

impl Redis {
    /// The id of the last entry; 0 if there is none.
    pub fn last(&self) -> u8 {
        self.entries.last().map_or(0, |entry| entry.id)
    }

    /// The state of the stream, as the rules of the domain expect it.
    pub(super) fn stream(&self) -> Option<StreamState> {
        let first = self.entries.first()?;
        Some(StreamState {
            first: Some(entry_id(first.id)),
            last_generated: entry_id(self.last()),
            ..StreamState::default()
        })
    }

    /// Appends an intent and returns its id. The same intent never gets the same id again.
    pub(super) fn add(&mut self, intent: u8, former: Option<u8>) -> u8 {
        let next = self.last().max(self.clock) + 1;
        let id = if former == Some(next) { next + 1 } else { next };
        self.entries = self.entries.iter().copied().chain([Entry { id, intent }]).collect();
        id
    }

    pub(super) fn change(&mut self, kept: u8, keeps_cache: bool, is_behind: bool) -> Option<()> {
        if self.server == Server::Second {
            return None;
        }
        self.server = Server::Second;
        self.clock = if is_behind { 0 } else { self.last() };
        self.entries = self.entries.iter().copied().take(kept.into()).collect();
        if self.entries.last().is_some_and(|last| last.id == self.clock) {
            self.clock = 0;
        }
        if !keeps_cache {
            self.cached = None;
        }
        Some(())
    }

    /// The script `save_checkpoint`. Returns false if a later term has written; `by_older` becomes true if
    /// the write is one that the script should have refused.
    pub(super) fn save(&mut self, to: Cached, must_advance: bool, checks: bool, by_older: &mut bool) -> bool {
        if let Some(stored) = self.cached {
            if checks && stored.fence > to.fence {
                return false;
            }
            *by_older |= stored.fence > to.fence;
            if must_advance && stored.fence == to.fence && to.id <= stored.id {
                return false;
            }
        }
        self.cached = Some(to);
        true
    }
}

/// The id of an entry, as the rules of the domain expect it.
pub(super) fn entry_id(id: u8) -> EntryId {
    EntryId::new(id.into(), 0)
}
