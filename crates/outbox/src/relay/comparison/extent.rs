//! The events that a comparison covers: those that the state of the server may lack, according to its
//! records.
//!
//! The server has every event that a record covers, whichever relay wrote the record. So a relay that begins
//! or ceases to carry some types does not repeat comparisons that were made for its previous types.

use pg::RawTimestamp;

use crate::{DeliveredEvent, EventTypes, Progress, Server, ServerRecord};

/// The events that are compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The earliest time of delivery.
    pub(super) since: RawTimestamp,
    rule: Rule,
}

/// The events after the earliest time that are compared.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Rule {
    /// Those that no record covers.
    Records {
        /// The records of relays with other types.
        others: Vec<ServerRecord>,
        /// The earliest time for events of a type without a record; `None` if each type has one.
        without_record: Option<RawTimestamp>,
    },
    /// Those that must have a marker, whatever the records cover: after the server was restored in place, a
    /// relay that did not notice it may have written a record that covers what is lost.
    Markers(Vec<ServerRecord>),
}

/// The extent as far as the records determine it.
#[derive(Debug)]
pub(super) enum FromRecords {
    /// All of it.
    Whole(Extent),
    /// The extent of some event types. The others are compared from a time that is not recorded.
    Part(Vec<ServerRecord>),
}

impl FromRecords {
    /// Reads the records of a server. A record with a time in the future was written by another clock and is
    /// ignored.
    pub(super) fn read(server: &Server, types: &EventTypes, now: RawTimestamp) -> Self {
        let valid = server.records.iter().filter(|record| record.covers_until() <= now);
        let (own, others): (Vec<&ServerRecord>, Vec<&ServerRecord>) =
            valid.partition(|record| record.types == *types);
        let others: Vec<ServerRecord> = others.into_iter().cloned().collect();
        let covered = covered_until(&others, types);
        match own.first().map(|own| own.covers_until()).max(covered) {
            Some(until) => {
                let rule = Rule::Records { others, without_record: None };
                Self::Whole(Extent { since: until.just_after(), rule })
            }
            None => Self::Part(others),
        }
    }
}

impl Extent {
    /// Returns the extent in which events that no record covers begin at this time.
    pub(super) fn beginning(others: Vec<ServerRecord>, types: &EventTypes, begin: RawTimestamp) -> Self {
        let recorded = others.iter().filter(|record| overlap(&record.types, types));
        let since = recorded.map(|record| record.covers_until().just_after()).fold(begin, Ord::min);
        Self { since, rule: Rule::Records { others, without_record: Some(begin) } }
    }

    /// Returns the events whose markers show whether this very server was restored in place: those of these
    /// types that were delivered after the earliest record that is not older than `floor`. `None` if there is
    /// no such record. The state to which a server is restored has the records of that time.
    pub(super) fn of_markers(server: &Server, types: &EventTypes, floor: RawTimestamp) -> Option<Self> {
        let counts = |record: &&ServerRecord| record.is_own && overlap(&record.types, types);
        let records: Vec<ServerRecord> = server.records.iter().filter(counts).cloned().collect();
        let since = records.iter().map(|record| record.covers_until().just_after());
        let since = since.filter(|since| *since >= floor).min()?;
        Some(Self { since, rule: Rule::Markers(records) })
    }

    /// Extends the comparison to events from this time on that no other record covers.
    pub(super) fn extend_to(&mut self, since: RawTimestamp) {
        self.since = self.since.min(since);
        if let Rule::Records { without_record: Some(begin), .. } = &mut self.rule {
            *begin = since.min(*begin);
        }
    }

    /// True if the event is compared.
    pub(super) fn has(&self, event: &DeliveredEvent) -> bool {
        let covered = |records: &[ServerRecord]| {
            covered_until(records, &EventTypes::Only(vec![event.event_type.clone()]))
        };
        match &self.rule {
            Rule::Records { others, without_record } => match covered(others) {
                Some(until) => event.delivered_at > until,
                None => without_record.is_none_or(|begin| event.delivered_at >= begin),
            },
            Rule::Markers(records) => must_have_marker(records, event),
        }
    }
}

/// True if the event was delivered when all relays of its type published to the same place as this publisher,
/// as far as the records show.
fn must_have_marker(records: &[ServerRecord], event: &DeliveredEvent) -> bool {
    let of_type = |record: &&ServerRecord| record.types.includes(&event.event_type);
    let marked = |record: &ServerRecord| record.marked_since.is_some();
    let since =
        |record: &ServerRecord| record.marked_since.unwrap_or_else(|| record.covers_until().just_after());
    let latest = records.iter().filter(of_type).map(since).max();
    records.iter().filter(of_type).any(marked) && latest.is_some_and(|since| event.delivered_at >= since)
}

/// Returns the time until which the records cover every event of these types; `None` if one of the types has
/// no record.
fn covered_until(records: &[ServerRecord], types: &EventTypes) -> Option<RawTimestamp> {
    let latest = |is_of: &dyn Fn(&EventTypes) -> bool| {
        records.iter().filter(|record| is_of(&record.types)).map(ServerRecord::covers_until).max()
    };
    match types {
        EventTypes::All => latest(&|of| *of == EventTypes::All),
        EventTypes::Only(names) => {
            let times: Option<Vec<RawTimestamp>> =
                names.iter().map(|name| latest(&|of| of.includes(name))).collect();
            times?.into_iter().min()
        }
    }
}

fn overlap(one: &EventTypes, other: &EventTypes) -> bool {
    match (one, other) {
        (EventTypes::Only(names), other) | (other, EventTypes::Only(names)) => {
            names.iter().any(|name| other.includes(name))
        }
        (EventTypes::All, EventTypes::All) => true,
    }
}

/// Returns the time until which records of other types, of this very server, show that every event of these
/// types is settled.
pub(super) fn settled_by_others(server: &Server, types: &EventTypes) -> Option<RawTimestamp> {
    let counts = |record: &&ServerRecord| {
        record.is_own && record.types != *types && matches!(record.progress, Progress::Settled(_))
    };
    let others: Vec<ServerRecord> = server.records.iter().filter(counts).cloned().collect();
    covered_until(&others, types)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ServerNumber;

    fn at(time: i64) -> RawTimestamp {
        RawTimestamp::from_server_micros(time)
    }

    fn only(names: &[&str]) -> EventTypes {
        EventTypes::Only(names.iter().copied().map(str::to_owned).collect())
    }

    fn server(records: &[(EventTypes, i64)]) -> Server {
        let record = |(types, until): &(EventTypes, i64)| ServerRecord {
            types: types.clone(),
            is_own: true,
            marked_since: Some(at(0)),
            progress: Progress::Settled(at(*until)),
        };
        Server {
            id: ServerNumber(1),
            records: records.iter().map(record).collect(),
            seen: std::sync::Arc::default(),
        }
    }

    fn event(event_type: &str, delivered_at: i64) -> DeliveredEvent {
        DeliveredEvent {
            event_id: Uuid::nil(),
            event_type: event_type.to_owned(),
            delivered_at: at(delivered_at),
        }
    }

    #[test]
    fn types_that_were_carried_alone_for_a_while_are_compared_from_their_own_record_on() {
        let server = server(&[(EventTypes::All, 10), (only(&["a", "b"]), 50)]);
        let FromRecords::Whole(extent) = FromRecords::read(&server, &EventTypes::All, at(99)) else {
            panic!("a record")
        };
        assert_eq!(extent.since, at(11));
        let is_compared = |event_type, at| extent.has(&event(event_type, at));
        assert!(!is_compared("a", 50) && is_compared("a", 51));
        assert!(is_compared("c", 11));
    }

    #[test]
    fn the_record_of_all_types_is_one_of_each() {
        let server = server(&[(EventTypes::All, 10), (only(&["a"]), 50)]);
        let since = |names: &[&str]| match FromRecords::read(&server, &only(names), at(99)) {
            FromRecords::Whole(extent) => extent.since,
            FromRecords::Part(others) => panic!("{others:?}"),
        };
        assert_eq!(since(&["c"]), at(11));
        assert_eq!(since(&["a", "c"]), at(11));
        assert_eq!(since(&["a"]), at(51));
        assert!(settled_by_others(&server, &only(&["a", "c"])).is_some());
        assert_eq!(settled_by_others(&server, &EventTypes::All), None, "there is only its own record");
    }

    #[test]
    fn a_type_without_a_record_is_compared_from_the_window_on_and_the_others_from_their_record_on() {
        let server = server(&[(only(&["a"]), 10), (only(&["x"]), 1), (only(&["f"]), 100)]);
        let types = only(&["a", "b", "f"]);
        let FromRecords::Part(others) = FromRecords::read(&server, &types, at(99)) else {
            panic!("b has none")
        };
        let mut extent = Extent::beginning(others, &types, at(40));
        assert_eq!(extent.since, at(11));
        assert!(extent.has(&event("a", 11)) && !extent.has(&event("a", 10)));
        assert!(extent.has(&event("b", 40)) && !extent.has(&event("b", 39)));
        assert!(!extent.has(&event("f", 39)), "a record from the future says nothing");
        extent.extend_to(at(5));
        assert!(extent.has(&event("b", 5)) && !extent.has(&event("a", 10)));
    }

    #[test]
    fn a_server_restored_in_place_is_compared_from_its_earliest_recent_record_whatever_others_cover() {
        let types = only(&["a", "b"]);
        let mut server =
            server(&[(only(&["z"]), 1), (only(&["a"]), 5), (types.clone(), 20), (only(&["b"]), 60)]);
        let extent = Extent::of_markers(&server, &types, at(10)).expect("recent records");
        assert_eq!(extent.since, at(21), "the record of `a` is too old, and that of `z` is of another type");
        assert!(extent.has(&event("a", 21)) && extent.has(&event("b", 30)), "before the record of `b`, too");
        assert_eq!(Extent::of_markers(&server, &types, at(70)), None, "all records are older");
        server.records[1].marked_since = None;
        server.records[2].marked_since = Some(at(25));
        let extent = Extent::of_markers(&server, &types, at(10)).expect("recent records");
        assert!(
            !extent.has(&event("a", 24)) && extent.has(&event("a", 25)),
            "it was published elsewhere before"
        );
        server.records[3].marked_since = None;
        let extent = Extent::of_markers(&server, &types, at(10)).expect("recent records");
        assert!(
            !extent.has(&event("b", 60)) && extent.has(&event("b", 61)),
            "another relay publishes it elsewhere"
        );
        server.records.iter_mut().for_each(|record| record.is_own = false);
        assert_eq!(Extent::of_markers(&server, &types, at(10)), None, "it is another server");
    }

    #[test]
    fn markers_are_expected_of_a_relay_in_its_first_comparison_after_one_that_published_elsewhere() {
        let mut server = server(&[(only(&["a"]), 20), (EventTypes::All, 0)]);
        server.records[0].marked_since = None;
        server.records[1].marked_since = Some(at(30));
        server.records[1].progress = Progress::Unfinished { since: at(1), comparison: 7 };
        let extent = Extent::of_markers(&server, &only(&["a"]), at(10)).expect("a recent record");
        assert!(!extent.has(&event("a", 29)) && extent.has(&event("a", 30)));
    }

    #[test]
    fn without_records_everything_is_compared_from_the_window_on() {
        let FromRecords::Part(others) = FromRecords::read(&server(&[]), &EventTypes::All, at(99)) else {
            panic!("there is none")
        };
        let extent = Extent::beginning(others, &EventTypes::All, at(40));
        assert_eq!(extent.since, at(40));
        assert!(extent.has(&event("a", 40)));
    }
}
