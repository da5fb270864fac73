//! Entries of the intents stream, as they are looked at to say what became of them.

use crate::checkpoint::StreamState;
use crate::entry::{RawEntry, RawFields};

/// The most entries of a stream that one look reads.
pub const MAX_UNREAD_ENTRIES: usize = 1_000;
/// The most bytes that one look reads.
pub const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// A look at one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryLook {
    /// The stream as a whole; `None` if there is no such key.
    pub stream: Option<StreamState>,
    /// The entry; `None` if the stream does not have it.
    pub entry: Option<FoundEntry>,
}

/// An entry that a look has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundEntry {
    /// What it holds.
    Fields(RawFields),
    /// It is there, and has more than [`MAX_UNREAD_BYTES`].
    TooLarge,
}

/// The entries after a place, as far as they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadEntries {
    /// In stream order.
    pub entries: Vec<RawEntry>,
    /// Whether there are no more.
    pub is_all: bool,
}
