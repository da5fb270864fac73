//! Measured figures, and the goals they are held against.

use crate::chart::Chart;

/// Where the ceiling misses a goal on this machine, how many times as much as the ceiling the service may take.
const CEILING_TIMES: f64 = 1.5;

/// The figures of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// What was driven, and how.
    pub(crate) title: String,
    /// What came of it.
    pub(crate) figures: Vec<Figure>,
    /// Some of it as pictures.
    pub(crate) charts: Vec<Chart>,
}

/// A figure of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// What was measured, in a few words.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what: `ms`, `intents/s`, `%`, `x` for a ratio.
    pub(crate) unit: &'static str,
    /// The least and the most of the rounds that `value` is the median of.
    pub(crate) range: Option<(f64, f64)>,
    /// What it must be, in words, and whether it is.
    pub(crate) goal: Option<(String, bool)>,
}

impl Figure {
    /// A figure that is only shown.
    pub(crate) fn shown(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, range: None, goal: None }
    }

    /// With the rounds that it is the median of.
    pub(crate) fn of_rounds(mut self, rounds: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = rounds
            .into_iter()
            .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        // One round has no range.
        self.range = (least < most).then_some((least, most));
        self
    }

    /// It must not be above `bound`.
    pub(crate) fn at_most(self, bound: f64) -> Self {
        let goal = format!("at most {bound} {}", self.unit);
        self.judged(goal, |value| value <= bound)
    }

    /// It must not be above `bound`, or where the machine does not even let the ceiling keep that, above a multiple of what
    /// the ceiling takes.
    pub(crate) fn at_most_or_near(self, bound: f64, ceiling: f64) -> Self {
        if ceiling <= bound {
            return self.at_most(bound);
        }
        let (unit, allowed) = (self.unit, ceiling * CEILING_TIMES);
        let goal =
            format!("at most {allowed:.2} {unit}: {CEILING_TIMES}x the ceiling, which misses {bound} {unit}");
        self.judged(goal, |value| value <= allowed)
    }

    /// It must be below `bound`.
    pub(crate) fn under(self, bound: f64) -> Self {
        let goal = format!("under {bound} {}", self.unit);
        self.judged(goal, |value| value < bound)
    }

    /// It must not be below `bound`.
    pub(crate) fn at_least(self, bound: f64) -> Self {
        let goal = format!("at least {bound} {}", self.unit);
        self.judged(goal, |value| value >= bound)
    }

    fn judged(mut self, goal: String, is_met: impl Fn(f64) -> bool) -> Self {
        self.goal = Some((goal, is_met(self.value)));
        self
    }
}
