//! The events that a comparison covers: those that the state of the server may lack, according to its
//! records.
//!
//! The state has every event that a record covers, whichever relay has written it. So a relay that begins or
//! ceases to carry some types does not repeat comparisons that were made under the previous types.

use pg::RawTimestamp;

use crate::{DeliveredEvent, EventTypes, Progress, Server, ServerRecord};

/// The events that are compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The earliest time of delivery.
    pub(super) since: RawTimestamp,
    /// The records of relays with other types.
    others: Vec<ServerRecord>,
    /// The earliest time for events that no record covers; `None` if records cover every event.
    without_record: Option<RawTimestamp>,
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
            Some(until) => Self::Whole(Extent { since: until.just_after(), others, without_record: None }),
            None => Self::Part(others),
        }
    }
}

impl Extent {
    /// Returns the extent in which events that no record covers begin at this time.
    pub(super) fn beginning(others: Vec<ServerRecord>, types: &EventTypes, begin: RawTimestamp) -> Self {
        let recorded = others.iter().filter(|record| overlap(&record.types, types));
        let since = recorded.map(|record| record.covers_until().just_after()).fold(begin, Ord::min);
        Self { since, others, without_record: Some(begin) }
    }

    /// Extends the comparison to events from this time on that no other record covers.
    pub(super) fn extend_to(&mut self, since: RawTimestamp) {
        self.since = self.since.min(since);
        self.without_record = self.without_record.map(|begin| begin.min(since));
    }

    /// True if the event is compared.
    pub(super) fn has(&self, event: &DeliveredEvent) -> bool {
        let types = EventTypes::Only(vec![event.event_type.clone()]);
        match covered_until(&self.others, &types) {
            Some(until) => event.delivered_at > until,
            None => self.without_record.is_none_or(|begin| event.delivered_at >= begin),
        }
    }
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
    let is_settled = |record: &ServerRecord| matches!(record.progress, Progress::Settled(_));
    covered_by_others(server, types, is_settled)
}

/// Returns the time until which this very server has every event of these types, if later events must have
/// markers under the names of this publisher.
pub(super) fn marked_after(server: &Server, types: &EventTypes) -> Option<RawTimestamp> {
    match server.record(types).filter(|record| record.is_own) {
        Some(own) => own.has_own_markers.then(|| own.covers_until()),
        None => covered_by_others(server, types, |record| record.has_own_markers),
    }
}

fn covered_by_others(
    server: &Server,
    types: &EventTypes,
    counts: impl Fn(&ServerRecord) -> bool,
) -> Option<RawTimestamp> {
    let counts = |record: &&ServerRecord| record.is_own && record.types != *types && counts(record);
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
            has_own_markers: true,
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
    fn without_records_everything_is_compared_from_the_window_on() {
        let FromRecords::Part(others) = FromRecords::read(&server(&[]), &EventTypes::All, at(99)) else {
            panic!("there is none")
        };
        let extent = Extent::beginning(others, &EventTypes::All, at(40));
        assert_eq!(extent.since, at(40));
        assert!(extent.has(&event("a", 40)));
    }
}
