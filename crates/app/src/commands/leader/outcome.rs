//! The outcome of a request that the leader hand over, derived from the lock and the reports of the replicas.

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use domain::query::Status;
use serde_json::{Value, json};

use super::{NAME_DELAY, not_yet_named};
use crate::commands::Failure;
use crate::commands::output::{print_json, print_line, printable};

/// The time limit for the reports of the new and the former leader, which follow about a second after the
/// change.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for a report with the new leader's name. A replica that leads again without a pause reports
/// it only with its next report, 10 s later.
const NAME_TIMEOUT: Duration = Duration::from_secs(13);

/// The outcome of a request to step down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Another replica leads. The former leader handed over if it has reported itself since.
    Followed {
        /// The replica that leads; `None` if it has not reported itself.
        by: Option<String>,
        /// The fence of the new term.
        fence: u64,
        /// True if the former leader reports that it no longer leads.
        handed_over: bool,
    },
    /// The same replica leads in a new term.
    SameLeader {
        /// The fence of the new term.
        fence: u64,
    },
    /// The same term continues.
    Unchanged {
        /// True if no other replica is seen.
        alone: bool,
    },
}

impl Outcome {
    /// Derives the outcome from the reports, `waited` after the new term was found; `None` if more reports
    /// are expected.
    pub(super) fn of_new_term(status: &Status, former: &str, waited: Duration) -> Option<Self> {
        let leader = status.leader.as_ref()?;
        let (name, term) = (leader.replica.as_deref(), leader.term);
        let report = status.store.replicas.iter().find(|replica| replica.replica == former);
        if name == Some(former) {
            // For a moment after the change, the last report of the former term still names the former
            // leader.
            let is_of_this_term = report.is_some_and(|report| report.seen_at >= term.since + NAME_DELAY);
            return match is_of_this_term {
                true => Some(Self::SameLeader { fence: term.fence }),
                false if waited > NAME_TIMEOUT => {
                    Some(Self::Followed { by: None, fence: term.fence, handed_over: false })
                }
                false => None,
            };
        }
        let handed_over = report.is_some_and(|report| !report.claims_intake);
        let is_known = name.is_some() && (handed_over || waited > REPORT_TIMEOUT);
        (is_known || waited > NAME_TIMEOUT).then(|| Self::Followed {
            by: name.map(str::to_owned),
            fence: term.fence,
            handed_over,
        })
    }

    /// The document of `--json`. `request_id` is `None` if no request was made.
    pub(super) fn document(&self, former: &str, request_id: Option<&str>) -> Value {
        let (leader, fence, handed_over) = match self {
            Self::Followed { by, fence, handed_over } => (by.as_deref(), Some(*fence), *handed_over),
            Self::SameLeader { fence } => (Some(former), Some(*fence), false),
            Self::Unchanged { .. } => (Some(former), None, false),
        };
        json!({
            "request_id": request_id,
            "asked": request_id.map(|_| former),
            "handed_over": handed_over,
            "leader": leader,
            "fence": fence,
        })
    }

    /// Prints the outcome; returns an error if no other replica leads.
    pub(super) fn print(
        &self,
        former: &str,
        request_id: Option<&str>,
        json: bool,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        if json {
            print_json(out, &self.document(former, request_id))?;
        }
        let (name, is_asked) = (printable(former), request_id.is_some());
        let request = request_id.map(|id| format!(" (request {id} in operator_actions)")).unwrap_or_default();
        let problem = match self {
            Self::Followed { .. } if json => return Ok(()),
            Self::Followed { by, fence, handed_over } => {
                if !handed_over {
                    let why = "it hangs or has crashed, and its term has expired";
                    print_line(out, &format!("{name} did not answer: {why}"))?;
                }
                let by = by.as_deref().map_or_else(not_yet_named, printable);
                return Ok(print_line(out, &format!("{by} leads under fence {fence}{request}"))?);
            }
            Self::SameLeader { fence } => {
                format!("no other replica has followed: {name} leads again, under fence {fence}{request}")
            }
            Self::Unchanged { alone: true } if is_asked => format!(
                "no other replica has been seen for 30 s, so {name} continues to lead, unless another one starts within 15 s{request}"
            ),
            Self::Unchanged { alone: true } => format!(
                "no other replica has been seen for 30 s, so {name} continues to lead and was not asked"
            ),
            Self::Unchanged { alone: false } => {
                format!("{name} has not handed over within 30 s and still leads: look at its log{request}")
            }
        };
        Err(anyhow!(problem).into())
    }
}

#[cfg(test)]
mod tests {
    use ambient::Timestamp;
    use domain::query::{CauseCounts, LeaderTerm, RecentFailures, ReplicaStatus, StoreStatus};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    /// A status whose term began at 100 s, with reports of (name, time in seconds, leads).
    fn status(reports: &[(&str, i64, bool)]) -> Status {
        let replica = |(name, seen_at, leads): &(&str, i64, bool)| ReplicaStatus {
            replica: (*name).to_owned(),
            version: "0.1.0".to_owned(),
            started_at: at(0),
            seen_at: at(*seen_at),
            stopped_at: None,
            leader_of: Vec::new(),
            claims_intake: *leads,
            workers: Vec::new(),
        };
        let store = StoreStatus {
            at: at(104),
            stream: "intents".to_owned(),
            checkpoint: None,
            channels: Vec::new(),
            dead_letters: CauseCounts::default(),
            malformed_intents: CauseCounts::default(),
            recent: RecentFailures::default(),
            receipts: CauseCounts::default(),
            holds: Vec::new(),
            replicas: reports.iter().map(replica).collect(),
        };
        Status::new(store, Some(LeaderTerm { since: at(100), fence: 8 }), None, None)
    }

    #[test]
    fn who_leads_in_the_new_term_is_what_the_reports_of_that_term_say() {
        let followed = |by: Option<&str>, handed_over| {
            Some(Outcome::Followed { by: by.map(str::to_owned), fence: 8, handed_over })
        };
        let again = Some(Outcome::SameLeader { fence: 8 });
        for (reports, waited, expected) in [
            (&[("a", 101, false), ("b", 101, true)], 1, followed(Some("b"), true)),
            // The report of the former leader is not there yet, or never comes.
            (&[("a", 99, true), ("b", 101, true)], 1, None),
            (&[("a", 99, true), ("b", 101, true)], 6, followed(Some("b"), false)),
            // The report of the new leader is missing.
            (&[("a", 101, false), ("b", 99, false)], 6, None),
            (&[("a", 101, false), ("b", 99, false)], 14, followed(None, true)),
            // Reports of the former term contain nothing about the new one.
            (&[("a", 99, true), ("b", 99, false)], 6, None),
            (&[("a", 99, true), ("b", 99, false)], 14, followed(None, false)),
            (&[("a", 103, true), ("b", 99, false)], 4, again),
        ] {
            let found = Outcome::of_new_term(&status(reports), "a", Duration::from_secs(waited));
            assert_eq!(found, expected, "{reports:?} after {waited} s");
        }
    }

    #[test]
    fn only_another_leader_is_a_success_and_each_end_has_its_sentence() {
        let ended = |outcome: Outcome, request_id| {
            let mut out = Vec::new();
            let ended = outcome.print("a", request_id, false, &mut out);
            let text = String::from_utf8(out).expect("text");
            ended.map(|()| text).map_err(|failure| (failure.exit_code(), failure.to_string()))
        };
        let followed = Outcome::Followed { by: Some("b".to_owned()), fence: 8, handed_over: true };
        let done = ended(followed, Some("r")).expect("another leads");
        assert_eq!(done, "b leads under fence 8 (request r in operator_actions)\n");
        for (outcome, request_id, sentence) in [
            (Outcome::SameLeader { fence: 8 }, Some("r"), "a leads again, under fence 8"),
            (Outcome::Unchanged { alone: true }, None, "a continues to lead and was not asked"),
            (Outcome::Unchanged { alone: true }, Some("r"), "unless another one starts within 15 s"),
            (Outcome::Unchanged { alone: false }, Some("r"), "has not handed over within 30 s"),
        ] {
            let (code, text) = ended(outcome, request_id).expect_err(sentence);
            assert!(code == 1 && text.contains(sentence), "{code} {text}");
        }
    }
}
