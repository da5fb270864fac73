//! Findings: what an operator has to look at, with its cause, its beginning and the section of the runbook.
//!
//! Three states: *stuck* parts do not recover by themselves, *failing* ones work without success, and without
//! either the service is *well*. One cause is one finding, however many parts it blocks.

mod failing;
mod stuck;

use std::collections::BTreeMap;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::failing::deferral_cause;
pub(super) use self::failing::failing;
pub use self::failing::{DEFERRED_LIMIT, RECENT};
pub(super) use self::stuck::stuck;
pub use self::stuck::{BLOCKED_LIMIT, NO_LEADER_LIMIT, OLDEST_DUE_LIMIT};
use super::store_status::INTAKE;
use crate::document::{Tone, grouped, inline_schema, one_of};
use crate::route::{Channel, RouteStatus};

/// The state of the service in one word; later variants matter more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// Intents are read and due routes are published.
    #[default]
    Well,
    /// Work continues without success.
    Failing,
    /// A part does not continue.
    Stuck,
}

impl ServiceState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Well, Self::Failing, Self::Stuck];

    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Failing => "failing",
            Self::Stuck => "stuck",
        }
    }

    /// The tone of this state.
    pub fn tone(self) -> Tone {
        match self {
            Self::Well => Tone::Good,
            Self::Failing => Tone::Warning,
            Self::Stuck => Tone::Bad,
        }
    }
}

inline_schema!(ServiceState, one_of(Self::ALL.map(Self::as_str)));

/// Something that an operator has to look at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Finding {
    /// `failing` or `stuck`.
    pub state: ServiceState,
    /// The parts of the service that it concerns: `intake`, channels, names of workers or producers.
    pub parts: Vec<String>,
    /// A sentence for a person, without its cause and without a full stop.
    pub sentence: String,
    /// The cause; `null` if it is not known.
    pub cause: Option<String>,
    /// Time at which it began; `null` if that is not known.
    pub since: Option<Timestamp>,
    /// Number of the routes, attempts or intents that it concerns; `null` if none are counted.
    pub count: Option<u64>,
    /// List that has what it concerns; `null` if none has.
    pub culprits: Option<Culprits>,
    /// Section of the runbook.
    pub runbook: &'static str,
}

/// The list that has the culprits of a finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Culprits {
    /// `notifications`, `dead_letters` or `malformed_intents`.
    pub list: CulpritList,
    /// The conditions that select them: for notifications a filter of `POST /v1/notifications:query`, else
    /// parameters of the list.
    pub conditions: BTreeMap<&'static str, String>,
}

/// A list of the API, the console and the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CulpritList {
    /// Notifications.
    Notifications,
    /// Dead letters.
    DeadLetters,
    /// Malformed intents.
    MalformedIntents,
}

inline_schema!(CulpritList, one_of(["notifications", "dead_letters", "malformed_intents"]));

impl Culprits {
    fn new(list: CulpritList, conditions: impl IntoIterator<Item = (&'static str, String)>) -> Option<Self> {
        Some(Self { list, conditions: conditions.into_iter().collect() })
    }

    /// The notifications with a route of this channel in this status.
    fn routes(channel: &str, status: RouteStatus) -> Option<Self> {
        let status = status.as_str().to_owned();
        Self::new(
            CulpritList::Notifications,
            [("route.channel", channel.to_owned()), ("route.status", status)],
        )
    }
}

impl Finding {
    /// The sentence with its cause, without a full stop.
    pub fn text(&self) -> String {
        match &self.cause {
            Some(cause) => format!("{}: {cause}", self.sentence),
            None => self.sentence.clone(),
        }
    }
}

/// The sections of the runbook to which findings lead.
pub const RUNBOOK_SECTIONS: [&str; 8] =
    [NO_LEADER, READING, PUBLISHING, DELETING, RELAYING, FAILING_CHANNEL, DEAD_LETTERS, MALFORMED];
const NO_LEADER: &str = "docs/operations.md#notificationnoleader";
const READING: &str = "docs/operations.md#intake";
const PUBLISHING: &str = "docs/operations.md#publishing";
const DELETING: &str = "docs/operations.md#retention";
const RELAYING: &str = "docs/operations.md#outbox";
const FAILING_CHANNEL: &str = "docs/operations.md#notificationchannelfailing";
const DEAD_LETTERS: &str = "docs/operations.md#retrying-dead-letters";
const MALFORMED: &str = "docs/operations.md#notificationmalformedrising";

/// The section about a worker that is blocked.
fn section_of(worker: &str) -> &'static str {
    match worker {
        INTAKE => READING,
        "retention" => DELETING,
        crate::replica::OUTBOX_RELAY => RELAYING,
        _ => PUBLISHING,
    }
}

/// The order in which parts are named: intake, the channels, then other workers by name.
fn in_order(part: &str) -> (usize, &str) {
    let channel =
        part.parse::<Channel>().ok().and_then(|of| Channel::ALL.iter().position(|other| *other == of));
    let place = if part == INTAKE { 0 } else { channel.map_or(usize::MAX, |place| place + 1) };
    (place, part)
}

/// `a`, `a and b`, or `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// `1 route` or `2 routes`.
fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A cause as part of a sentence: without surrounding space and full stops; `None` if nothing is left.
pub(super) fn tidy(cause: &str) -> Option<String> {
    let cause = cause.trim().trim_end_matches(['.', ' ']);
    (!cause.is_empty()).then(|| cause.to_owned())
}

#[cfg(test)]
mod tests;
