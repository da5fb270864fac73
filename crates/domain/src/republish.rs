//! What Redis may have lost of what was published, and which entries are appended again.
//!
//! The rules of ADR 0021: a comparison follows when an outbound stream is on another server than before or when the
//! last id that it generated fell; an entry is missing only where neither trimming nor a consumer can have removed it.

use ambient::Timestamp;

use crate::entry::EntryId;

/// An outbound stream as it was seen at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenStream {
    /// Its key.
    pub stream: String,
    /// The run id of the server that had it: another one after each start.
    pub run_id: String,
    /// The id of the server's replication history: another one after a failover.
    pub replication_id: String,
    /// The last id that it had generated; zero if there was no such key.
    pub last_generated: EntryId,
    /// When it was seen.
    pub seen_at: Timestamp,
}

impl SeenStream {
    /// Whether both are of one server process with one history.
    pub fn is_same_server(&self, other: &Self) -> bool {
        self.run_id == other.run_id && self.replication_id == other.replication_id
    }

    /// Whether entries that were there when `former` was seen may be gone, other than by trimming and deleting.
    pub fn may_have_lost(&self, former: &Self) -> bool {
        !self.is_same_server(former) || self.last_generated < former.last_generated
    }
}

/// What Redis reports about an outbound stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OutboundState {
    /// The first entry that is still there.
    pub first: Option<EntryId>,
    /// The last id that the stream ever gave.
    pub last_generated: EntryId,
    /// The highest id that a consumer deleted; zero if none did, or if Redis does not say.
    pub max_deleted: EntryId,
}

/// What became of the entry of a published route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryState {
    /// It is in the stream.
    Present,
    /// It lies before the first entry: the stream was trimmed.
    Trimmed,
    /// A consumer may have deleted it.
    Deleted,
    /// It is lost, and is to be appended again.
    Missing,
    /// The stream is absent or empty, so nothing is known about its entries.
    NoStream,
}

/// What became of the entry `id`, which is `present` in `stream` or not. `None` where there is no such key.
pub fn entry_state(id: EntryId, present: bool, stream: Option<&OutboundState>) -> EntryState {
    let Some(OutboundState { first: Some(first), max_deleted, .. }) = stream else {
        return EntryState::NoStream;
    };
    match () {
        () if present => EntryState::Present,
        () if id < *first => EntryState::Trimmed,
        () if id <= *max_deleted => EntryState::Deleted,
        () => EntryState::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(millis: u64) -> EntryId {
        EntryId::new(millis, 0)
    }

    fn seen(run_id: &str, replication_id: &str, last: u64) -> SeenStream {
        SeenStream {
            stream: "s".into(),
            run_id: run_id.into(),
            replication_id: replication_id.into(),
            last_generated: id(last),
            seen_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_another_server_or_a_last_id_that_fell_may_have_lost_entries() {
        let former = seen("a", "r", 10);
        assert!(!seen("a", "r", 10).may_have_lost(&former));
        assert!(!seen("a", "r", 11).may_have_lost(&former));
        assert!(seen("a", "r", 9).may_have_lost(&former));
        assert!(seen("b", "r", 11).may_have_lost(&former), "a restart");
        assert!(seen("a", "q", 11).may_have_lost(&former), "a promotion");
    }

    #[test]
    fn an_entry_is_missing_only_after_the_first_id_and_after_the_last_deleted_one() {
        let stream = OutboundState { first: Some(id(10)), last_generated: id(30), max_deleted: id(15) };
        let fate = |millis, present| entry_state(id(millis), present, Some(&stream));
        assert_eq!(fate(9, false), EntryState::Trimmed);
        assert_eq!(fate(10, true), EntryState::Present);
        assert_eq!(fate(12, true), EntryState::Present);
        assert_eq!(fate(12, false), EntryState::Deleted);
        assert_eq!(fate(15, false), EntryState::Deleted);
        assert_eq!(fate(16, false), EntryState::Missing);
        assert_eq!(fate(31, false), EntryState::Missing, "after the last generated id: the tail is lost");
    }

    #[test]
    fn of_an_absent_or_empty_stream_no_entry_is_missing() {
        assert_eq!(entry_state(id(5), false, None), EntryState::NoStream);
        let empty = OutboundState { first: None, last_generated: id(30), max_deleted: EntryId::ZERO };
        assert_eq!(entry_state(id(5), false, Some(&empty)), EntryState::NoStream);
    }
}
