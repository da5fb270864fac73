//! Stuck parts of the service: an operator has to look at them because they do not recover by themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::store_status::{INTAKE, StoreStatus, Waiting};
use crate::document::Age;
use crate::route::Channel;

/// A worker that has been blocked for this long is stuck.
pub const BLOCKED_LIMIT: Duration = Duration::from_secs(30);
/// Intake is stuck if no replica has led for this long: after a crash another replica leads within 12 s.
pub const NO_LEADER_LIMIT: Duration = Duration::from_secs(15);
/// A channel is stuck if its oldest due route has been due for longer than this.
pub const OLDEST_DUE_LIMIT: Duration = Duration::from_secs(60);

/// A stuck part of the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Stuck {
    /// The stuck part in one word: `intake`, a channel, or the name of a worker.
    pub what: String,
    /// True if intents or routes wait for this part; other workers do not delay them.
    pub stops_traffic: bool,
    /// A sentence for a person, without a full stop.
    pub sentence: String,
}

/// The stuck parts of the service, given its `blocked` workers by name. `leaderless_since` is the end of the
/// last term, if no replica leads and that time is known.
pub(super) fn stuck(
    store: &StoreStatus,
    blocked: &BTreeMap<String, Waiting>,
    leaderless_since: Option<Timestamp>,
) -> Vec<Stuck> {
    let leaderless = leaderless_since.map(|since| Age::between(since, store.at));
    let leaderless = leaderless.filter(|age| age.0 >= NO_LEADER_LIMIT).map(|age| Stuck {
        what: INTAKE.to_owned(),
        stops_traffic: true,
        sentence: format!("No replica has led for {} s, so no intent is read", age.0.as_secs()),
    });
    let blocked = blocked.iter().filter(|(_, waiting)| waiting.age.0 >= BLOCKED_LIMIT);
    let workers = blocked.map(|(worker, Waiting { replica, entry_id, cause, age })| {
        let at = entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
        let seconds = age.0.as_secs();
        Stuck {
            what: worker.clone(),
            stops_traffic: worker == INTAKE || worker.parse::<Channel>().is_ok(),
            sentence: format!(
                "The worker {worker} of {replica} has been blocked for {seconds} s{at}: {cause}"
            ),
        }
    });
    let channels = store.channels.iter().filter_map(|status| {
        let (channel, due) = (status.channel, status.oldest_due.filter(|age| age.0 > OLDEST_DUE_LIMIT)?);
        let seconds = due.0.as_secs();
        Some(Stuck {
            what: channel.to_string(),
            stops_traffic: true,
            sentence: format!(
                "The channel {channel} has a route that has been due for {seconds} s and is not published"
            ),
        })
    });
    leaderless.into_iter().chain(workers).chain(channels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::status::tests::{TERM, at, replica, status};

    fn sentences(found: &[Stuck]) -> Vec<&str> {
        found.iter().map(|found| found.sentence.as_str()).collect()
    }

    #[test]
    fn nothing_is_stuck_while_everything_is_within_its_limit() {
        let blocked = replica("web-1", at(99), false, INTAKE, at(71));
        assert_eq!(status(TERM, None, Some(at(40)), vec![blocked]).stuck, []);
        assert_eq!(status(None, Some(at(86)), None, Vec::new()).stuck, []);
        assert_eq!(status(None, None, None, Vec::new()).stuck, [], "it is not known for how long");
    }

    #[test]
    fn no_leader_for_15_seconds_is_stuck_unless_one_leads_again() {
        let found = status(None, Some(at(85)), None, Vec::new()).stuck;
        assert_eq!(sentences(&found), ["No replica has led for 15 s, so no intent is read"]);
        assert!(found[0].stops_traffic && found[0].what == INTAKE);
        assert_eq!(status(TERM, Some(at(85)), None, Vec::new()).stuck, []);
    }

    #[test]
    fn a_worker_that_is_blocked_for_30_seconds_is_stuck_and_only_intake_and_channels_stop_traffic() {
        for (worker, stops) in [(INTAKE, true), ("push", true), ("email", true), ("retention", false)] {
            let found = status(TERM, None, None, vec![replica("web-1", at(99), false, worker, at(70))]).stuck;
            assert_eq!(found.len(), 1, "{worker}");
            assert_eq!((found[0].stops_traffic, found[0].what.as_str()), (stops, worker));
        }
        let longest = vec![
            replica("web-1", at(99), false, INTAKE, at(70)),
            replica("web-2", at(99), false, INTAKE, at(60)),
        ];
        let expected = ["The worker intake of web-2 has been blocked for 40 s at the entry 5-0: web-2 waits"];
        assert_eq!(sentences(&status(TERM, None, None, longest).stuck), expected);
    }

    #[test]
    fn a_replica_that_reports_no_more_blocks_nothing() {
        let gone = replica("web-1", at(69), false, INTAKE, at(0));
        assert_eq!(status(TERM, None, None, vec![gone]).stuck, []);
    }

    #[test]
    fn a_channel_is_stuck_if_a_route_is_due_for_more_than_60_seconds() {
        let expected = ["The channel push has a route that has been due for 61 s and is not published"];
        assert_eq!(sentences(&status(TERM, None, Some(at(39)), Vec::new()).stuck), expected);
        assert_eq!(status(TERM, None, Some(at(40)), Vec::new()).stuck, []);
    }
}
