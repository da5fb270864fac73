//! Recent activity of all replicas together, in steps of a minute over an hour or of 15 minutes over a day.
//!
//! One document for `GET /v1/activity` and the charts of the console.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::document::{inline_schema, one_of};
use crate::replica::{Activity, ActivityPart, Delays, PartActivity};
use crate::route::{Channel, UnknownName};

/// The period that a history covers, up to the present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivityPeriod {
    /// 60 steps of a minute.
    #[default]
    Hour,
    /// 96 steps of 15 minutes.
    Day,
}

impl ActivityPeriod {
    /// Every period.
    pub const ALL: [Self; 2] = [Self::Hour, Self::Day];

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The length of a step.
    pub fn step(self) -> Duration {
        match self {
            Self::Hour => Duration::from_mins(1),
            Self::Day => Duration::from_mins(15),
        }
    }

    /// The number of steps, including the present one.
    pub fn steps(self) -> usize {
        match self {
            Self::Hour => 60,
            Self::Day => 96,
        }
    }

    /// The beginning of the step that contains `at`.
    pub fn step_of(self, at: Timestamp) -> Timestamp {
        let step = i64::try_from(self.step().as_micros()).unwrap_or(i64::MAX);
        at - Duration::from_micros(at.as_micros().rem_euclid(step).unsigned_abs())
    }

    /// The beginning of the first step if `present` is in the last one.
    pub fn first_step(self, present: Timestamp) -> Timestamp {
        self.step_of(present) - self.step() * u32::try_from(self.steps() - 1).unwrap_or(0)
    }
}

inline_schema!(ActivityPeriod, one_of(Self::ALL.map(Self::as_str)));

impl FromStr for ActivityPeriod {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|period| period.as_str() == text).ok_or(UnknownName)
    }
}

/// The activity of all replicas together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Activity")]
pub struct ActivityHistory {
    /// `hour` or `day`, up to the present.
    pub period: ActivityPeriod,
    /// Length of a step in seconds.
    pub step_seconds: u64,
    /// All steps of the period, the oldest first; zeros where nothing happened.
    pub steps: Vec<ActivityStep>,
    /// Routes by channel and notification type; a step in which nothing happened is left out.
    pub routes: Vec<RoutesActivity>,
    /// Intents of the whole period by producer.
    pub producers: Vec<ProducerActivity>,
}

/// The activity of one step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ActivityStep {
    /// Beginning of the step.
    pub at: Timestamp,
    /// Counts of all replicas.
    #[serde(flatten)]
    pub activity: Activity,
    /// Time in milliseconds from acceptance to publication that half of the routes did not exceed, rounded up
    /// to a bound; `null` if none was published, or if it is longer than 10 minutes.
    pub delay_p50_ms: Option<u64>,
    /// The same for 99 of 100 routes.
    pub delay_p99_ms: Option<u64>,
}

/// The routes of a notification type on a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RoutesActivity {
    /// The channel.
    pub channel: Channel,
    /// The notification type.
    pub notification_type: String,
    /// Steps in which something happened, the oldest first.
    pub steps: Vec<RoutesStep>,
}

/// The routes of one step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RoutesStep {
    /// Beginning of the step.
    pub at: Timestamp,
    /// Appended entries.
    pub published: u64,
    /// Failed attempts that are followed by another one.
    pub failed: u64,
    /// Routes that became dead letters.
    pub dead_lettered: u64,
    /// See the steps of all routes.
    pub delay_p50_ms: Option<u64>,
    /// See the steps of all routes.
    pub delay_p99_ms: Option<u64>,
    /// The delays of what was published.
    #[serde(skip)]
    pub delays: Delays,
}

/// The intents of a producer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ProducerActivity {
    /// The producer; empty for all names beyond the 50 unknown ones that are counted in a minute.
    pub producer: String,
    /// Accepted intents.
    pub accepted: u64,
    /// Intents that had been accepted before.
    pub duplicates: u64,
    /// Intents whose key belongs to another intent.
    pub conflicts: u64,
    /// Malformed intents.
    pub malformed: u64,
}

/// Counts of one step, as a store has them.
pub type StepCounts<T> = (Timestamp, T);

impl ActivityHistory {
    /// The history of `period` that ends at `present`, from the counts of its steps.
    pub fn new(
        period: ActivityPeriod,
        present: Timestamp,
        totals: Vec<StepCounts<Activity>>,
        parts: Vec<StepCounts<(ActivityPart, PartActivity)>>,
    ) -> Self {
        let first = period.first_step(present);
        let mut all: BTreeMap<Timestamp, PartActivity> = (0..period.steps())
            .map(|step| (first + period.step() * step as u32, PartActivity::default()))
            .collect();
        for (at, activity) in totals {
            if let Some(counts) = all.get_mut(&at) {
                counts.activity += activity;
            }
        }
        let mut routes: BTreeMap<(Channel, String), Vec<RoutesStep>> = BTreeMap::new();
        let mut producers: BTreeMap<String, Activity> = BTreeMap::new();
        for (at, (part, counts)) in parts {
            let Some(of_step) = all.get_mut(&at) else { continue };
            match part {
                ActivityPart::Routes { channel, notification_type } => {
                    of_step.delays += counts.delays;
                    routes.entry((channel, notification_type)).or_default().push(RoutesStep::new(at, counts));
                }
                ActivityPart::Producer(name) => *producers.entry(name).or_default() += counts.activity,
            }
        }
        Self {
            period,
            step_seconds: period.step().as_secs(),
            steps: all.into_iter().map(|(at, counts)| ActivityStep::new(at, counts)).collect(),
            routes: routes.into_iter().map(RoutesActivity::new).collect(),
            producers: producers.into_iter().map(ProducerActivity::new).collect(),
        }
    }

    /// The steps of the selected routes together.
    pub fn routes_of(&self, selects: impl Fn(&RoutesActivity) -> bool) -> Vec<RoutesStep> {
        let mut sums: BTreeMap<Timestamp, PartActivity> =
            self.steps.iter().map(|step| (step.at, PartActivity::default())).collect();
        for step in self.routes.iter().filter(|routes| selects(routes)).flat_map(|routes| &routes.steps) {
            let RoutesStep { published, failed, dead_lettered, delays, .. } = *step;
            let activity = Activity { published, failed, dead_lettered, ..Activity::default() };
            *sums.entry(step.at).or_default() += PartActivity { activity, delays };
        }
        sums.into_iter().map(|(at, counts)| RoutesStep::new(at, counts)).collect()
    }
}

impl ActivityStep {
    fn new(at: Timestamp, PartActivity { activity, delays }: PartActivity) -> Self {
        Self { at, activity, delay_p50_ms: delays.percentile(50), delay_p99_ms: delays.percentile(99) }
    }
}

impl RoutesActivity {
    fn new(((channel, notification_type), mut steps): ((Channel, String), Vec<RoutesStep>)) -> Self {
        steps.sort_by_key(|step| step.at);
        Self { channel, notification_type, steps }
    }
}

impl RoutesStep {
    fn new(at: Timestamp, PartActivity { activity, delays }: PartActivity) -> Self {
        Self {
            at,
            published: activity.published,
            failed: activity.failed,
            dead_lettered: activity.dead_lettered,
            delay_p50_ms: delays.percentile(50),
            delay_p99_ms: delays.percentile(99),
            delays,
        }
    }
}

impl ProducerActivity {
    fn new((producer, activity): (String, Activity)) -> Self {
        let Activity { accepted, duplicates, conflicts, malformed, .. } = activity;
        Self { producer, accepted, duplicates, conflicts, malformed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_660_000 + number * 60_000).expect("in range")
    }

    fn accepted(accepted: u64) -> Activity {
        Activity { accepted, ..Activity::default() }
    }

    #[test]
    fn a_step_without_a_count_is_zero_and_what_is_older_than_the_period_is_left_out() {
        let totals = vec![(minute(0), accepted(9)), (minute(1), accepted(3)), (minute(60), accepted(4))];
        let present = minute(60) + Duration::from_secs(59);
        let steps = ActivityHistory::new(ActivityPeriod::Hour, present, totals, Vec::new()).steps;
        let counted = |step: &ActivityStep| (step.at, step.activity.accepted);
        assert_eq!(
            (steps.len(), counted(&steps[0]), counted(&steps[59])),
            (60, (minute(1), 3), (minute(60), 4))
        );
        assert!(steps[1..59].iter().all(|quiet| quiet.activity == Activity::default()));
    }

    #[test]
    fn a_day_has_96_steps_of_15_minutes_that_begin_at_a_quarter() {
        let day = ActivityHistory::new(ActivityPeriod::Day, minute(0), Vec::new(), Vec::new());
        assert_eq!((day.steps.len(), day.step_seconds), (96, 900));
        assert!(day.steps.iter().all(|step| step.at.as_micros() % 900_000_000 == 0));
        assert!(
            day.steps
                .last()
                .is_some_and(|last| last.at <= minute(0) && minute(0) < last.at + ActivityPeriod::Day.step())
        );
    }

    #[test]
    fn routes_are_summed_by_channel_and_type_and_producers_over_the_period() {
        let of = |published, delay| {
            let mut delays = Delays::default();
            (0..published).for_each(|_| delays.add(Duration::from_millis(delay)));
            PartActivity { activity: Activity { published, ..Activity::default() }, delays }
        };
        let routes =
            |channel, kind: &str| ActivityPart::Routes { channel, notification_type: kind.to_owned() };
        let producer = |count| {
            (
                ActivityPart::Producer("p".to_owned()),
                PartActivity { activity: accepted(count), ..PartActivity::default() },
            )
        };
        let history = ActivityHistory::new(
            ActivityPeriod::Hour,
            minute(60),
            Vec::new(),
            vec![
                (minute(9), (routes(Channel::Push, "a"), of(98, 4))),
                (minute(8), (routes(Channel::Push, "a"), of(1, 4))),
                (minute(9), (routes(Channel::Email, "a"), of(2, 700))),
                (minute(8), producer(2)),
                (minute(9), producer(3)),
            ],
        );
        let pushed =
            &history.routes[history.routes.iter().position(|of| of.channel == Channel::Push).expect("push")];
        assert_eq!(
            pushed.steps.iter().map(|step| (step.at, step.published)).collect::<Vec<_>>(),
            [(minute(8), 1), (minute(9), 98)]
        );
        let ninth = &history.steps[8];
        assert_eq!((ninth.at, ninth.delay_p50_ms, ninth.delay_p99_ms), (minute(9), Some(10), Some(1_000)));
        let all = history.routes_of(|_| true);
        assert_eq!((all.len(), all[8].published, all[0].published), (60, 100, 0));
        assert_eq!(history.routes_of(|of| of.channel == Channel::Email)[8].delay_p50_ms, Some(1_000));
        assert_eq!((history.producers.len(), history.producers[0].accepted), (1, 5));
    }
}
