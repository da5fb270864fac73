//! Lookups of entries of the intents stream, used to explain their fate.

use crate::checkpoint::StreamState;
use crate::entry::{RawEntry, RawFields};

/// The most entries of a stream that one lookup reads.
pub const MAX_UNREAD_ENTRIES: usize = 1_000;
/// The most bytes that one lookup reads.
pub const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// The result of looking up one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryLook {
    /// State of the stream; `None` if the key does not exist.
    pub stream: Option<StreamState>,
    /// The entry; `None` if the stream does not contain it.
    pub entry: Option<FoundEntry>,
}

/// An entry that a lookup found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundEntry {
    /// The fields of the entry.
    Fields(RawFields),
    /// The entry exists, but exceeds [`MAX_UNREAD_BYTES`].
    TooLarge,
}

/// The entries after a given entry, as far as they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadEntries {
    /// The entries, in stream order.
    pub entries: Vec<RawEntry>,
    /// True if there are no more.
    pub is_all: bool,
}
