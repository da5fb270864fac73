//! Detects which published entries Redis may have lost, and which of them are appended again.
//!
//! The rules of ADR 0021 and ADR 0045. A comparison runs when an outbound stream is on another server than
//! before, when the last id that it generated fell, or when it was recreated. An absent entry whose id lies
//! in a [`Gap`] never existed in the present stream on the present server, so neither trimming nor a consumer
//! can have removed it.

use std::fmt;
use std::sync::Arc;

use crate::entry::EntryId;
use crate::route::RouteStatus;

/// A Redis server process with one replication history. An acknowledgement is valid only for the server that
/// gave it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerId {
    /// `run_id`: changes with each start of the server.
    pub run_id: Arc<str>,
    /// `master_replid`: changes with each promotion.
    pub replication_id: Arc<str>,
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run_id, self.replication_id)
    }
}

/// An entry of an outbound stream that a server acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    /// Id of the entry.
    pub entry_id: String,
    /// Server that acknowledged it.
    pub server: ServerId,
}

/// True if the entry that a route names belongs in the outbound stream for good: the route is published, or
/// it was published and an operator cancelled its resend.
pub fn keeps_entry(status: RouteStatus, published_entry_id: &str) -> bool {
    match status {
        RouteStatus::Published => true,
        RouteStatus::Skipped => !published_entry_id.is_empty(),
        RouteStatus::Pending | RouteStatus::Failed | RouteStatus::DeadLetter => false,
    }
}

/// The state of an outbound stream at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenStream {
    /// Key of the stream.
    pub stream: String,
    /// Server that held the stream.
    pub server: ServerId,
    /// Last id that the stream had generated; zero if the key did not exist.
    pub last_generated: EntryId,
}

impl SeenStream {
    /// True if entries that existed when `former` was observed may have been lost, other than by trimming and
    /// deletion. `gaps` are the present gaps of the stream. If the stream was recreated, its newest gap
    /// contains the last id seen before, even if later ids are higher.
    pub fn may_have_lost(&self, former: &Self, gaps: &[Gap]) -> bool {
        self.server != former.server
            || self.last_generated < former.last_generated
            || gaps.first().is_some_and(|newest| newest.contains(former.last_generated))
    }
}

/// A range of ids that no entry of a stream has had on a server. `after` is the last id that the stream had
/// generated before a publisher appended to it after a start, a promotion or the loss of the key; `before` is
/// the first id that was appended then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The server.
    pub server: ServerId,
    /// Ids up to this one existed before.
    pub after: EntryId,
    /// Ids from this one on were appended since; `None` if nothing was appended yet: the last id that the
    /// stream generated then gives the same information.
    pub before: Option<EntryId>,
}

impl Gap {
    fn contains(&self, id: EntryId) -> bool {
        id > self.after && self.before.is_some_and(|before| id < before)
    }
}

/// The state of an outbound stream as reported by Redis.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OutboundState {
    /// First entry that still exists.
    pub first: Option<EntryId>,
    /// Last id that the stream generated.
    pub last_generated: EntryId,
    /// Highest id that a consumer deleted; zero if none was deleted, or if Redis does not report it.
    pub max_deleted: EntryId,
    /// Bytes of entries that Redis copied for this report.
    pub copied_bytes: u64,
    /// Ranges of ids that the stream never had, latest first.
    pub gaps: Vec<Gap>,
}

impl OutboundState {
    /// True if the absent entry `id` was already lost when `former` was observed: a gap that contains the id
    /// existed then, or began to exist with the next append, so that it contains only ids from before.
    fn had_lost(&self, id: EntryId, former: &SeenStream) -> bool {
        let last = former.last_generated;
        let of_former = self.gaps.iter().position(|gap| gap.server == former.server);
        // Gaps of the same server that came later, the latest first.
        let is_later =
            |gap: &&Gap| gap.server == former.server && gap.before.is_none_or(|before| before > last);
        let later = of_former.map_or(0, |newest| self.gaps[newest..].iter().take_while(is_later).count());
        let was_there = |(at, gap): (usize, &Gap)| match of_former {
            Some(newest) if later > 0 && at + 1 == newest + later => gap.after >= last,
            Some(newest) => at >= newest + later,
            // Nothing was appended on that server, so it left no gap.
            None => gap.before.is_some_and(|before| before <= last),
        };
        self.gaps.iter().enumerate().filter(|(_, gap)| gap.contains(id)).any(was_there)
    }
}

/// The state of the entry of a published route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryState {
    /// The entry is in the stream.
    Present,
    /// The stream was trimmed past the entry.
    Trimmed,
    /// A consumer may have deleted the entry.
    Deleted,
    /// The entry is lost and has to be appended again.
    Missing,
    /// The entry is lost, and the stream begins after it: consumers may have processed it, so it is reported
    /// and not appended again.
    Lost,
    /// The stream does not exist, so nothing is known about its entries.
    NoStream,
}

impl EntryState {
    /// True if Redis lost the entry.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Missing | Self::Lost)
    }
}

/// Returns the state of the entry `id`, given whether it is `present` in the stream. `stream` is `None` if
/// the key does not exist.
// MODEL-30
pub fn entry_state(id: EntryId, present: bool, stream: Option<&OutboundState>) -> EntryState {
    let Some(stream) = stream else { return EntryState::NoStream };
    let never_existed = id > stream.last_generated || stream.gaps.iter().any(|gap| gap.contains(id));
    let begins_later = stream.first.is_none_or(|first| id < first);
    match () {
        () if present => EntryState::Present,
        () if never_existed && !begins_later => EntryState::Missing,
        // The length of the stream does not matter: trimming cannot have removed an entry that never existed.
        () if never_existed => EntryState::Lost,
        () if begins_later => EntryState::Trimmed,
        () if id <= stream.max_deleted => EntryState::Deleted,
        () => EntryState::Missing,
    }
}

/// True if the absent entry `id` was already lost when `former` was observed. `stream` is its stream now;
/// `None` if the key does not exist.
pub fn was_lost_before(id: EntryId, stream: Option<&OutboundState>, former: &SeenStream) -> bool {
    match stream {
        Some(stream) => stream.had_lost(id, former),
        None => former.last_generated == EntryId::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(millis: u64) -> EntryId {
        EntryId::new(millis, 0)
    }

    fn seen(run_id: &str, replication_id: &str, last: u64) -> SeenStream {
        let server = ServerId { run_id: run_id.into(), replication_id: replication_id.into() };
        SeenStream { stream: "s".into(), server, last_generated: id(last) }
    }

    fn gap(run_id: &str, after: u64, before: Option<u64>) -> Gap {
        Gap { server: seen(run_id, "r", 0).server, after: id(after), before: before.map(id) }
    }

    /// A stream from `first` to 30 in which consumers deleted entries up to 15, on a server that never had
    /// the ids in `gaps`.
    fn stream(first: Option<u64>, gaps: &[(u64, Option<u64>)]) -> OutboundState {
        let gap = |(after, before): &(u64, Option<u64>)| gap("a", *after, *before);
        OutboundState {
            first: first.map(id),
            last_generated: id(30),
            max_deleted: id(15),
            copied_bytes: 0,
            gaps: gaps.iter().map(gap).collect(),
        }
    }

    #[test]
    fn only_another_server_or_a_last_id_that_fell_may_have_lost_entries() {
        let former = seen("a", "r", 10);
        assert!(!seen("a", "r", 10).may_have_lost(&former, &[]));
        assert!(!seen("a", "r", 11).may_have_lost(&former, &[]));
        assert!(seen("a", "r", 9).may_have_lost(&former, &[]));
        assert!(seen("b", "r", 11).may_have_lost(&former, &[]), "a restart");
        assert!(seen("a", "q", 11).may_have_lost(&former, &[]), "a promotion");
    }

    #[test]
    fn an_absent_entry_is_missing_only_after_the_first_id_and_after_the_last_deleted_one() {
        let stream = stream(Some(10), &[]);
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
    fn an_id_that_the_server_never_had_was_neither_deleted_nor_trimmed() {
        let fate = |stream: &OutboundState, millis| entry_state(id(millis), false, Some(stream));
        // The server restarted with 11 as its last id; the first append since then got 25.
        let kept = stream(Some(10), &[(11, Some(25))]);
        assert_eq!(fate(&kept, 11), EntryState::Deleted, "it was there");
        assert_eq!(fate(&kept, 12), EntryState::Missing, "no consumer of this server can have deleted it");
        assert_eq!(fate(&kept, 24), EntryState::Missing);
        let consumed = stream(Some(25), &[(11, Some(25))]);
        assert_eq!(fate(&consumed, 11), EntryState::Trimmed);
        assert_eq!(fate(&consumed, 12), EntryState::Lost, "consumers trimmed the entries before it");
        let emptied = stream(None, &[(11, Some(25)), (3, Some(5))]);
        assert_eq!(fate(&emptied, 4), EntryState::Lost, "an earlier loss");
        assert_eq!(fate(&emptied, 5), EntryState::Trimmed);
        assert_eq!(fate(&emptied, 26), EntryState::Trimmed, "consumers emptied the stream");
        assert_eq!(fate(&emptied, 31), EntryState::Lost, "after the last generated id");
    }

    #[test]
    fn a_stream_that_came_back_empty_has_lost_everything_and_one_that_went_on_nothing() {
        let empty = OutboundState { last_generated: id(0), ..stream(None, &[(0, None)]) };
        assert_eq!(entry_state(id(5), false, Some(&empty)), EntryState::Lost);
        let filled_again = stream(Some(20), &[(0, Some(20))]);
        assert_eq!(entry_state(id(5), false, Some(&filled_again)), EntryState::Lost);
        let went_on = stream(Some(20), &[(17, Some(20))]);
        assert_eq!(entry_state(id(5), false, Some(&went_on)), EntryState::Trimmed);
        assert_eq!(entry_state(id(5), false, None), EntryState::NoStream);
    }

    #[test]
    fn a_stream_that_was_created_again_has_lost_entries_however_high_its_ids_are() {
        let former = seen("a", "r", 10);
        let now = seen("a", "r", 30);
        assert!(!now.may_have_lost(&former, &[gap("a", 3, Some(10))]), "seen after the gap");
        assert!(now.may_have_lost(&former, &[gap("a", 0, Some(20)), gap("a", 3, Some(10))]));
        assert!(!now.may_have_lost(&former, &[gap("a", 10, Some(20))]), "it went on where it was");
        assert!(now.may_have_lost(&former, &[gap("a", 9, Some(20))]), "its last entry is gone");
        // The clock of Redis went back: the older gap contains ids that exist by now.
        let former = seen("a", "r", 25);
        assert!(!now.may_have_lost(&former, &[gap("a", 0, Some(25)), gap("a", 0, Some(28))]));
    }

    #[test]
    fn a_loss_is_known_if_its_gap_was_there_when_the_former_server_was_seen() {
        let had_lost = |gaps: Vec<Gap>, millis, former| {
            was_lost_before(id(millis), Some(&OutboundState { gaps, ..stream(Some(25), &[]) }), &former)
        };
        let lost_on_b = [gap("b", 5, Some(20)), gap("a", 0, Some(1))];
        assert!(!had_lost(lost_on_b.to_vec(), 7, seen("a", "r", 10)), "the server changed since");
        assert!(had_lost(lost_on_b.to_vec(), 7, seen("b", "r", 22)), "it was there before");
        assert!(had_lost(lost_on_b.to_vec(), 7, seen("b", "r", 5)), "seen before the first append on it");
        let restarted = [&[gap("c", 22, Some(25))], &lost_on_b[..]].concat();
        assert!(had_lost(restarted.clone(), 7, seen("b", "r", 22)), "an orderly restart");
        assert!(!had_lost(restarted.clone(), 24, seen("b", "r", 22)), "appended after it was seen, and lost");
        assert!(had_lost(restarted, 7, seen("idle", "r", 22)), "nothing was appended on the former server");
        let slow_clock = [gap("c", 10, Some(18)), gap("b", 5, Some(8))];
        assert!(!had_lost(slow_clock.to_vec(), 12, seen("b", "r", 20)), "whatever its ids are");
        let created_again = [gap("b", 0, Some(24)), gap("b", 5, Some(8))];
        assert!(!had_lost(created_again.to_vec(), 9, seen("b", "r", 22)));
        assert!(had_lost(created_again.to_vec(), 7, seen("b", "r", 22)), "lost before");
        let twice_since_absent = [gap("b", 0, Some(24)), gap("b", 0, Some(15)), gap("a", 0, Some(1))];
        assert!(had_lost(twice_since_absent.to_vec(), 9, seen("b", "r", 0)), "lost when it was absent");
        assert!(!had_lost(twice_since_absent.to_vec(), 20, seen("b", "r", 0)), "appended since, and lost");
        assert!(!had_lost(vec![], 31, seen("b", "r", 22)), "after the last id");
        assert!(was_lost_before(id(7), None, &seen("b", "r", 0)), "the stream was absent then, too");
        assert!(!was_lost_before(id(7), None, &seen("b", "r", 22)), "absent since");
    }

    #[test]
    fn what_a_server_never_had_was_not_trimmed_by_a_limit_of_length() {
        let bounded = stream(Some(29), &[(7, Some(20))]);
        assert_eq!(entry_state(id(8), false, Some(&bounded)), EntryState::Lost);
        assert_eq!(entry_state(id(7), false, Some(&bounded)), EntryState::Trimmed);
    }
}
